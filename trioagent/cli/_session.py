"""A run at a terminal: what it shows there, how signals end it, what it comes to."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any

import msgspec
import trio

from trioagent import (
    Limits,
    ModelReplied,
    Outcome,
    Run,
    Status,
    TextDelta,
    max_tokens_used,
)
from trioagent.observe.console import LiveView, open_console, print_steps, report
from trioagent.observe.tree import RunTree

from ._advice import next_steps
from ._agents import named
from ._options import UsageError

EXIT_CODES = {
    Status.COMPLETED: 0,
    Status.FAILED: 1,
    Status.INTERRUPTED: 1,
    Status.STOPPED: 4,
    Status.MAX_TURNS: 4,
    Status.TIMED_OUT: 4,
    Status.PAUSED: 4,
    Status.CANCELLED: 130,
}
UNCERTAIN = 5  # wins over the others
FRAME_SECONDS = 0.1
LAST_WORDS_SECONDS = 0.5  # after "stop now", for a reader that is slow to take the text
NOT_KEPT = "It was not kept, so it cannot be settled or resumed: --keep keeps a run."


def finish(run: Run, options: Namespace, stdout: int, where: str | None) -> int:
    """Tell how a run ended and what to do now, and return the exit code.

    `where` are the words that lead to its journal; None where it has none.
    """
    outcome = run.outcome
    if options.json:
        write_all(stdout, as_json(outcome) + b"\n")
    console = open_console(sys.stderr)
    console.print(report(outcome))
    if where is not None:
        how = shlex.join(named(options))
        print_steps(console, next_steps(run.state, how=how, where=where))
    elif outcome.uncertain:
        console.print(NOT_KEPT)
    return UNCERTAIN if outcome.uncertain else EXIT_CODES[outcome.status]


def as_json(outcome: Outcome) -> bytes:
    """The outcome as `--json` prints it. `null` is unknown, `0` is none."""
    usage = {
        name: getattr(outcome.usage, name) for name in outcome.usage.__struct_fields__
    }
    shown = {
        "run_id": outcome.run_id,
        "status": outcome.status,
        "stop_reason": outcome.stop_reason,
        "output": outcome.output,
        "usage": usage,
        "turns": outcome.turns,
        "tools": outcome.tools,
        "uncertain": outcome.uncertain,
        "cleanup": outcome.cleanup,
        "resumable": outcome.resumable,
    }
    return msgspec.json.encode(shown, enc_hook=str)


@contextmanager
def own_stdout() -> Iterator[int]:
    """A descriptor of stdout for us alone. What others print there goes to stderr."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield own
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)


def bounds(options: Namespace) -> dict[str, Any]:
    """The limits of the command line, as a run takes them."""
    given = {"seconds": options.deadline, "turns": options.turns}
    limits = Limits(**{n: v for n, v in given.items() if v is not None})
    stop_when = [max_tokens_used(options.tokens)] if options.tokens else []
    return {"limits": limits, "stop_when": stop_when}


class Session:
    """A run at a terminal: what it shows there, and how signals end it."""

    def __init__(self, options: Namespace, stdout: int) -> None:
        self._stdout = stdout
        live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        # On a terminal the text and the tree must take turns: one console for both.
        self._text_in_view = live and not options.json and sys.stdout.isatty()
        self._plain_text = not options.json and not self._text_in_view
        self._live = live
        self._writing = trio.CancelScope()

    async def carry(self, opened: AbstractAsyncContextManager[Run]) -> Run:
        """Run to the end; it has ended when all text has been taken as well."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with _checked(opened) as run:
                view = self._view(run)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._obey, signals, run, view)
                    await self._watch(run, view)
                    nursery.cancel_scope.cancel(reason="the run is over")
        return run

    def _view(self, run: Run) -> LiveView | None:
        if not self._live:
            return None
        file = sys.stdout if self._text_in_view else sys.stderr
        tree = RunTree(run.remaining)
        if run.state.started:  # it is resumed: that will not be told again
            tree.see(run.state.started)
        return LiveView(open_console(file), tree, text=self._text_in_view)

    async def _watch(self, run: Run, view: LiveView | None) -> None:
        send, receive = trio.open_memory_channel[str | None](math.inf)
        async with trio.open_nursery() as writer:
            writer.start_soon(self._write, receive, run)
            with send, view or nullcontext():
                async with trio.open_nursery() as animator:
                    if view:
                        animator.start_soon(_animate, view)
                    async for event in run:
                        if view:
                            view.see(event)
                        if self._plain_text and isinstance(event, TextDelta):
                            send.send_nowait(event.text)
                        elif self._plain_text and isinstance(event, ModelReplied):
                            send.send_nowait(None)
                    animator.cancel_scope.cancel(reason="the run is over")

    async def _obey(
        self, signals: AsyncIterator[int], run: Run, view: LiveView | None
    ) -> None:
        """Ctrl-C: end after this turn. Ctrl-C again, or SIGTERM: end now."""
        async for number in signals:
            if number == signal.SIGINT and run.finish_turn("Ctrl-C"):
                said = "ends after this turn; Ctrl-C again: now"
            else:
                run.cancel(signal.Signals(number).name)
                self._writing.deadline = trio.current_time() + LAST_WORDS_SECONDS
                said = "ending"
            if view:
                view.tree.say(said)
            else:
                sys.stderr.write(f"trioagent: {said}\n")

    async def _write(
        self, receive: trio.MemoryReceiveChannel[str | None], run: Run
    ) -> None:
        """Text to stdout, in a thread: a slow reader must not hold up a stop."""
        last = "\n"
        with self._writing:
            try:
                async for text in receive:
                    if text is None:  # a reply is over, and so is its line
                        text = "" if last.endswith("\n") else "\n"
                    last = text or last
                    await _to_thread(write_all, self._stdout, text.encode())
                if not last.endswith("\n"):
                    await _to_thread(write_all, self._stdout, b"\n")
            except OSError:  # nobody reads any more, so nobody waits for the answer
                run.cancel("stdout was closed")


@asynccontextmanager
async def _checked(opened: AbstractAsyncContextManager[Run]) -> AsyncIterator[Run]:
    """Enter a run. What an agent says about itself before it starts is bad usage."""
    async with AsyncExitStack() as stack:
        try:
            run = await stack.enter_async_context(opened)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the agent cannot run: {error}") from error
        yield run


async def _animate(view: LiveView) -> None:
    while True:
        view.refresh()
        await trio.sleep(FRAME_SECONDS)


_to_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)


def write_all(descriptor: int, data: bytes) -> None:
    """Write it past whatever buffers text."""
    while data:
        data = data[os.write(descriptor, data) :]
