"""What a run may spend, and who says when it is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from ._events import RunEnded, Status, Stop, Usage
from ._state import RunState

Price = Callable[[str, Usage], float | None]
"""`price(model, usage)` in US dollars, or None where it is unknown."""

StopCondition = Callable[[RunState], str | bool | None]
"""Says, after a turn and its tools, why the run should end: a reason, or True."""


def check_number(option: str, value: Any, *, least: float | None = None) -> None:
    """Raise, naming the option, unless `value` is finite and above 0, or `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{option} takes a number, not {value!r}")
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        what = "above 0" if least is None else f"of at least {least:g}"
        raise ValueError(f"{option} takes a finite number {what}, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a run may go. Times are in seconds; each must be finite and above 0.

    Given for one call, they replace the agent's own field by field: only the fields
    that are written out there count.
    """

    seconds: float = 300  # the whole run: interrupts whatever is going on
    turns: int = 12  # replies of the model in one run; then status MAX_TURNS
    reply_seconds: float = 120  # one whole reply
    first_token_seconds: float = 60  # from the request to the first content
    silence_seconds: float = 45  # no byte at all, once the reply has begun
    connect_seconds: float = 5  # until there is a connection
    tool_seconds: float = 30  # one call of a tool that has no limit of its own
    write_grace_seconds: float = 2  # for a write to be confirmed after a stop
    grace_seconds: float = 5  # for cleanup and for keeping the end
    parallel_tools: int = 16
    tool_calls: int = 1_000  # that may begin in one run
    bad_calls: int = 3  # unknown tools or unusable arguments, in a row
    bad_answers: int = 2  # structured answers that cannot be read, in a row
    pauses: int = 4  # of the model, in a row

    def __new__(cls, **given: Any) -> Self:
        """Remember which fields were written out, for `over`."""
        limits = super().__new__(cls)
        object.__setattr__(limits, "_given", frozenset(given))
        return limits

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type == "int"
            if whole and not isinstance(value, int):
                raise TypeError(f"Limits.{field.name} takes a whole number: {value!r}")
            check_number(f"Limits.{field.name}", value, least=1 if whole else None)

    def over(self, other: Limits) -> Limits:
        """These limits where they were written out, and `other` everywhere else."""
        if not isinstance(self, Limits):
            raise TypeError(f"run(limits=…) takes Limits(…), not {self!r}")
        given: frozenset[str] = self.__dict__["_given"]
        return Limits(
            **{
                f.name: getattr(self if f.name in given else other, f.name)
                for f in fields(self)
            }
        )

    @classmethod
    def chat(cls) -> Self:
        """Somebody waits for the first word: 8 s to it, 45 s for a reply."""
        return cls(first_token_seconds=8, reply_seconds=45)

    @classmethod
    def tools(cls) -> Self:
        """Short tool calling: 45 s for a reply."""
        return cls(reply_seconds=45)

    @classmethod
    def reasoning(cls, *, reply_seconds: float) -> Self:
        """Long thinking: how long must be said, and silence may last as long."""
        return cls(
            reply_seconds=reply_seconds,
            first_token_seconds=reply_seconds,
            silence_seconds=reply_seconds,
            seconds=max(300.0, 2 * reply_seconds),
        )

    @classmethod
    def batch(cls) -> Self:
        """Nobody waits: an hour for the run, ten minutes for a reply."""
        return cls(
            seconds=3600,
            reply_seconds=600,
            first_token_seconds=600,
            silence_seconds=300,
        )


@dataclass(frozen=True)
class Condition:
    """A ready-made stop condition: a bound, and a question to the state of the run."""

    code: str
    bound: float | str
    holds: Callable[[RunState], bool]

    def __call__(self, state: RunState) -> bool:
        return self.holds(state)

    def stop(self) -> Stop:
        """The reason, as the run records it."""
        return Stop(self.code, str(self.bound), source="condition")


def step_count_is(n: int) -> Condition:
    """Stop when `n` turns have run. Reason `step_count:n`."""
    check_number("step_count_is", n, least=1)
    return Condition("step_count", n, lambda state: len(state.turns) >= n)


def max_tokens_used(n: int) -> Condition:
    """Stop when input and output tokens together reach `n`. Reason `max_tokens:n`.

    Counts what the provider reports, so keep a turn or time limit beside it. What is
    left also caps the output of the next request, and a reply whose running usage
    passes it is cut.
    """
    check_number("max_tokens_used", n, least=0)
    return Condition(
        "max_tokens", n, lambda state: (state.usage.total_tokens or 0) >= n
    )


def max_cost(usd: float) -> Condition:
    """Stop when the cost reaches `usd` US dollars. Reason `max_cost:usd`.

    The agent needs to know prices (`Agent(price=…)`): a run that cannot be priced is
    refused before its first request, and one reply without a price ends it, for what
    is unknown is not nothing.
    """
    check_number("max_cost", usd, least=0)
    return Condition(
        "max_cost",
        usd,
        lambda state: not state.cost_known or (state.usage.cost or 0) >= usd,
    )


def max_duration(milliseconds: float) -> Condition:
    """Stop when so much time has passed. Reason `max_duration:milliseconds`.

    Looked at between turns only; `Limits.seconds` is what interrupts.
    """
    check_number("max_duration", milliseconds)
    return Condition(
        "max_duration", milliseconds, lambda state: state.elapsed_ms >= milliseconds
    )


def has_tool_call(name: str) -> Condition:
    """Stop after a turn that called the tool `name`. Reason `tool_call:name`."""

    def called(state: RunState) -> bool:
        return bool(state.turns) and any(
            call.name == name for call in state.turns[-1].tool_calls
        )

    return Condition("tool_call", name, called)


def finish_reason_is(reason: str) -> Condition:
    """Stop after a turn that ended so. Reason `finish_reason:reason`.

    Ours (stop, tool_calls, length, content_filter, refusal, pause, error, other) or
    the provider's own word. A final answer stays COMPLETED and lists it as reached.
    """

    def ended(state: RunState) -> bool:
        if not state.turns:
            return False
        reply = state.turns[-1].reply
        return reason in {reply.finish_reason, reply.raw_finish_reason}

    return Condition("finish_reason", reason, ended)


READY_MADE: dict[str, Callable[[Any], Condition]] = {
    "step_count": step_count_is,
    "max_tokens": max_tokens_used,
    "max_cost": max_cost,
    "max_duration": max_duration,
    "tool_call": has_tool_call,
    "finish_reason": finish_reason_is,
}
"""By their codes, so that a journal can name them."""


def held(conditions: Iterable[StopCondition], state: RunState) -> Iterator[Stop]:
    """The reasons of the conditions that hold, in their order.

    Ready-made ones are asked before the first turn too, so that a bound of 0 refuses
    the first request; custom ones can count on a turn.
    """
    for condition in conditions:
        if isinstance(condition, Condition):
            if condition(state):
                yield condition.stop()
        elif state.turns and (reason := condition(state)):
            name = getattr(condition, "__name__", "custom_condition")
            yield Stop(reason if isinstance(reason, str) else name, source="condition")


def reason_to_end(
    state: RunState,
    limits: Limits,
    conditions: Iterable[StopCondition],
    finishing: Stop | None = None,
) -> RunEnded | None:
    """Why a run has no next turn, if it has none; looked at between turns.

    An uncertain effect, one that was undone, and a call that waits for a person come
    before everything; a final answer is COMPLETED, whatever else it reached; then who
    asked to finish the turn, the stop conditions in their order, and what the run's own
    limits say.
    """
    for code, calls in (
        ("effect_uncertain", state.in_review),
        ("compensated", state.undone),
        ("approval", state.paused),
    ):
        if calls:
            names = ", ".join(call.name for call in calls)
            stop = Stop(code, names, scope="tool", source="tool")
            waits = code == "approval"
            return RunEnded(Status.PAUSED if waits else Status.STOPPED, stop)
    reached = held(conditions, state)
    if state.answer is not None:
        also = tuple(str(stop) for stop in reached)
        return RunEnded(Status.COMPLETED, output=state.answer, reached=also)
    if finishing:
        return RunEnded(Status.CANCELLED, finishing)
    if held_first := next(reached, None):
        return RunEnded(Status.STOPPED, held_first)
    if state.unfinished:
        stop = Stop("finish_reason", state.unfinished, source="condition")
        return RunEnded(Status.STOPPED, stop)
    return _out_of_bounds(state, limits)


def _out_of_bounds(state: RunState, limits: Limits) -> RunEnded | None:
    rows = (
        (state.bad_calls >= limits.bad_calls, Status.STOPPED, "bad_calls"),
        (state.bad_answers > limits.bad_answers, Status.FAILED, "bad_answers"),
        (state.pauses > limits.pauses, Status.STOPPED, "pauses"),
        (
            state.too_many and state.begun.total() >= limits.tool_calls,
            Status.STOPPED,
            "tool_calls",
        ),
        (state.turns_used >= limits.turns, Status.MAX_TURNS, "turns"),
    )
    for over, status, name in rows:
        if over:
            detail = f"{getattr(limits, name)} (Limits.{name})"
            code = "max_turns" if name == "turns" else name
            return RunEnded(status, Stop(code, detail))
    return None


def used_up(
    state: RunState, limits: Limits, conditions: Iterable[StopCondition]
) -> RunEnded | None:
    """Why a run has nothing left that another could spend for it."""
    for condition, _ in _spending(conditions):
        if condition(state):
            return RunEnded(Status.STOPPED, condition.stop())
    if state.turns_used >= limits.turns:
        stop = Stop("max_turns", f"{limits.turns} (Limits.turns)", scope="parent")
        return RunEnded(Status.MAX_TURNS, stop)
    return None


def _spending(conditions: Iterable[StopCondition]) -> Iterator[tuple[Condition, float]]:
    """The conditions that bound what may be spent, and their bounds as numbers."""
    for condition in conditions:
        if isinstance(condition, Condition) and condition.code in _SPENT:
            yield condition, float(condition.bound)


_SPENT = ("max_tokens", "max_cost")
_MILLION = Usage(input_tokens=0, output_tokens=1_000_000)


def passed(conditions: Iterable[StopCondition], spent: Usage) -> Condition | None:
    """The first token or cost limit that `spent` has reached."""
    for condition, bound in _spending(conditions):
        cost = condition.code == "max_cost"
        if ((spent.cost if cost else spent.total_tokens) or 0) >= bound:
            return condition
    return None


def output_cap(
    conditions: Iterable[StopCondition], spent: Usage, price: Price | None, model: str
) -> int | None:
    """How many tokens the next reply may have, or None where nothing bounds it.

    What token and cost limits leave; the input of the request, which nobody has
    counted yet, may still bring it over.
    """
    caps: list[float] = []
    for condition, bound in _spending(conditions):
        if condition.code == "max_tokens":
            caps.append(bound - (spent.total_tokens or 0))
        elif price and (usd := price(model, _MILLION)):
            caps.append((bound - (spent.cost or 0)) / usd * 1_000_000)
    return max(1, int(min(caps))) if caps else None


def needs_price(conditions: Iterable[StopCondition]) -> bool:
    """Whether a cost limit is armed. A bound of 0 needs no price to be reached."""
    return any(c.code == "max_cost" and bound > 0 for c, bound in _spending(conditions))
