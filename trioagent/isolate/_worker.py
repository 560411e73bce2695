"""A worker: calls one function after the other, as it is told on stdin.

Run by its path, so that it loads nothing but what the functions need. A message is its
length in eight bytes and a pickle. The first one is `Setup`; then each is a call, and
has one answer. What a function prints goes to stderr, for stdout is the way back.

TERM reaches the function: a plain one gets `SystemExit`, an async one is cancelled, so
that what is in their `finally` is still done, within the grace.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from functools import partial
from types import CoroutineType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than this file
    from collections.abc import Callable
    from typing import Any, BinaryIO, NoReturn

    Setup = tuple[list[str], str | None, str | None]  # sys.path, main: name, file
    Call = tuple[str, str, bytes]  # module, qualname, pickled (args, kwargs)
    # value: pickled. raised: pickled error or nothing, its words, traceback.
    # unsendable, unreachable: why.
    Answer = tuple[str, bytes, str, str]

LENGTH = 8
MAIN = "__main__"
MAIN_HERE = "__mp_main__"  # the name that multiprocessing gives it: guards know it
STOPPED = 128 + signal.SIGTERM

loading_main = False  # the owner's program is being run, for its functions
stop_async: Callable[[], None] | None = None  # while an async function runs


class Stopped(SystemExit):
    """TERM has come."""


def on_term(*_: object) -> None:
    """Let the function end in its own way."""
    if stop_async is None:
        raise Stopped(STOPPED)
    stop_async()


def load_main(setup: Setup) -> None:
    """Have the owner's program as `__main__`, without what is below its guard."""
    global loading_main
    if MAIN_HERE in sys.modules:
        return
    import runpy

    _, name, path = setup
    loading_main = True
    try:
        if name is not None:
            names = runpy.run_module(name, run_name=MAIN_HERE, alter_sys=True)
        else:
            assert path is not None, "the program has no file"
            names = runpy.run_path(path, run_name=MAIN_HERE)
    finally:
        loading_main = False
    module = ModuleType(MAIN_HERE)
    module.__dict__.update(names)
    sys.modules[MAIN] = sys.modules[MAIN_HERE] = module


def find(module: str, qualname: str) -> Callable[..., Any]:
    """The function of that name; of an isolated tool, the one that it was made from."""
    __import__(module)
    found: Any = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    function: Callable[..., Any] = getattr(
        getattr(found, "fn", found), "isolated", found
    )
    return function


def run_async(coroutine: CoroutineType[Any, Any, Any]) -> Any:
    """Run it on trio, which is only imported here. TERM cancels it."""
    import trio

    async def main() -> Any:
        global stop_async
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()
            stop_async = partial(token.run_sync_soon, scope.cancel, idempotent=True)
            return await coroutine
        raise Stopped(STOPPED)

    global stop_async
    try:
        return trio.run(main)
    finally:
        stop_async = None


def raised(error: BaseException) -> Answer:
    """An error as it can be sent."""
    import traceback

    pickled = b""
    if isinstance(error, Exception):  # not what would end the owner, such as SystemExit
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # many can be pickled, and not be made again
        except Exception:  # noqa: BLE001 - its class may do anything
            pickled = b""
    words = "".join(traceback.format_exception_only(error)).strip()
    return "raised", pickled, words, "".join(traceback.format_exception(error))


def answer(setup: Setup, call: Call) -> Answer:
    """Call one function."""
    module, qualname, payload = call
    try:
        if module in (MAIN, MAIN_HERE) or MAIN.encode() in payload:
            load_main(setup)
        function = find(module, qualname)
        args, kwargs = pickle.loads(payload)
    except Stopped:
        raise
    except BaseException as error:  # noqa: ASYNC103, BLE001 - a module may do anything
        words = f"{type(error).__name__}: {error}"
        return "unreachable", b"", words, ""  # noqa: ASYNC104 - no trio is around this
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = run_async(value)
    except Stopped:
        raise
    except BaseException as error:  # noqa: ASYNC103, BLE001 - so may a tool
        return raised(error)  # noqa: ASYNC104
    try:
        return "value", pickle.dumps(value), "", ""
    except Exception as error:  # noqa: BLE001 - a value may be anything
        return "unsendable", b"", f"{type(error).__name__}: {error}", ""


def receive(stream: BinaryIO) -> Any:
    """The next message; None where the owner has no more."""
    head = stream.read(LENGTH)
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    whole = len(head) == LENGTH and len(body) == size
    return pickle.loads(body) if whole else None


def frame(message: object) -> bytes:
    """A message as it is sent."""
    body = pickle.dumps(message)
    return len(body).to_bytes(LENGTH, "big") + body


def main() -> NoReturn:
    """Serve until there is no more to do."""
    signal.signal(signal.SIGTERM, on_term)
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # also what is printed by C
    sys.stdout = sys.stderr
    setup = receive(source)
    if setup is not None:
        sys.path[:] = setup[0]
    while (call := receive(source)) is not None:
        reply = memoryview(frame(answer(setup, call)))
        while reply:
            reply = reply[sink.write(reply) :]
    raise SystemExit


if __name__ == "__main__":
    main()
