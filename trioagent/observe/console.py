"""A run on the terminal: a tree that moves while it runs, and a report at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trioagent._events import (
    USAGE_FIELDS,
    AnyEvent,
    Child,
    KeptEvent,
    ModelCut,
    ModelReplied,
    TextDelta,
)
from trioagent._outcome import Outcome, ToolReport

from ._text import one_line, printable, tokens
from .log import content, facts
from .tree import MARKS, RunTree

# Of an event on a line: what needs no name, what is not worth saying, what comes last.
NAMELESS = {"call", "tool_name", "effect", "effect_status", "status", "stop_reason"}
NAMELESS |= {"verdict", "code", "finish_reason"}
UNSAID = {"event", "at", "created", "source", "seconds", *USAGE_FIELDS}
USUAL: dict[str, Any] = {"attempt": 1, "billed": "known", "failed": False}
USUAL |= {"scope": "run", "stop_reason": None}
IDS = ("request_id", "response_id")
ROW_WIDTH = 110  # of a row whose end is set to the right
TEXT_ROWS = 6  # of a line of text that is still being written


def open_console(file: IO[str], *, width: int | None = None) -> Console:
    """A console that prints to `file`; with no colour where NO_COLOR is set."""
    return Console(file=file, width=width, highlight=False, soft_wrap=False)


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
