"""What a run is doing, as a tree that moves while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from rich.tree import Tree

from trioagent._events import (
    AnyEvent,
    ApprovalAsked,
    CleanupOverrun,
    Effect,
    EffectJudged,
    Event,
    FromChild,
    ModelAsked,
    ModelCut,
    ModelReplied,
    ReplyOpened,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolOutput,
    ToolStarted,
    Verdict,
)

from ._text import one_line, printable, tokens

MARKS = {  # state of a line: its mark and its colour
    "waiting": ("○", "cyan"),
    "answering": ("●", "cyan"),
    "running": ("●", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "cut": ("✗", "yellow"),
    "uncertain": ("?", "bold yellow"),
    "not run": ("-", "dim"),
    "hangs": ("!", "bold red"),
}
JUDGED = {
    Verdict.HAPPENED: "done",
    Verdict.DID_NOT_HAPPEN: "not run",
    Verdict.UNDONE: "done",
    Verdict.UNKNOWN: "uncertain",
    Verdict.TOLD: "uncertain",
}
REPLY = -1  # its place among the calls of a turn
TURNS_SHOWN = 3


@dataclass
class _Line:
    """A reply or a tool in the tree."""

    what: str
    began: float
    state: str = "waiting"
    note: str = ""
    writes: bool = False
    seconds: float | None = None  # how long it took, once it is over

    def end(self, now: float, state: str, note: str = "") -> None:
        self.seconds, self.state = now - self.began, state
        self.note = note or self.note

    def text(self, now: float) -> Text:
        mark, style = MARKS[self.state]
        seconds = now - self.began if self.seconds is None else self.seconds
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{mark} ", style)
        text.append(f"{printable(self.what):<22.22} {seconds:6.1f} s  ")
        text.append(self.state, style)
        return text.append(f"  {printable(self.note)}" if self.note else "", "dim")


class RunTree:
    """What a run is doing, from its events as they pass. Print it to see it.

    `remaining` says how many seconds the run has left.
    """

    def __init__(
        self,
        remaining: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._remaining = remaining
        self._clock = clock
        self._title = ""
        self._state = ""
        self._children: dict[str, RunTree] = {}  # of runs that work on a call, by it
        self._turns: dict[int, dict[int, _Line]] = {}  # by position; REPLY is first

    @property
    def title(self) -> str:
        """Which run it is; empty until it begins."""
        return self._title

    def see(self, event: AnyEvent) -> None:
        """Take in what happened."""
        if change := self._CHANGES.get(type(event)):
            change(self, event)

    def _from_child(self, event: FromChild) -> None:
        """What a run does that works on a call is shown below that call."""
        tree = self
        # Its run is named after the calls that lead to it: RUN_ID-1.0-2.1
        for call in event.run_id.rsplit("-", len(event.path))[1:]:
            child = RunTree(lambda: math.inf, self._clock)
            tree = tree._children.setdefault(call, child)
        tree.see(event.event)

    def _output(self, event: ToolOutput) -> None:
        line = self._turns[event.call.turn][event.call.position]
        line.note = one_line(event.text.strip().rpartition("\n")[2]) or line.note

    def say(self, state: str) -> None:
        """Show how the run stands, such as "stopping", beside the time left."""
        self._state = state

    def __rich__(self) -> Tree:
        now, left = self._clock(), self._remaining()
        standing = [f"{left:.1f} s left"] if math.isfinite(left) else []
        standing += [self._state] if self._state else []
        title = Text(self._title or "run", "bold", no_wrap=True, overflow="ellipsis")
        title.append("\n" + " · ".join(standing), "not bold cyan")
        tree = Tree(title, guide_style="dim")
        self.fill(tree, now)
        return tree

    def fill(self, tree: Tree, now: float) -> None:
        """Hang the turns into a tree."""
        if (before := len(self._turns) - TURNS_SHOWN) > 0:
            tree.add(Text(f"… {before} turns before", "dim"))
        for number, turn in list(self._turns.items())[-TURNS_SHOWN:]:
            branch = tree.add(f"turn {number}")
            for position, line in sorted(turn.items()):
                node = branch.add(line.text(now))
                if child := self._children.get(f"{number}.{position}"):
                    child.fill(node, now)

    def _started(self, event: RunStarted) -> None:
        parts = (event.run_id[:12], event.agent, event.model)
        self._title = printable(" · ".join(part for part in parts if part))

    def _asked(self, event: ModelAsked) -> None:
        self._turns[event.turn] = {REPLY: _Line("reply", self._clock())}

    def _opened(self, _: ReplyOpened) -> None:
        self._last_reply().state = "answering"

    def _replied(self, event: ModelReplied) -> None:
        note = event.rejected or tokens(event.reply.usage)
        self._last_reply().end(self._clock(), "done", note)

    def _cut(self, event: ModelCut) -> None:
        self._last_reply().end(self._clock(), "cut", event.code)

    def _tool_started(self, event: ToolStarted) -> None:
        call = event.call
        turn = self._turns.setdefault(call.turn, {})  # resumed: it was asked for before
        turn[call.position] = _Line(
            event.tool or call.name,
            self._clock(),
            "running",
            f"effect: {event.effect}",
            writes=event.effect is not Effect.READ,
        )

    def _tool_over(self, event: ToolEnded | ToolLost | ToolNotRun) -> None:
        call, now = event.call, self._clock()
        turn = self._turns.setdefault(call.turn, {})
        line = turn.setdefault(call.position, _Line(call.name, now))
        if isinstance(event, ToolEnded):
            line.end(now, "failed" if event.failed else "done")
        elif isinstance(event, ToolNotRun):
            line.end(now, "not run", event.code)
        else:
            line.end(now, "uncertain" if line.writes else "cut", event.code)

    def _approval_asked(self, event: ApprovalAsked) -> None:
        line = _Line(event.call.name, self._clock(), note="for approval")
        turn = self._turns.setdefault(event.call.turn, {})
        turn.setdefault(event.call.position, line)

    def _judged(self, event: EffectJudged) -> None:
        call, now = event.call, self._clock()
        turn = self._turns.setdefault(call.turn, {})
        line = turn.setdefault(call.position, _Line(call.name, now))
        line.end(now, JUDGED[event.verdict], f"{event.by}: {event.verdict}")

    def _overrun(self, event: CleanupOverrun) -> None:
        for line in self._lines():
            if line.seconds is None and event.name.endswith(line.what):
                line.state, line.note = "hangs", event.where
        self.say(f"{event.name} holds the run open since {event.seconds:.1f} s")

    def _ended(self, event: RunEnded) -> None:
        self._remaining = lambda: math.inf
        self.say(f"{event.status}" + (f": {event.stop}" if event.stop else ""))
        for line in self._lines():
            if line.seconds is None:
                # A write that began and has no end may have happened.
                line.end(self._clock(), "uncertain" if line.writes else "cut")

    def _last_reply(self) -> _Line:
        return self._turns[max(self._turns)][REPLY]

    def _lines(self) -> Iterable[_Line]:
        for turn in self._turns.values():
            yield from turn.values()

    _CHANGES: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {
        RunStarted: _started,
        ModelAsked: _asked,
        ReplyOpened: _opened,
        ModelReplied: _replied,
        ModelCut: _cut,
        ToolStarted: _tool_started,
        ToolEnded: _tool_over,
        ToolLost: _tool_over,
        ToolNotRun: _tool_over,
        ApprovalAsked: _approval_asked,
        EffectJudged: _judged,
        CleanupOverrun: _overrun,
        FromChild: _from_child,
        ToolOutput: _output,
        RunEnded: _ended,
    }
