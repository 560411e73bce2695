"""`trioagent run`: one run of an agent, watched on the terminal and stopped from it."""

from __future__ import annotations

import dataclasses
import math
import os
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
    Agent,
    Limits,
    Model,
    Outcome,
    Run,
    Status,
    TextDelta,
    max_tokens_used,
)
from trioagent.models import find_model
from trioagent.observe.console import LiveView, RunTree, open_console, report

from ._options import UsageError, load

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


def main(options: Namespace) -> int:
    """Run the agent that the options describe, and return the exit code."""
    with _own_stdout() if options.json else nullcontext(1) as stdout:
        agent = _agent(options)
        prompt = _prompt(options.prompt)
        outcome = trio.run(_Session(options, stdout).carry, agent, prompt)
        if options.json:
            _write_all(stdout, as_json(outcome) + b"\n")
        open_console(sys.stderr).print(report(outcome))
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
def _own_stdout() -> Iterator[int]:
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


def _prompt(text: str) -> str:
    prompt = sys.stdin.read() if text == "-" else text
    if not prompt.strip():
        raise UsageError("PROMPT: there is nothing to ask; give text, or - for stdin")
    return prompt


def _agent(options: Namespace) -> Agent:
    """The agent to run. Nothing has been started when this raises `UsageError`."""
    given: dict[str, Any] = {}
    if options.model or not options.agent:
        given["model"] = _model(options.model or os.environ.get("TRIOAGENT_MODEL"))
    if options.instructions is not None:
        given["instructions"] = options.instructions
    tools = [tool for place in options.tools for tool in _tools(place)]
    try:
        if not options.agent:
            return Agent(**given, tools=tools)
        agent = load("--agent", options.agent)
        if not isinstance(agent, Agent):
            raise UsageError(f"--agent {options.agent}: that is no Agent: {agent!r}")
        return dataclasses.replace(agent, tools=(*agent.tools, *tools), **given)
    except (TypeError, ValueError) as error:  # all that is left to be wrong
        raise UsageError(f"--tools: {error}") from error


def _model(text: str | None) -> Model:
    if not text:
        raise UsageError(
            "--model: no model to ask; give one, such as -m openai:gpt-5.5 "
            "or -m local, or set TRIOAGENT_MODEL"
        )
    try:
        return find_model(text)
    except ValueError as error:
        raise UsageError(f"--model {text}: {error}") from error


def _tools(place: str) -> list[Any]:
    found = load("--tools", place)
    tools = list(found) if isinstance(found, (list, tuple)) else [found]
    if strangers := [tool for tool in tools if not callable(tool)]:
        raise UsageError(f"--tools {place}: that is no tool: {strangers[0]!r}")
    return tools


class _Session:
    """A run at a terminal: what it shows there, and how signals end it."""

    def __init__(self, options: Namespace, stdout: int) -> None:
        self._stdout = stdout
        self._limits = Limits(
            **{
                name: value
                for name, value in (
                    ("seconds", options.deadline),
                    ("turns", options.turns),
                )
                if value is not None
            }
        )
        self._stop_when = [max_tokens_used(options.tokens)] if options.tokens else []
        live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        # On a terminal the text and the tree must take turns: one console for both.
        self._text_in_view = live and not options.json and sys.stdout.isatty()
        self._plain_text = not options.json and not self._text_in_view
        self._live = live
        self._writing = trio.CancelScope()

    async def carry(self, agent: Agent, prompt: str) -> Outcome:
        """Run to the end; the outcome is there when all text has been taken as well."""
        opened = agent.open(prompt, limits=self._limits, stop_when=self._stop_when)
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with _checked(opened) as run:
                view = self._view(run)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._obey, signals, run, view)
                    await self._watch(run, view)
                    nursery.cancel_scope.cancel(reason="the run is over")
        return run.outcome

    def _view(self, run: Run) -> LiveView | None:
        if not self._live:
            return None
        file = sys.stdout if self._text_in_view else sys.stderr
        tree = RunTree(run.remaining)
        return LiveView(open_console(file), tree, text=self._text_in_view)

    async def _watch(self, run: Run, view: LiveView | None) -> None:
        send, receive = trio.open_memory_channel[str](math.inf)
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

    async def _write(self, receive: trio.MemoryReceiveChannel[str], run: Run) -> None:
        """Text to stdout, in a thread: a slow reader must not hold up a stop."""
        last = "\n"
        with self._writing:
            try:
                async for text in receive:
                    last = text or last
                    await _to_thread(_write_all, self._stdout, text.encode())
                if not last.endswith("\n"):
                    await _to_thread(_write_all, self._stdout, b"\n")
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


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
