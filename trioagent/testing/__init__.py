"""Doubles for tests, with real behaviour and no network; and tests for implementers.

`ScriptedModel` and `BlockingModel` stand where a model stands, `MemoryStore` where a
store does. `check_model` and `check_store` test a port that you have written, and
`sweep_cancels` stops a run of your agent at every single step it takes.
"""

from trioagent.stores.memory import MemoryStore

from ._checks import check_model, check_store
from ._scripted import BlockingModel, Hang, Pause, ScriptedModel, call
from ._sweep import CancelPoint, sweep_cancels

__all__ = [
    "BlockingModel",
    "CancelPoint",
    "Hang",
    "MemoryStore",
    "Pause",
    "ScriptedModel",
    "call",
    "check_model",
    "check_store",
    "sweep_cancels",
]
