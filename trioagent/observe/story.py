"""Runs of a journal as people read them: a list, a story, their effects, each event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from trioagent._events import (
    ApprovalAsked,
    ApprovalGiven,
    CompensationStarted,
    Effect,
    EffectJudged,
    EffectStatus,
    Event,
    KeptEvent,
    ModelAsked,
    ModelCut,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolStarted,
    Usage,
    UserMessage,
    Verdict,
)
from trioagent._outcome import ResumeDecision
from trioagent._state import RunState

from ._text import local_time, one_line, short_number, tokens
from .console import Row, cleanup_table
from .log import kind
from .tree import MARKS

SAID = {
    Verdict.HAPPENED: "it happened",
    Verdict.DID_NOT_HAPPEN: "it did not happen",
    Verdict.UNDONE: "it was undone",
    Verdict.UNKNOWN: "nobody can tell",
    Verdict.TOLD: "unknown; the model is told so",
}


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list of runs."""

    run_id: str
    agent: str = ""
    model: str = ""
    status: str  # as its outcome; or running, or interrupted; or why it cannot be read
    stop_reason: str | None = None
    created: str = ""
    seconds: float = 0.0  # in which it was carried
    turns: int = 0
    usage: dict[str, int | float | None] = {}  # null is unknown
    billed: str = "unknown"
    uncertain: tuple[str, ...] = ()  # calls
    next: ResumeDecision  # resume, review, stop; or wait, where somebody carries it


class EffectRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the effect of one call that began."""

    run_id: str
    call: str  # turn.position
    tool: str
    arguments: str
    effect: Effect
    effect_status: EffectStatus
    key: str  # what the other side may know it by
    recovery: str  # how the tool can clear it up: reconcile, compensate
    attempts: int
    judged_by: str = ""
    verdict: str = ""
    result: str = ""


def place(call: ToolCall) -> str:
    """A call as people write it: `turn.position`."""
    return f"{call.turn}.{call.position}"


def effects_of(
    run_id: str, state: RunState, events: Iterable[KeptEvent]
) -> list[EffectRow]:
    """The calls of a run that may have done something to the world."""
    judged: dict[str, EffectJudged] = {}
    attempts: Counter[str] = Counter()
    for event in events:
        if isinstance(event, EffectJudged):
            judged[place(event.call)] = event
        elif isinstance(event, ToolStarted):
            attempts[place(event.call)] += 1
            judged.pop(place(event.call), None)
    rows: list[EffectRow] = []
    for turn in state.turns:
        for position, start in sorted(turn.starts.items()):
            if start.effect is Effect.READ:
                continue
            call, where = turn.tool_calls[position], place(start.call)
            found = judged.get(where)
            rows.append(
                EffectRow(
                    run_id=run_id,
                    call=where,
                    tool=start.tool or call.name,
                    arguments=call.arguments,
                    effect=start.effect,
                    effect_status=turn.effect_status(call),
                    key=start.key,
                    recovery=start.recovery,
                    attempts=attempts[where],
                    judged_by=found.by if found else "",
                    verdict=found.verdict if found else "",
                    result=found.content if found else "",
                )
            )
    return rows


def run_head(row: RunRow) -> list[Text]:
    """Which run it is, and how it stands."""
    began = local_time(row.created)
    parts = [row.run_id, row.agent, row.model, began]
    title = Text(" · ".join(one_line(part) for part in parts if part), "bold")
    cost = row.usage.get("cost")
    priced = "" if cost is None else f"${cost:.4f}"
    spent = [tokens(Usage(**row.usage)), priced]  # type: ignore[arg-type]
    parts = [
        row.status + (f": {row.stop_reason}" if row.stop_reason else ""),
        f"{row.turns} turn{'' if row.turns == 1 else 's'}, {row.seconds:.1f} s",
        " · ".join(part for part in spent if part),
    ]
    if row.billed == "unknown":
        parts[-1] += " or more" if parts[-1] else "tokens: unknown"
    style = "green" if row.status == "completed" else "yellow"
    return [title, Text(" · ".join(one_line(p) for p in parts if p), style)]


def runs_table(rows: Sequence[RunRow], *, wide: bool = False) -> Table:
    """A line for each run; `wide` says why each ended, too."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    made = [_cells(row) for row in rows]
    for name, side in _COLUMNS.items():
        if (name == "reason" and not wide) or not any(cells[name] for cells in made):
            continue
        fixed = name not in {"agent", "reason"}
        table.add_column(name, justify=side, no_wrap=fixed)  # type: ignore[arg-type]
    for cells in made:
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    return table


_COLUMNS = dict.fromkeys(("run", "agent", "status", "reason", "began"), "left")
_COLUMNS |= dict.fromkeys(("turns", "tokens", "cost", "?"), "right") | {"next": "left"}


def _cells(row: RunRow) -> dict[str, Text]:
    spent = [row.usage.get("input_tokens"), row.usage.get("output_tokens")]
    known = [n for n in spent if n is not None]
    more = "+" if row.billed == "unknown" and row.turns else ""
    cost = row.usage.get("cost")
    action = row.next.action
    if action == "review":
        action = "settle" if row.uncertain else "approve"
    style = "green" if row.status == "completed" else "yellow"
    return {
        "run": Text(one_line(row.run_id, 60)),
        "agent": _cell(row.agent),
        "status": Text(row.status, style),
        "reason": _cell(row.stop_reason or ""),
        "began": Text(local_time(row.created, "%m-%d %H:%M")),
        "turns": Text(str(row.turns)),
        "tokens": Text((short_number(sum(known)) if known else "") + more),
        "cost": Text("" if cost is None else f"${cost:.4f}"),
        "?": Text(str(len(row.uncertain) or ""), "bold yellow"),
        "next": Text("-" if action == "stop" else action),
    }


def _cell(text: str) -> Text:
    return Text(one_line(text, 60), no_wrap=True, overflow="ellipsis")


def effect_rows(rows: Iterable[EffectRow], *, indent: str = "") -> list[Row]:
    """Two lines for each effect: what it was, and what to look it up by."""
    lines: list[Row] = []
    for row in rows:
        state = "uncertain" if row.effect_status is EffectStatus.UNCERTAIN else "done"
        mark, style = MARKS["not run" if row.effect_status == "not_started" else state]
        left = Text.assemble(indent, (f"{mark} ", style), f"{row.call}  ")
        left.append(one_line(f"{row.tool} {row.arguments}"))
        right = Text.assemble(f"{row.effect}  ", (str(row.effect_status), style))
        lines.append(Row(left, right))
        parts = [f"key {row.key}" if row.key else "", row.recovery]
        parts += [f"{row.attempts} attempts" if row.attempts > 1 else ""]
        if row.judged_by:
            said = SAID[Verdict(row.verdict)]
            parts.append(f"{row.judged_by}: {said}")
        about = " · ".join(one_line(part) for part in parts if part)
        lines.append(Row(Text(f"{indent}  {about}", "dim")))
    return lines


class _Told(NamedTuple):
    """A row of the story, until its end is known."""

    at: float
    state: str
    what: str
    note: str
    more: str = ""  # on a line of its own

    def rows(self) -> list[Row]:
        mark, style = MARKS[self.state]
        left = Text.assemble((f"{self.at:7.1f} s  ", "dim"), (f"{mark} ", style))
        rows = [Row(left.append(one_line(self.what)), Text(one_line(self.note), style))]
        if more := one_line(self.more):
            rows.append(Row(Text(f"{'':11} {more}", "dim")))
        return rows


class Story:
    """What happened in a run, told from its events. Print its `rows`.

    `no_end` is what there is to say of the end where none was kept.
    """

    def __init__(self, events: Iterable[KeptEvent], no_end: str = "") -> None:
        self._state = RunState()  # as it was at each event
        self._at = 0.0
        self._told: list[_Told | Row | Table] = []
        self._asked: tuple[int, ModelAsked] | None = None
        self._begun: dict[str, tuple[int, ToolStarted]] = {}
        self._silent: set[str] = set()  # calls that were told as not started
        for event in events:
            self._state.apply(event)
            self._at = event.at
            self._TELL.get(type(event), Story._other)(self, event)
        self._leave_off()
        if self._state.ended is None:
            self._head("end", no_end)

    @property
    def rows(self) -> list[Row | Table]:
        """It, line by line."""
        rows: list[Row | Table] = []
        for told in self._told:
            rows.extend(told.rows() if isinstance(told, _Told) else [told])
        return rows

    def _head(self, title: str, more: str = "") -> None:
        head = Text(title, "bold cyan")
        self._told.append(Row(head.append(f"  {one_line(more)}", "not bold default")))

    def _started(self, event: RunStarted) -> None:
        before = len(event.messages) - 1
        last = event.messages[-1] if event.messages else None
        self._head("prompt", f"after {before} messages" if before > 0 else "")
        text = last.text if isinstance(last, UserMessage) else ""
        self._told.append(Row(Text(f"  {one_line(text)}")))

    def _resumed(self, event: RunResumed) -> None:
        self._leave_off()
        self._head("resumed", local_time(event.created))

    def _model_asked(self, event: ModelAsked) -> None:
        if self._asked is None and event.attempt == 1:
            self._head(f"turn {event.turn}")
        self._asked = len(self._told), event
        self._told.append(_Told(event.at, "waiting", _reply_of(event), ""))

    def _replied(self, event: ModelReplied) -> None:
        reply, calls = event.reply, len(event.reply.tool_calls)
        asks = f"asks for {calls} call{'s' if calls > 1 else ''}" if calls else ""
        odd = reply.finish_reason if reply.finish_reason not in _FINE else ""
        note = " · ".join(part for part in (odd, asks, tokens(reply.usage)) if part)
        state = "failed" if event.rejected else "done"
        self._answer(state, note, event.rejected or reply.text)

    def _cut(self, event: ModelCut) -> None:
        bill = "" if event.billed == "known" else "billed: unknown"
        note = " · ".join(part for part in (event.code, bill) if part)
        self._answer("cut", note, event.text)

    def _answer(self, state: str, note: str, text: str) -> None:
        if self._asked is not None:
            index, asked = self._asked
            what = _reply_of(asked)
            self._told[index] = _Told(asked.at, state, what, note, text)
        self._asked = None

    def _tool_started(self, event: ToolStarted) -> None:
        self._begun[place(event.call)] = len(self._told), event
        writes = event.effect is not Effect.READ
        state = "uncertain" if writes else "cut"
        note = f"began, no end · {'uncertain' if writes else 'none'}"
        self._told.append(_Told(event.at, state, _call_of(event.call, event), note))

    def _tool_over(self, event: ToolEnded | ToolLost | ToolNotRun) -> None:
        index, start = self._begun.pop(place(event.call), (len(self._told), None))
        status = self._state.effect_status(event.call)
        state, word = _became(event, status)
        code = f" ({event.code})" if event.code not in {"", "stopped"} else ""
        at = start.at if start else event.at
        more = event.content if isinstance(event, ToolEnded) else event.problem
        what, note = _call_of(event.call, start), f"{word}{code} · {status}"
        self._told[index : index + 1] = [_Told(at, state, what, note, more)]

    def _approval_asked(self, event: ApprovalAsked) -> None:
        self._silent.add(place(event.call))
        what, note = _call_of(event.call), "waits to be approved"
        self._told.append(_Told(event.at, "waiting", what, note))

    def _approval_given(self, event: ApprovalGiven) -> None:
        said, state = ("approved", "done") if event.granted else ("denied", "cut")
        what = f"{place(event.call)} {event.call.name}: {said}"
        told = _Told(event.at, state, what, f"says {event.by}", event.reason)
        self._told.append(told)

    def _compensating(self, event: CompensationStarted) -> None:
        what = f"{place(event.call)} {event.call.name}: to be undone"
        self._told.append(_Told(event.at, "waiting", what, ""))

    def _judged(self, event: EffectJudged) -> None:
        unsure = event.verdict in {Verdict.UNKNOWN, Verdict.TOLD}
        state = "uncertain" if unsure else "done"
        what = f"{place(event.call)} {event.call.name}: {SAID[event.verdict]}"
        told = _Told(event.at, state, what, f"says {event.by}", event.content)
        self._told.append(told)

    def _other(self, event: KeptEvent) -> None:
        call = getattr(event, "call", None)
        where = f"{place(call)} {call.name}: " if call else ""
        what = where + kind(event).replace("_", " ")
        self._told.append(_Told(event.at, "done", what, getattr(event, "agent", "")))

    def _ended(self, event: RunEnded) -> None:
        stop = event.stop
        self._leave_off()
        self._head("end", f"{event.status}" + (f": {stop}" if stop else ""))
        if stop and stop.detail and stop.source != "condition":
            self._told.append(Row(Text(f"  {one_line(stop.detail)}")))
        if event.cleanup:
            self._told.append(cleanup_table(event.cleanup))

    def _leave_off(self) -> None:
        """Nothing more comes of what had begun, nor of what had not."""
        if self._asked is not None:
            self._answer("cut", "no end · billed: unknown", "no reply was kept")
        self._begun.clear()
        for turn in self._state.turns[-1:]:
            for call in turn.tool_calls:
                seen = call.position in turn.starts or call.position in turn.ends
                if not seen and place(call) not in self._silent:
                    self._silent.add(place(call))
                    note = "not started"
                    self._told.append(_Told(self._at, "not run", _call_of(call), note))

    _TELL: ClassVar[dict[type[Event], Callable[[Any, Any], None]]] = {
        RunStarted: _started,
        RunResumed: _resumed,
        ModelAsked: _model_asked,
        ModelReplied: _replied,
        ModelCut: _cut,
        ToolStarted: _tool_started,
        ToolEnded: _tool_over,
        ToolLost: _tool_over,
        ToolNotRun: _tool_over,
        ApprovalAsked: _approval_asked,
        ApprovalGiven: _approval_given,
        CompensationStarted: _compensating,
        EffectJudged: _judged,
        RunEnded: _ended,
    }


def _reply_of(asked: ModelAsked) -> str:
    if asked.attempt == 1:
        return "reply"
    return f"reply of {asked.model}, attempt {asked.attempt} after {asked.why}"


def _call_of(call: ToolCall, start: ToolStarted | None = None) -> str:
    instead = f"{start.tool} for " if start and start.tool else ""
    again = f" (attempt {start.attempt})" if start and start.attempt > 1 else ""
    return f"{place(call)} {instead}{call.name}{again} {call.arguments}"


def _became(
    event: ToolEnded | ToolLost | ToolNotRun, status: EffectStatus
) -> tuple[str, str]:
    """The state of its line, and the word for it."""
    unsure = "uncertain" if status is EffectStatus.UNCERTAIN else ""
    if isinstance(event, ToolEnded):
        word = "failed" if event.failed else "done"
        return unsure or word, word + (", late" if event.late else "")
    if isinstance(event, ToolNotRun):
        return unsure or "not run", "not run"
    stopped = event.code in {"stopped", "interrupted"}
    return unsure or "cut", "interrupted" if stopped else "lost"


_FINE = ("stop", "tool_calls")
