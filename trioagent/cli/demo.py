"""`trioagent demo`: real runs of a real model are stopped; its server confirms it."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import trio

from trioagent import Agent, Limits, Outcome, Run, Status, TextDelta, ToolStarted, tool
from trioagent.models.local import LocalModel
from trioagent.observe._text import printable
from trioagent.observe.console import cleanup_table, open_console, tool_table
from trioagent.observe.tree import RunTree
from trioagent.testing import ScriptedModel, call

from ._options import UsageError

WIDTH = 80
ENOUGH_PIECES = 60  # of the streamed answer, before it is stopped
SECONDS = 1.5  # the deadline of the second run
IDLE_SECONDS = 2.0  # by then the server must have let go
PROMPT = "Tell me a very long story about a lighthouse keeper and the sea."
TOO_FAST = "  [red]The model was done before it could be stopped; try again.[/]"
BANK = """
  The bank, asked outside of the run, has {}.
  The run cannot know that, so it does not say that the payment was
  cancelled. It says: uncertain, look before you repeat it."""


def main(options: Namespace) -> int:
    """Play the three parts; 0 if the server confirms both stops."""
    try:
        # Without chance: a story that happens to be short could not be stopped.
        model = LocalModel(extra_body={"temperature": 0})
    except ValueError as error:
        raise UsageError(str(error)) from error
    return trio.run(_Demo(model).play)


class _Demo:
    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._console = open_console(sys.stdout)
        self._console.width = min(WIDTH, self._console.width)
        self._say = self._console.print

    async def play(self) -> int:
        began = trio.current_time()
        self._say(f"[bold]trioagent demo[/] on {self._model.name}, without a network\n")
        async with self._model:
            loaded = trio.current_time() - began
            address = self._model.address
            self._say(f"The model's server is up at {address}, after {loaded:.1f} s.")
            held = [await self._stop_half_way(), await self._run_into_the_deadline()]
        held.append(await self._server_is_gone(address))
        held.append(await self._cut_a_write())
        seconds = trio.current_time() - began
        said = "[green]All of it held.[/]" if all(held) else "[red]Not all held.[/]"
        self._say(f"\n{said} It took {seconds:.0f} s. Yours: trioagent run --help")
        return 0 if all(held) else 1

    async def _stop_half_way(self) -> bool:
        self._head("1. An answer, stopped half way", "run.cancel()")
        async with Agent(self._model).open(PROMPT) as run:
            slots = await self._read(run, pieces=ENOUGH_PIECES)
            asked = trio.current_time()
            run.cancel("seen enough")
        return await self._prove(run.outcome, Status.CANCELLED, asked, slots)

    async def _run_into_the_deadline(self) -> bool:
        self._head("2. A deadline cuts a reply", f"Limits(seconds={SECONDS:g})")
        limits = Limits(seconds=SECONDS)
        async with Agent(self._model, limits=limits).open(PROMPT) as run:
            deadline = trio.current_time() + SECONDS
            slots = await self._read(run)
        return await self._prove(run.outcome, Status.TIMED_OUT, deadline, slots)

    async def _server_is_gone(self, address: str) -> bool:
        """The last one to leave the model takes its server down; knock to see."""
        host, _, port = address.removeprefix("http://").partition(":")
        try:
            await (await trio.open_tcp_stream(host, int(port))).aclose()
        except OSError:
            self._say("\nNobody uses the model now: its server process is gone.")
            return True
        self._say("\n[red]The model's server still answers.[/]")
        return False

    async def _cut_a_write(self) -> bool:
        self._head("3. A read and a write, cut in the middle", "effect_status")
        self._say("  This part is scripted: both tool calls are written in the demo.\n")
        bank: list[str] = []

        @tool(effect="read")
        async def search_archive(query: str) -> str:
            """Search slowly."""
            await trio.sleep(60)
            return query

        @tool(effect="once", grace_seconds=0.3)
        async def pay(euros: int) -> str:
            """Pay at a bank that takes the order and never answers."""
            bank.append(f"an order of {euros} euros")
            await trio.sleep(60)
            return "paid"

        calls = [call("search_archive", query="sea"), call("pay", euros=40)]
        agent = Agent(ScriptedModel([calls]), name="demo", tools=[search_archive, pay])
        async with agent.open("Find it and pay for it.") as run:
            await self._watch_both(run)
            run.cancel("changed my mind")
        self._tell_effects(run.outcome, bank)
        effects = [str(report.effect_status) for report in run.outcome.tools]
        return effects == ["none", "uncertain"]

    async def _watch_both(self, run: Run) -> None:
        tree, begun = RunTree(run.remaining), 0
        async for event in run:
            tree.see(event)
            begun += isinstance(event, ToolStarted)
            if begun == 2:
                await trio.sleep(0.5)
                self._say("  Half a second into both calls:\n")
                self._say(tree)
                return

    def _tell_effects(self, outcome: Outcome, bank: list[str]) -> None:
        self._say(
            f"\n  run.cancel(), then: [bold]{outcome.status}: {outcome.stop_reason}[/]"
        )
        self._say("\n  What is certain about each call (outcome.tools):\n")
        self._say(tool_table(outcome.tools))
        self._say("\n  What was still going at the stop (outcome.cleanup):\n")
        self._say(cleanup_table(outcome.cleanup))
        self._say(BANK.format(" and ".join(bank)))

    async def _read(self, run: Run, pieces: int = sys.maxsize) -> str:
        """Print the answer as it comes; what the server said of its slots meanwhile."""
        page, slots, seen = _Page(self._say), "", 0
        async for event in run:
            if isinstance(event, TextDelta):
                page.write(printable(event.text))
                seen += 1
                slots = slots or (await self._slots() if seen == 5 else "")
                if seen == pieces:
                    break
        page.end()
        return slots

    async def _slots(self) -> str:
        slots = await self._model.slots()
        return " ".join("busy" if slot["is_processing"] else "idle" for slot in slots)

    async def _prove(
        self, outcome: Outcome, expected: Status, since: float, before: str
    ) -> bool:
        """Show how the run ended, and ask the server until it is idle."""
        ended = trio.current_time() - since
        after = await self._slots()
        with trio.move_on_after(IDLE_SECONDS) as patience:
            while "busy" in after:
                await trio.sleep(0.02)
                after = await self._slots()
        idle = trio.current_time() - since
        self._say(f"\n  while it answered   GET /slots says  [yellow]{before}[/]")
        self._say(
            f"  {ended * 1000:4.0f} ms later       the run ended    "
            f"[bold]{outcome.status}: {outcome.stop_reason}[/]"
        )
        self._say(
            f"  {idle * 1000:4.0f} ms later       GET /slots says  [green]{after}[/]"
        )
        if outcome.status is Status.COMPLETED:
            self._say(TOO_FAST)
        return (
            outcome.status is expected
            and "busy" in before
            and not patience.cancelled_caught
        )

    def _head(self, title: str, code: str) -> None:
        self._say(f"\n[bold cyan]{title}[/]  [dim]{code}[/]\n")


class _Page:
    """Text as it comes, word by word, broken into lines."""

    def __init__(self, say: Any) -> None:
        self._say = say
        self._word = ""
        self._column = 0

    def write(self, text: str) -> None:
        *words, self._word = (self._word + text).replace("\n", " ").split(" ")
        for word in words:
            self._print(word)

    def end(self) -> None:
        self._print(self._word)
        self._say()

    def _print(self, word: str) -> None:
        if not word:
            return
        if not self._column or self._column + len(word) > WIDTH - 6:
            self._say("\n  [dim]|[/]" if self._column else "  [dim]|[/]", end="")
            self._column = 0
        self._say(f" {word}", end="", markup=False, style="italic")
        self._column += len(word) + 1
