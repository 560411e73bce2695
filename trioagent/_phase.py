"""Where a run stands, and which event may come next."""

from __future__ import annotations

from enum import Enum, auto

from ._events import (
    ApprovalAsked,
    ApprovalGiven,
    ChildSpent,
    CompensationStarted,
    EffectJudged,
    Event,
    HandedOff,
    ModelAsked,
    ModelCut,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolStarted,
)


class Phase(Enum):
    """Where a run stands."""

    NEW = auto()
    READY = auto()
    ASKING = auto()
    CALLING = auto()
    ENDED = auto()


# The README draws this table, and a test holds the two together.
TRANSITIONS: dict[Phase, dict[type[Event], Phase]] = {
    Phase.NEW: {RunStarted: Phase.READY},
    Phase.READY: {
        ModelAsked: Phase.ASKING,
        EffectJudged: Phase.READY,
        RunEnded: Phase.ENDED,
        RunResumed: Phase.CALLING,
    },
    Phase.ASKING: {
        ModelReplied: Phase.CALLING,
        ModelCut: Phase.READY,
        EffectJudged: Phase.ASKING,
        RunEnded: Phase.ENDED,
        RunResumed: Phase.CALLING,
    },
    Phase.CALLING: {
        ToolStarted: Phase.CALLING,
        ToolEnded: Phase.CALLING,
        ToolLost: Phase.CALLING,
        ToolNotRun: Phase.CALLING,
        ApprovalAsked: Phase.CALLING,
        ApprovalGiven: Phase.CALLING,
        ChildSpent: Phase.CALLING,
        HandedOff: Phase.CALLING,
        CompensationStarted: Phase.CALLING,
        EffectJudged: Phase.CALLING,
        ModelAsked: Phase.ASKING,
        RunEnded: Phase.ENDED,
        RunResumed: Phase.CALLING,
    },
    Phase.ENDED: {
        ApprovalGiven: Phase.ENDED,
        EffectJudged: Phase.ENDED,
        RunResumed: Phase.CALLING,
    },
}
