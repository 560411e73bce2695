"""A run on the terminal: a tree that moves while it runs, and a report at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, ClassVar, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from trioagent._events import (
    USAGE_FIELDS,
    AnyEvent,
    ApprovalAsked,
    Child,
    CleanupOverrun,
    Effect,
    EffectJudged,
    Event,
    KeptEvent,
    ModelAsked,
    ModelCut,
    ModelReplied,
    ReplyOpened,
    RunEnded,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolStarted,
    Usage,
    Verdict,
)
from trioagent._outcome import Outcome, ToolReport

from .log import content, facts

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
# Of an event on a line: what needs no name, what is not worth saying, what comes last.
NAMELESS = {"call", "tool_name", "effect", "effect_status", "status", "stop_reason"}
NAMELESS |= {"verdict", "code", "finish_reason"}
UNSAID = {"event", "at", "created", "source", "seconds", *USAGE_FIELDS}
USUAL: dict[str, Any] = {"attempt": 1, "billed": "known", "failed": False}
USUAL |= {"scope": "run", "stop_reason": None}
IDS = ("request_id", "response_id")
ROW_WIDTH = 110  # of a row whose end is set to the right
TURNS_SHOWN = 3
TEXT_ROWS = 6  # of a line of text that is still being written

# What a terminal would obey: the text is the model's, the screen is not.
UNPRINTABLE = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")})


def printable(text: str) -> str:
    """The text without characters that command a terminal."""
    return text.translate(UNPRINTABLE)


def one_line(text: str, most: int = 400) -> str:
    """The text so that it can stand in a row, and cannot command a terminal."""
    return " ".join(printable(text[: 2 * most]).split())[:most]


def local_time(created: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A moment of the journal by the clock on the wall here."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime(form)
    except ValueError:
        return one_line(created, 20)


def open_console(file: IO[str], *, width: int | None = None) -> Console:
    """A console that prints to `file`; with no colour where NO_COLOR is set."""
    return Console(file=file, width=width, highlight=False, soft_wrap=False)


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
        self._turns: dict[int, dict[int, _Line]] = {}  # by position; REPLY is first

    @property
    def title(self) -> str:
        """Which run it is; empty until it begins."""
        return self._title

    def see(self, event: AnyEvent) -> None:
        """Take in what happened."""
        if change := self._CHANGES.get(type(event)):
            change(self, event)

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
        if (before := len(self._turns) - TURNS_SHOWN) > 0:
            tree.add(Text(f"… {before} turns before", "dim"))
        for number, turn in list(self._turns.items())[-TURNS_SHOWN:]:
            branch = tree.add(f"turn {number}")
            for _, line in sorted(turn.items()):
                branch.add(line.text(now))
        return tree

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
        RunEnded: _ended,
    }


class LiveView:
    """A `RunTree` that moves at the bottom of a terminal. Call `refresh` to move it.

    With `text=True` the answer is printed above it as it comes: a terminal cannot show
    an unfinished line above something that moves, so that one is part of what moves.
    """

    def __init__(self, console: Console, tree: RunTree, *, text: bool) -> None:
        self.tree = tree
        self._console = console
        self._shows_text = text
        self._line = ""  # of the answer, as far as it came
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._print_line()
        self.refresh()
        self._live.stop()

    def see(self, event: AnyEvent) -> None:
        """Take in what happened; it is on the screen after the next `refresh`."""
        self.tree.see(event)
        if not self._shows_text:
            return
        if isinstance(event, TextDelta):
            *lines, self._line = (self._line + printable(event.text)).split("\n")
            for line in lines:
                self._console.print(Text(line))
        elif isinstance(event, ModelReplied | ModelCut):
            self._print_line()

    def refresh(self) -> None:
        """Draw the present moment, once there is a run."""
        if not self.tree.title:
            return
        rows = Text(self._line).wrap(self._console, self._console.width)[-TEXT_ROWS:]
        gap = [Text()] if self._line else []
        self._live.update(Group(*rows, *gap, self.tree), refresh=True)

    def _print_line(self) -> None:
        if self._line:
            self._console.print(Text(self._line))
            self._line = ""


def report(outcome: Outcome) -> RenderableType:
    """How a run ended, what may have happened, and what was still going."""
    stop = outcome.stop
    by_user = stop is not None and stop.source == "user" and bool(stop.detail)
    parts = [
        str(outcome.status),
        f"{stop} ({printable(stop.detail)})" if stop and by_user else str(stop or ""),
        f"{outcome.turns} turn{'' if outcome.turns == 1 else 's'}",
        tokens(outcome.usage),
        "the provider may bill more" if outcome.billed == "unknown" else "",
    ]
    style = "bold green" if outcome.status == "completed" else "bold yellow"
    line = Text(printable(" · ".join(part for part in parts if part)), style)
    rows: list[RenderableType] = [line]
    if stop and stop.detail and stop.source not in ("condition", "user"):
        rows.append(Text(printable(stop.detail)))
    if outcome.uncertain:
        rows.append(Text("May or may not have happened; look before it is repeated:"))
        rows.append(tool_table(outcome.uncertain))
    if outcome.cleanup:
        rows.append(Text("Was still going at the stop:"))
        rows.append(cleanup_table(outcome.cleanup))
    return Group(*rows)


def print_steps(console: Console, steps: Iterable[tuple[str, Sequence[str]]]) -> None:
    """What to do next: sentences, and commands under them that are copied whole."""
    for sentence, commands in steps:
        console.print(Text(printable(sentence)))
        for command in commands:
            console.print(Text(f"  {printable(command)}", "bold"), soft_wrap=True)


class Row:
    """A line with an end set to the right: what has no room is cut before it."""

    def __init__(self, left: Text, right: Text | str = "") -> None:
        self._left = left
        self._right = Text(right) if isinstance(right, str) else right

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Draw it as wide as there is room."""
        width = min(options.max_width, ROW_WIDTH)
        room = width - self._right.cell_len - (2 if self._right else 0)
        left = self._left.copy()
        left.truncate(max(room, 1), overflow="ellipsis", pad=bool(self._right))
        line = Text(no_wrap=True, overflow="ellipsis").append_text(left)
        if self._right:
            line.append("  ").append_text(self._right)
        yield line


def tool_table(tools: Iterable[ToolReport]) -> Table:
    """What became of each call."""
    table = _table("tool", "turn", "ended", "effect")
    for tool in tools:
        effect = str(tool.effect_status)
        style = MARKS["uncertain"][1] if effect == "uncertain" else ""
        name = printable(tool.name)
        table.add_row(name, str(tool.turn), tool.ended, Text(effect, style))
    return table


def cleanup_table(cleanup: Iterable[Child]) -> Table:
    """What was still going at the stop, and how it ended."""
    table = _table("task", "ended", "after", "stood at")
    for child in cleanup:
        seconds = f"{child.seconds:.3f} s"
        table.add_row(printable(child.name), child.ended, seconds, child.where)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 2), header_style="dim")
    for column in columns:
        table.add_column(column)
    return table


def tokens(usage: Usage) -> str:
    """What a reply or a run took, where that is known."""
    if usage.total_tokens is None:
        return ""
    return f"tokens: {usage.input_tokens or 0} in, {usage.output_tokens or 0} out"


def short_number(number: float) -> str:
    """`950`, `12.3k` or `1.2M`."""
    for least, size, unit in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if number >= least:
            return f"{number / size:.1f}{unit}"
    return f"{number:g}"


def event_row(event: KeptEvent) -> Text:
    """An event on one line: what happened, what somebody said, whom to ask about it."""
    told, said = facts(event), content(event)
    unsaid = UNSAID | ({"turn"} if "call" in told else set())  # it is part of the call
    words: list[str] = []
    for name, value in told.items():
        if name not in unsaid | {*IDS} and USUAL.get(name, told) != value:
            words.append((f"{name}=" if name not in NAMELESS else "") + _word(value))
    spent = getattr(getattr(event, "reply", event), "usage", None)
    words += [tokens(spent)] if spent else []
    for name, text in said.items():
        words.append((f"{name}=" if len(said) > 1 else "") + _quoted(str(text)))
    words += [f"{name}={_word(told[name])}" for name in IDS if name in told]
    line = Text(f"{event.at:8.3f}  ", "dim")
    line.append(f"{type(event).__name__:<19} ", "not dim bold")
    return line.append(" ".join(word for word in words if word), "not dim")


def _word(value: Any) -> str:
    text = ",".join(value) if isinstance(value, tuple | list) else str(value)
    return one_line(text)


def _quoted(text: str) -> str:
    said = one_line(text, 200)
    return said if said.startswith(("{", "[")) else f'"{said}"'
