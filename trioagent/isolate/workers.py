"""Functions in warm Python processes, which can be ended in the middle of a call."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pickle
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Self

import trio

from trioagent._errors import ToolError
from trioagent._limits import check_number
from trioagent._tools import ToolContext

from . import _worker
from ._supervised import OVERRUN_SECONDS, Exit, Supervised, check_platform

GRACE_SECONDS = 0.1  # from TERM to KILL
DEATH_SECONDS = 1.0  # from the end of a worker's answers to its own

_GONE = (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError)
REMEDY = "put it into a module, at the top level"


class WorkerDied(RuntimeError):
    """A worker ended in the middle of a call: what it was doing is half done."""

    def __init__(self, message: str, end: Exit | None) -> None:
        super().__init__(message)
        self.exit = end  # None: it lives, and has closed its way back


class RemoteError(RuntimeError):
    """The function raised what cannot be sent; its type and its words are here."""


class ResultNotSent(RuntimeError):
    """The function has returned, and its result cannot be sent."""


class WorkerPool:
    """Python processes that call functions, and are kept for the next call.

    They live while somebody is inside `async with pool`; the last to leave ends them.
    Each `trio.run` has workers of its own, up to `workers` at a time. A call outside
    of any block has a worker for itself.

    A worker finds functions by module and name, and keeps what they leave behind:
    modules, their globals, threads and children, until it ends. A worker is ended by
    TERM to it and all its descendants, and by KILL after `grace_seconds`.
    """

    def __init__(
        self, *, workers: int = 16, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        check_number("WorkerPool(workers=…)", workers)
        check_number("WorkerPool(grace_seconds=…)", grace_seconds, least=0)
        self.grace_seconds = grace_seconds
        self._workers = workers
        self._here: trio.lowlevel.RunVar[_Shared | None] = trio.lowlevel.RunVar(
            "trioagent workers", None
        )

    async def __aenter__(self) -> Self:
        check_platform()
        if getattr(sys.modules["__main__"], "loading_main", False):
            raise RuntimeError(
                "a worker is loading your program, and that begins to run again: put"
                " what starts it below `if __name__ == '__main__':`"
            )
        await trio.lowlevel.checkpoint()
        shared = self._here.get()
        if shared is None:
            shared = _Shared(self._workers)
            self._here.set(shared)
        shared.users += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        """The last one ends the workers; when this returns, they are gone."""
        shared = self._here.get()
        assert shared is not None
        shared.users -= 1
        last = not shared.users
        if last:  # before the first await: whoever comes now makes a new one
            self._here.set(None)
        bound = self.grace_seconds + OVERRUN_SECONDS
        with trio.move_on_after(bound, shield=True):
            if last:
                async with trio.open_nursery() as nursery:
                    for worker in shared.idle:
                        nursery.start_soon(worker.process.stop)
            await trio.lowlevel.checkpoint()

    async def call(
        self,
        module: str,
        qualname: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function in a worker; an async one runs there on a trio of its own.

        Waits its turn among `workers`. Cancelled, it ends the worker, and waits until
        that is gone with everything it has started.

        Raises:
            ToolError: no worker could be started, or it cannot reach the function, or
                the arguments cannot be sent: nothing has happened.
            WorkerDied: the worker ended in the middle of the call.
            RemoteError: the function raised what cannot be sent.
            ResultNotSent: it has returned what cannot be sent.
            Exception: what the function raised.
        """
        try:
            payload = pickle.dumps((tuple(args), dict(kwargs or {})))
        except Exception as error:
            problem = f"its arguments cannot be sent: {error}"
            raise ToolError(f"{module}.{qualname}: {problem}") from error
        name = f"{module}.{qualname}"
        async with self:
            shared = self._here.get()
            assert shared is not None
            async with shared.slots:
                worker = await shared.take() or await _Worker.start(self.grace_seconds)
                try:
                    answer = await worker.ask(name, (module, qualname, payload))
                except BaseException:
                    await worker.process.stop()  # noqa: ASYNC102 - has its own shield
                    raise
                shared.idle.append(worker)
        return _open_answer(name, answer)


shared_pool = WorkerPool()  # of `@tool(isolate="process")`


class _Shared:
    """What one `trio.run` has of a pool."""

    def __init__(self, workers: int) -> None:
        self.users = 0
        self.idle: list[_Worker] = []  # the last one is the warmest
        self.slots = trio.Semaphore(workers)

    async def take(self) -> _Worker | None:
        """An idle worker that lives."""
        while self.idle:
            worker = self.idle.pop()
            if worker.lives:
                return worker
            await worker.process.stop()
        return None


class _Worker:
    def __init__(self, process: Supervised) -> None:
        self.process = process
        self._first = _worker.frame(_setup())  # goes with the first call

    @classmethod
    async def start(cls, grace: float) -> Self:
        argv = [sys.executable, "-P", _worker.__file__]
        try:
            process = await Supervised.start(argv, grace_seconds=grace)
        except (OSError, RuntimeError) as error:
            raise ToolError(f"no worker could be started: {error}") from error
        return cls(process)

    @property
    def lives(self) -> bool:
        """Whether its way back is open: at its end the kernel closes that first."""
        stdout = self.process.stdout
        assert isinstance(stdout, trio.lowlevel.FdStream)
        try:
            os.read(stdout.fileno(), 1)
        except BlockingIOError:
            return True
        return False

    async def ask(self, name: str, call: _worker.Call) -> _worker.Answer:
        """Have one call done. Raises WorkerDied."""
        message, self._first = self._first + _worker.frame(call), b""
        try:
            await self.process.stdin.send_all(message)
            size = int.from_bytes(await self._read(_worker.LENGTH), "big")
            answer: _worker.Answer = pickle.loads(await self._read(size))
            return answer
        except _GONE:
            pass
        with trio.move_on_after(DEATH_SECONDS):
            await self.process.wait()
        how = self.process.exit or "it lives, but has closed its way back"
        message_ = f"{name}: its worker ended in the middle of the call: {how}"
        raise WorkerDied(message_, self.process.exit)

    async def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            part = await self.process.stdout.receive_some(size - len(read))
            if not part:
                raise EOFError
            read += part
        return bytes(read)


def _setup() -> _worker.Setup:
    """What a worker has to know of this program."""
    main = sys.modules["__main__"]
    # Under this name workers know it: what they send of it is found here, too.
    sys.modules.setdefault(_worker.MAIN_HERE, main)
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    return (
        [os.path.abspath(entry) for entry in sys.path],
        spec.name if spec else None,
        os.path.abspath(path) if path else None,
    )


def _open_answer(name: str, answer: _worker.Answer) -> Any:
    kind, pickled, words, trace = answer
    if kind == "unreachable":
        raise ToolError(f"{name} cannot be called in a worker: {words}", fatal=True)
    try:
        opened = pickle.loads(pickled) if pickled else None
    except Exception as error:  # noqa: BLE001 - a class may do anything
        if kind == "value":
            words = f"{type(error).__name__}: {error}"
        opened, kind = None, "unsendable" if kind == "value" else kind
    if kind == "unsendable":
        raise ResultNotSent(
            f"{name} has returned, but its result cannot be sent: {words}"
        )
    if kind == "raised":
        if not isinstance(opened, Exception):
            opened = RemoteError(words)
        opened.add_note(f"In a worker:\n{trace}")
        raise opened
    return opened


def place_of(fn: Callable[..., Any]) -> tuple[str, str]:
    """The module and the name by which a worker finds `fn`.

    Raises TypeError, with a remedy, where it could not.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not (module and name):
        raise TypeError(f"a worker cannot find {fn!r} by its name: {REMEDY}")
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if "<lambda>" in name else f"{name}, made in a function,"
        raise TypeError(f"a worker cannot import {kind}: {REMEDY}")
    if inspect.ismethod(fn) and not isinstance(fn.__self__, type):
        raise TypeError(f"a worker does not have the object of {name}: {REMEDY}")
    if module == "__main__":
        main = sys.modules[module]
        if not (getattr(main, "__spec__", None) or os.path.isfile(_file_of(main))):
            raise TypeError(
                f"a worker cannot import {name} from a session without a file: {REMEDY}"
            )
    return module, name


def _file_of(module: Any) -> str:
    return getattr(module, "__file__", None) or ""


def isolated(
    fn: Callable[..., Any], name: str, isolate: str
) -> tuple[Callable[..., Awaitable[Any]], WorkerPool]:
    """What `@tool(isolate="process")` runs in place of `fn`, and what that needs."""
    if isolate != "process":
        raise ValueError(f'@tool {name}: isolate takes "process", not {isolate!r}')
    try:
        module, qualname = place_of(fn)
    except TypeError as error:
        raise TypeError(f"@tool {name}: {error}") from None

    async def call_in_worker(*args: Any, **kwargs: Any) -> Any:
        if _found(module, qualname) != fn:
            raise ToolError(
                f"{module}.{qualname}, all that a worker can find, is not what the tool"
                f" {name} was made from: {REMEDY}",
                fatal=True,
            )
        portable = {key: _portable(value) for key, value in kwargs.items()}
        try:
            return await shared_pool.call(module, qualname, args, portable)
        except ResultNotSent as error:
            return error  # it has happened all the same, and only cannot be shown

    call_in_worker.isolated = fn  # type: ignore[attr-defined]
    return call_in_worker, shared_pool


def _found(module: str, qualname: str) -> Any:
    try:
        return _worker.find(module, qualname)
    except (ImportError, AttributeError):
        return None


def _portable(value: Any) -> Any:
    """A ToolContext that can be sent; anything else as it is."""
    if not isinstance(value, ToolContext):
        return value
    deadline = time.monotonic() + value.remaining()  # one clock for all processes
    return dataclasses.replace(
        value,
        remaining=partial(_time_until, deadline),
        cancel=partial(_refuse, "cancel"),
        show=partial(_refuse, "show"),
    )


def _time_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _refuse(what: str, *_: object) -> NoReturn:
    raise RuntimeError(
        f"ToolContext.{what} does not reach out of a worker process: return what there"
        " is to say, or run this tool without isolate"
    )
