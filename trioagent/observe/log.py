"""A log of runs: one JSON line for each thing that happens, and nobody's content."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from trioagent._events import (
    USAGE_FIELDS,
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

RUNS_REMEMBERED = 1000  # those whose end never comes must not add up
JUDGED = {
    Verdict.HAPPENED: EffectStatus.CONFIRMED,
    Verdict.DID_NOT_HAPPEN: EffectStatus.NOT_STARTED,
    Verdict.UNDONE: EffectStatus.NONE,
    Verdict.UNKNOWN: EffectStatus.UNCERTAIN,
    Verdict.TOLD: EffectStatus.UNCERTAIN,
}
Facts = dict[str, Any]


class RunLog:
    """An observer that logs each event of a run: `Agent(observers=[RunLog()])`.

    Each record's message is one JSON object on one line, so a handler that formats
    with `%(message)s` writes JSON lines. Every line has `run_id`, `event` and `at`;
    `seconds` is how long a reply, a tool or the run took. What is unknown is left out.
    What is uncertain is a warning: an effect that may have happened, a reply that was
    cut and may be billed, a task that still runs.

    No prompt, argument, result or text of an error is logged, unless `log_content`;
    no idempotency key is, even then. One `RunLog` may serve many agents and threads. A
    handler that can be slow belongs behind a `logging.handlers.QueueHandler`.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        log_content: bool = False,
    ) -> None:
        self._logger = logger or logging.getLogger("trioagent.run")
        self._level = level
        self._log_content = log_content
        self._runs: dict[str, _Memory] = {}
        self._lock = threading.Lock()  # runs of several threads may share us

    def __call__(self, run_id: str, event: KeptEvent) -> None:
        """Log one event."""
        fields = {"run_id": run_id, **facts(event)}
        fields |= self._memory(run_id, event).add(event)
        level = max(self._level, logging.WARNING) if _doubtful(fields) else self._level
        if not self._logger.isEnabledFor(level):
            return
        if self._log_content:
            fields |= content(event)
        self._logger.log(level, _line(fields))

    def _memory(self, run_id: str, event: KeptEvent) -> _Memory:
        with self._lock:
            if isinstance(event, RunEnded | EffectJudged):
                memory = self._runs.get(run_id) or _Memory()
                if isinstance(event, RunEnded):
                    self._runs.pop(run_id, None)
                return memory
            if run_id not in self._runs and len(self._runs) >= RUNS_REMEMBERED:
                del self._runs[next(iter(self._runs))]
            return self._runs.setdefault(run_id, _Memory())


class _Begun:
    """A call that began and is not certainly over."""

    def __init__(self, start: ToolStarted, doubted: bool) -> None:
        self.start = start
        self.doubted = doubted  # an attempt before it may have had the effect
        self.lost = False


class _Memory:
    """What the log has to know of a run besides the event at hand."""

    def __init__(self) -> None:
        self._asked: ModelAsked | None = None
        self._begun: dict[tuple[int, int], _Begun] = {}

    def add(self, event: KeptEvent) -> Facts:
        """Take an event in; what only those before it tell."""
        more = self._ADD.get(type(event))
        return more(self, event) if more else {}

    def _model_asked(self, event: ModelAsked) -> Facts:
        self._asked = event
        return {}

    def _model_over(self, event: ModelReplied | ModelCut) -> Facts:
        asked = self._asked
        if asked is None:
            return {}
        own = isinstance(event, ModelReplied) and event.reply.model
        return {
            "turn": asked.turn,
            "attempt": asked.attempt,
            "model": own or asked.model,
            "seconds": round(event.at - asked.at, 3),
        }

    def _tool_started(self, event: ToolStarted) -> Facts:
        doubted = event.call.place in self._begun
        self._begun[event.call.place] = _Begun(event, doubted)
        return {}

    def _tool_over(self, event: ToolEnded | ToolLost | ToolNotRun) -> Facts:
        place = event.call.place
        begun = self._begun.get(place)
        if begun is None:
            return {}
        start = begun.start
        status = self._status(begun, event)
        begun.lost = True
        if status is not EffectStatus.UNCERTAIN:
            del self._begun[place]
        facts = {
            "attempt": start.attempt,
            "effect": start.effect,
            "effect_status": status,
            "seconds": round(event.at - start.at, 3),
        }
        return facts | ({"ran": start.tool} if start.tool else {})

    @staticmethod
    def _status(
        begun: _Begun, event: ToolEnded | ToolLost | ToolNotRun
    ) -> EffectStatus:
        """As the run counts it: only success clears up what an attempt before left."""
        if begun.start.effect is Effect.READ and isinstance(event, ToolLost):
            return EffectStatus.NONE
        doubted = begun.doubted or (begun.lost and begun.start.effect != Effect.READ)
        status = EffectStatus(facts(event)["effect_status"])
        certain = status is EffectStatus.CONFIRMED or not doubted
        return status if certain else EffectStatus.UNCERTAIN

    def _effect_judged(self, event: EffectJudged) -> Facts:
        if JUDGED[event.verdict] is not EffectStatus.UNCERTAIN:
            self._begun.pop(event.call.place, None)
        return {}

    def _run_ended(self, _: RunEnded) -> Facts:
        left = [
            _place(begun.start.call)
            for begun in self._begun.values()
            if begun.start.effect is not Effect.READ
        ]
        return {"uncertain": left} if left else {}

    _ADD: ClassVar[dict[type[Event], Callable[[Any, Any], Facts]]] = {
        ModelAsked: _model_asked,
        ModelReplied: _model_over,
        ModelCut: _model_over,
        ToolStarted: _tool_started,
        ToolEnded: _tool_over,
        ToolLost: _tool_over,
        ToolNotRun: _tool_over,
        EffectJudged: _effect_judged,
        RunEnded: _run_ended,
    }


def kind(event: Event) -> str:
    """The name of an event as the log writes it: `tool_started`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def facts(event: KeptEvent) -> Facts:
    """What an event tells without anybody's content; what is unknown is left out."""
    told = _FACTS.get(type(event), _other)(event)
    known = {name: value for name, value in told.items() if value not in _NOTHING}
    if isinstance(event, RunEnded):  # no reason is one, too: it is completed
        known["stop_reason"] = told["stop_reason"]
    return {"event": kind(event), "at": round(event.at, 3), **known}


def content(event: KeptEvent) -> Facts:
    """What people, models and tools have said in an event."""
    told = _CONTENT[type(event)](event) if type(event) in _CONTENT else {}
    return {name: value for name, value in told.items() if value not in _NOTHING}


_NOTHING: tuple[Any, ...] = (None, "", ())


def _place(call: ToolCall) -> str:
    return f"{call.turn}.{call.position}"


def _call(event: Any, status: EffectStatus | None = None) -> Facts:
    call: ToolCall = event.call
    return {
        "turn": call.turn,
        "tool_name": call.name,
        "call": _place(call),
        "effect_status": status,
        "code": getattr(event, "code", ""),
    }


def _usage(usage: Usage) -> Facts:
    return {name: getattr(usage, name) for name in USAGE_FIELDS}


def _replied(event: ModelReplied) -> Facts:
    reply = event.reply
    return {
        "model": reply.model,
        "request_id": reply.request_id,
        "response_id": reply.response_id,
        "finish_reason": reply.finish_reason,
        "code": "rejected" if event.rejected else "",
        "billed": "unknown" if reply.usage.total_tokens is None else "known",
        **_usage(reply.usage),
    }


def _cut(event: ModelCut) -> Facts:
    names = ("turn", "code", "request_id", "response_id", "billed")
    return {n: getattr(event, n) for n in names} | _usage(event.usage)


def _started(event: ToolStarted) -> Facts:
    # It has no end yet, and if none comes, this line has told the truth.
    reads = event.effect is Effect.READ
    status = EffectStatus.NONE if reads else EffectStatus.UNCERTAIN
    return {
        **_call(event, status),
        "attempt": event.attempt,
        "effect": event.effect,
        "ran": event.tool,
        "recovery": event.recovery,
    }


def _ended(event: RunEnded) -> Facts:
    stop = event.stop
    return {
        "status": event.status,
        "stop_reason": str(stop) if stop else None,
        "scope": stop.scope if stop else "",
        "source": stop.source if stop else "",
        "reached": event.reached,
        "seconds": round(event.at, 3),
        "still_there": tuple(
            c.name for c in event.cleanup if c.ended in {"abandoned", "hung"}
        ),
    }


def _end(event: ToolEnded) -> Facts:
    late = {"late": True} if event.late else {}
    return {**_call(event, event.effect_status), "failed": event.failed, **late}


_FACTS: dict[type[Event], Callable[[Any], Facts]] = {
    RunStarted: lambda e: {"agent": e.agent, "model": e.model, "created": e.created},
    RunResumed: lambda e: {"claim": e.claim, "created": e.created},
    ModelAsked: lambda e: {
        "turn": e.turn,
        "attempt": e.attempt,
        "model": e.model,
        "why": e.why,
    },
    ModelReplied: _replied,
    ModelCut: _cut,
    ToolStarted: _started,
    ToolEnded: _end,
    ToolLost: lambda e: _call(e, EffectStatus.UNCERTAIN),
    ToolNotRun: lambda e: _call(e, EffectStatus.NOT_STARTED),
    ApprovalAsked: lambda e: _call(e),
    ApprovalGiven: lambda e: {**_call(e), "granted": e.granted, "by": e.by},
    CompensationStarted: lambda e: _call(e, EffectStatus.UNCERTAIN),
    EffectJudged: lambda e: {
        **_call(e, JUDGED[e.verdict]),
        "verdict": e.verdict,
        "by": e.by,
    },
    RunEnded: _ended,
}


def _other(event: KeptEvent) -> Facts:
    """Of an event that has no row in the table: what others have, too."""
    told = {n: getattr(event, n, "") for n in ("agent", "turns", "billed")}
    usage = getattr(event, "usage", None)
    told |= _usage(usage) if usage else {}
    return (_call(event) if hasattr(event, "call") else {}) | told


def _prompt(event: RunStarted) -> Facts:
    last = event.messages[-1] if event.messages else None
    prompt = last.text if isinstance(last, UserMessage) else ""
    return {"instructions": event.instructions, "prompt": prompt}


_CONTENT: dict[type[Event], Callable[[Any], Facts]] = {
    RunStarted: _prompt,
    ModelReplied: lambda e: {"text": e.reply.text, "rejected": e.rejected},
    ModelCut: lambda e: {"text": e.text},
    ToolStarted: lambda e: {"arguments": e.call.arguments},
    ToolEnded: lambda e: {"content": e.content},
    ToolLost: lambda e: {"problem": e.problem},
    ToolNotRun: lambda e: {"problem": e.problem},
    ApprovalGiven: lambda e: {"reason": e.reason},
    EffectJudged: lambda e: {"content": e.content},
    RunEnded: lambda e: {"detail": e.stop.detail if e.stop else "", "output": e.output},
}


def _doubtful(fields: Facts) -> bool:
    begins = fields["event"] in {"tool_started", "compensation_started"}
    return (
        (fields.get("effect_status") == EffectStatus.UNCERTAIN and not begins)
        or (fields["event"] == "model_cut" and fields.get("billed") == "unknown")
        or fields.get("stop_reason") == "effect_uncertain"
        or "uncertain" in fields
        or "still_there" in fields
    )


_ENCODER = msgspec.json.Encoder(enc_hook=str)


def _line(fields: Facts) -> str:
    """One line, whatever is in it: a log must not end what it tells of."""
    try:
        return _ENCODER.encode(fields).decode()
    except Exception:  # noqa: BLE001 - a lone surrogate, or an object that has no text
        return _ENCODER.encode({n: _sound(v) for n, v in fields.items()}).decode()


def _sound(value: Any) -> str:
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - an object of the user's
        return f"<{type(value).__name__}>"
