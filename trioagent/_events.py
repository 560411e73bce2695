"""What happens in a run, one Struct for each thing that can happen.

Events are the only thing a run writes and the only thing it shows: the store keeps
them, `RunState` is computed from them, and readers watch them pass. They are facts, so
they are named in the past tense. What is kept only grows: new fields get defaults.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Literal

import msgspec

FinishReason = Literal[
    "stop",
    "tool_calls",
    "length",
    "content_filter",
    "refusal",
    "pause",
    "error",
    "other",  # a value we do not know: `raw_finish_reason` has it
]


CONTENT = {"text", "content", "arguments", "reasoning", "refusal", "carry", "key"}
CONTENT |= {"instructions", "messages", "history", "problem", "output", "reason"}
CONTENT |= {"rejected"}


def quiet_repr(struct: msgspec.Struct) -> str:
    """What is there, without what people and models have said: it ends up in logs."""
    parts = []
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value not in (None, "", (), {}, 0):
            parts.append(f"{name}={'…' if name in CONTENT else repr(value)}")
    return f"{type(struct).__name__}({', '.join(parts)})"


class Effect(StrEnum):
    """What a tool does to the world, named by when a call may be repeated."""

    READ = "read"  # at will
    KEYED = "keyed"  # with the same idempotency key
    ONCE = "once"  # never, until someone has looked


class EffectStatus(StrEnum):
    """What became of one call's effect."""

    NONE = "none"  # there is nothing to undo: a read, or a failure that says so
    NOT_STARTED = "not_started"
    CONFIRMED = "confirmed"
    UNCERTAIN = "uncertain"


class Verdict(StrEnum):
    """What was found out about an uncertain effect, or decided about it."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"  # so the call may begin again
    UNDONE = "undone"  # compensated for
    UNKNOWN = "unknown"  # asked, and no wiser
    TOLD = "told"  # still unknown; the model is told so and the run goes on


class Status(StrEnum):
    """How a run ended: eight words, eight different next actions."""

    COMPLETED = "completed"  # the model gave its answer
    STOPPED = "stopped"  # a stop condition said so, between turns
    MAX_TURNS = "max_turns"  # the turn limit ran out
    CANCELLED = "cancelled"  # someone called `Run.cancel` or `Run.finish_turn`
    TIMED_OUT = "timed_out"  # the run's deadline passed
    FAILED = "failed"  # no usable reply from the model, or a fatal tool error
    PAUSED = "paused"  # waits for a person; resumable
    INTERRUPTED = "interrupted"  # from outside: an enclosing scope, a crash


class Stop(msgspec.Struct, frozen=True):
    """Why a run ended. `str(stop)` is the reason in one word, or `word:bound`."""

    code: str  # for programs: user, deadline, host, max_turns, step_count, llm_timeout
    detail: str = ""  # for people; for a stop condition its bound
    scope: str = "run"  # run, turn, reply, connect, first_token, silence, tool
    source: str = "limit"  # user, host, limit, condition, model, tool

    def __str__(self) -> str:
        bound = self.detail if self.source == "condition" else ""
        return f"{self.code}:{bound}" if bound else self.code


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was spent, as the provider reports it. `None` is unknown, `0` is none."""

    input_tokens: int | None = None  # the whole prompt, cached and cache-written too
    output_tokens: int | None = None  # all output, reasoning too
    cached_tokens: int | None = None  # part of the input: read from the cache
    cache_write_tokens: int | None = None  # part of the input: written to the cache
    reasoning_tokens: int | None = None  # part of the output
    cost: float | None = None  # US dollars

    @property
    def total_tokens(self) -> int | None:
        """Input and output together, or `None` where neither is known."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    def __add__(self, other: Usage) -> Usage:
        """Sum what is known; a field unknown on both sides stays unknown."""
        fields: dict[str, Any] = {}
        for name in USAGE_FIELDS:
            a, b = getattr(self, name), getattr(other, name)
            fields[name] = a if b is None else (a or 0) + b
        return Usage(**fields)


USAGE_FIELDS = Usage.__struct_fields__


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model asked for. It is identified by (run, turn, position)."""

    name: str
    arguments: str = "{}"  # JSON text, exactly as the model wrote it
    id: str = ""  # the provider's, only for the wire: it may be missing or repeated
    turn: int = 0  # from 1; set by the run
    position: int = 0  # from 0, in the order of the reply

    __repr__ = quiet_repr

    @property
    def place(self) -> tuple[int, int]:
        """Turn and position: what identifies the call within its run."""
        return self.turn, self.position

    @property
    def digest(self) -> str:
        """Stands for the name and the arguments: who approves one approves no other."""
        text = f"{self.name}\0{self.arguments}"
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """What a person, or the run on a person's behalf, said to the model."""

    text: str

    __repr__ = quiet_repr


class Reply(
    msgspec.Struct, frozen=True, kw_only=True, tag="assistant", omit_defaults=True
):
    """One whole reply of the model."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    raw_finish_reason: str = ""  # the provider's own word
    reasoning: str = ""  # the visible part of it
    refusal: str = ""
    usage: Usage = Usage()
    model: str = ""  # as the provider names it
    request_id: str = ""
    response_id: str = ""
    provider: str = ""
    carry: dict[str, Any] = {}  # sent back unchanged, to the same provider only

    __repr__ = quiet_repr

    @property
    def is_final(self) -> bool:
        """Whether it asks for nothing and was not cut."""
        return not self.tool_calls and self.finish_reason == "stop"


class ToolResult(msgspec.Struct, frozen=True, tag="tool", omit_defaults=True):
    """What the model is told about one call."""

    name: str
    content: str
    call_id: str = ""  # the provider's id of the call
    failed: bool = False
    uncertain: bool = False  # its effect may or may not have happened

    __repr__ = quiet_repr


Message = UserMessage | Reply | ToolResult


class Child(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the cleanup report: one thing that was still going at the stop."""

    name: str  # tool pay, reply 3, store
    ended: str  # finished, cancelled, failed, hung, abandoned
    seconds: float  # from the stop to its end
    where: str = ""  # where it stood when its grace was over


class Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Something that happened."""

    at: float = 0.0  # active seconds since the run began

    __repr__ = quiet_repr


class RunStarted(Event, frozen=True, kw_only=True):
    """The run exists. Nothing has been asked yet."""

    run_id: str
    agent: str = ""
    model: str = ""
    instructions: str = ""
    messages: tuple[Message, ...] = ()  # the history, then the prompt
    created: str = ""  # wall clock, ISO 8601, UTC
    limits: dict[str, int | float] = {}  # those of the run, for whoever resumes it
    stop_when: tuple[tuple[str, float | str], ...] = ()  # the call's own conditions
    parent: str = ""  # the run it works for, and the call there: run_id:turn.position


class RunResumed(Event, frozen=True, kw_only=True):
    """The run goes on after its end, or after whoever carried it was lost."""

    claim: int  # the fencing counter: who has a lower one can write no more
    created: str = ""  # wall clock, ISO 8601, UTC


class ModelAsked(Event, frozen=True):
    """A request is about to be sent: each attempt is one."""

    turn: int
    attempt: int = 1  # in this turn, of whatever model
    model: str = ""
    why: str = ""  # of a further attempt: what ended the one before
    restarts: bool = False  # what was shown of the attempt before does not count


class ModelReplied(Event, frozen=True):
    """The whole reply is here."""

    reply: Reply
    rejected: str = ""  # why a final answer was not accepted; the model is told


class ModelCut(Event, frozen=True, kw_only=True):
    """The request ended without a whole reply. What had come is kept."""

    turn: int
    code: str  # llm_timeout, llm_aborted, llm_unavailable, llm_refused
    text: str = ""
    reasoning: str = ""
    usage: Usage = Usage()
    billed: str = "unknown"  # or known: then `usage` is all of it
    request_id: str = ""
    response_id: str = ""
    shown: bool = False  # whether a reader may have seen some of it


class ToolStarted(Event, frozen=True):
    """The call is about to begin: from here on its effect may happen."""

    call: ToolCall
    effect: Effect
    tool: str = ""  # the tool that runs, where it is a fallback of the one called
    attempt: int = 1  # of this call
    key: str = ""  # the idempotency key: the same on every attempt
    recovery: str = ""  # how an unknown end can be cleared up: reconcile, compensate


class ToolEnded(Event, frozen=True, kw_only=True):
    """The call is over, and so is its effect."""

    call: ToolCall
    content: str  # what the model is told
    failed: bool = False
    effect_status: EffectStatus = EffectStatus.NONE
    code: str = ""  # why it failed: tool_error, timeout
    late: bool = False  # it returned after a stop or after its own limit


class ToolLost(Event, frozen=True, kw_only=True):
    """The call is over, and nobody knows whether its effect happened."""

    call: ToolCall
    problem: str
    code: str = ""


class ToolNotRun(Event, frozen=True, kw_only=True):
    """The call never began, and will not in this run."""

    call: ToolCall
    problem: str
    code: (
        str  # unknown_tool, bad_arguments, cut, held, denied, too_many, budget, stopped
    )


class ApprovalAsked(Event, frozen=True):
    """The call waits until somebody approves it."""

    call: ToolCall
    digest: str = ""  # of what is to be approved: the tool that would run, as called


class ApprovalGiven(Event, frozen=True, kw_only=True):
    """Somebody said whether a call may begin: this call, with these arguments."""

    call: ToolCall
    granted: bool
    by: str  # policy, person
    reason: str = ""
    digest: str = ""  # of the call, as the one who approved it saw it


class ChildSpent(Event, frozen=True, kw_only=True):
    """A run that works for this one has used something of its budget."""

    call: ToolCall  # of this run, that it works on
    run_id: str
    usage: Usage = Usage()
    billed: str = "known"
    turns: int = 0


class HandedOff(Event, frozen=True):
    """Another agent takes over, from the next turn on."""

    call: ToolCall
    agent: str


class CompensationStarted(Event, frozen=True):
    """An uncertain effect is about to be undone, which is an effect of its own."""

    call: ToolCall


class EffectJudged(Event, frozen=True, kw_only=True):
    """Somebody looked into an uncertain effect."""

    call: ToolCall
    verdict: Verdict
    by: str  # reconcile, compensate, policy, person
    content: str = ""  # the result, or what is known


class RunEnded(Event, frozen=True):
    """The last event of a run: everything it started has ended, or is named here."""

    status: Status
    stop: Stop | None = None
    output: str | None = None
    reached: tuple[str, ...] = ()  # limits that a final answer reached as well
    cleanup: tuple[Child, ...] = ()


# Shown while a reply comes in, never kept: `ModelReplied` or `ModelCut` has it all.


class ReplyOpened(Event, frozen=True):
    """The provider has begun to answer."""

    request_id: str = ""
    response_id: str = ""


class TextDelta(Event, frozen=True):
    """A piece of visible text."""

    text: str


class ReasoningDelta(Event, frozen=True):
    """A piece of visible reasoning."""

    text: str


class ToolCallDelta(Event, frozen=True):
    """A piece of a tool call; `arguments` is a fragment of JSON text."""

    position: int
    name: str = ""
    arguments: str = ""


class UsageReported(Event, frozen=True):
    """The provider said what the reply has cost so far. The last one counts."""

    usage: Usage


class KeepAlive(Event, frozen=True):
    """Bytes came that carry nothing: the connection lives. Not shown to readers."""


class ToolOutput(Event, frozen=True):
    """A piece of what a tool has to show before it is over; see `ToolContext.show`."""

    call: ToolCall
    text: str


class FromChild(Event, frozen=True, kw_only=True):
    """Something happened in a run that works for this one."""

    path: tuple[str, ...]  # the names of the agents, from the one this run called down
    run_id: str
    event: Any


class CleanupOverrun(Event, frozen=True, kw_only=True):
    """A task holds the run open beyond its grace; trio cannot break it."""

    name: str
    where: str  # file:line function
    seconds: float  # since the stop


KeptEvent = (
    RunStarted
    | RunResumed
    | ModelAsked
    | ModelReplied
    | ModelCut
    | ToolStarted
    | ToolEnded
    | ToolLost
    | ToolNotRun
    | ApprovalAsked
    | ApprovalGiven
    | ChildSpent
    | HandedOff
    | CompensationStarted
    | EffectJudged
    | RunEnded
)

# Events whose loss in a crash would hide nothing: no effect is at stake, not yet or not
# any more. They are kept together with the next one that must last, or a moment later.
_MAY_LINGER = (ModelAsked, ModelReplied, ToolNotRun, ChildSpent)


def must_last(event: KeptEvent) -> bool:
    """Whether a run waits until the event would survive a crash."""
    if type(event) is ToolStarted:
        return event.effect is not Effect.READ
    if type(event) is ToolEnded:
        return event.effect_status is not EffectStatus.NONE
    return type(event) not in _MAY_LINGER


_Piece = ReplyOpened | TextDelta | ReasoningDelta | ToolCallDelta | UsageReported
ReplyPart = _Piece | KeepAlive | Reply
ShownEvent = _Piece | ToolOutput | FromChild | CleanupOverrun
AnyEvent = KeptEvent | ShownEvent
