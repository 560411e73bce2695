"""What is stopped: a row for each scenario, with its parameters.

A scenario is the same work for every adapter; see docs/bench.md for what each is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Source = Literal["thread", "signal", "deadline", "outer"]
SOURCES = ("thread", "signal", "deadline", "outer")


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario with its parameters, as an adapter is told of it.

    `body` says what a tool does until it is stopped; where it is empty, there are no
    tools and the model is what is stopped. `wire` says how the loopback server answers
    where the model (or the tool) is behind a socket; where it is empty, the adapter
    plays the model itself: all calls at once, then a final answer.
    """

    name: str
    about: str = ""
    body: str = ""  # block, thread, cpu, child, post, mcp, or finish
    wire: str = ""  # silent, stream, busy, or commit
    source: Source = "thread"
    tools: int = 1  # calls in one turn
    depth: int = 1  # agents, one inside the other; the innermost has the tools
    payload: int = 8  # characters of a streamed piece
    body_ms: float = 0  # what a body that cannot be stopped takes
    cleanup_ms: float = 0  # what a tool needs after it saw the stop
    again_ms: float = 0  # a second stop, so long after the first
    mode: str = ""  # of a body that has several
    effects: bool = False  # each tool changes the world when it is done
    when: str = "running"  # or before, or race: when the stop comes
    watch_ms: float = 1_000  # how long is looked for what is left after the return
    server: str = ""  # the server's address, once it runs

    @property
    def bodies(self) -> int:
        """Tools that must have begun before the stop may come."""
        return 0 if not self.body or self.when == "before" else self.tools


# Of the fields of a scene, those that a user may set. In a result stand the ones that
# differ from the scenario's own.
PARAMETERS = ("source", "tools", "depth", "payload", "body_ms", "cleanup_ms", "mode")

_ALL = [
    Scene(
        name="model_nostream",
        about="the model's server takes the request and never answers",
        wire="silent",
    ),
    Scene(
        name="model_stream", about="in the middle of a streamed reply", wire="stream"
    ),
    Scene(name="tool_async", about="one async tool that waits", body="block"),
    Scene(
        name="tool_fanout",
        about="many async tools of one turn that wait",
        body="block",
        tools=10,
    ),
    Scene(
        name="tool_nested",
        about="a tool of a sub-agent of a sub-agent",
        body="block",
        depth=3,
    ),
    Scene(
        name="tool_thread",
        about="a plain def tool that takes 300 ms and then has its effect",
        body="thread",
        mode="stubborn",
        body_ms=300,
        effects=True,
    ),
    Scene(
        name="tool_cpu",
        about="an async tool that holds the loop 20 ms of every 25",
        body="cpu",
        body_ms=20,
    ),
    Scene(
        name="tool_subprocess",
        about="an async tool that waits for a command it has started",
        body="child",
        mode="obeys",
    ),
    Scene(
        name="tool_http_write",
        about="a write whose server has committed and does not answer",
        body="post",
        wire="commit",
        effects=True,
    ),
    Scene(
        name="cleanup_slow",
        about="ten tools whose cleanup takes 50 ms each",
        body="block",
        tools=10,
        cleanup_ms=50,
    ),
    Scene(
        name="stop_twice",
        about="the same, and an impatient second stop 20 ms after the first",
        body="block",
        tools=10,
        cleanup_ms=50,
        again_ms=20,
    ),
    Scene(
        name="tool_swallows",
        about="a tool that catches everything, ten times, and goes on",
        body="swallow",
        body_ms=10,
    ),
    Scene(
        name="retry_backoff",
        about="the model is overloaded, and the client waits to ask again",
        wire="busy",
    ),
    Scene(
        name="pool_contended",
        about="waiting for the only connection, which another request holds",
        wire="silent",
        mode="contended",
    ),
    Scene(
        name="approval_wait",
        about="a person is asked whether a call may run, and thinks",
        body="approval",
    ),
    Scene(name="mcp_tool", about="a call of an MCP server that takes long", body="mcp"),
    Scene(
        name="stop_before_start",
        about="the stop comes before the run's first step",
        body="block",
        when="before",
    ),
    Scene(
        name="stop_race_finish",
        about="the tool has its effect just as the stop comes",
        body="finish",
        effects=True,
        when="race",
        body_ms=20,
    ),
]
SCENARIOS = {scene.name: scene for scene in _ALL}

# What `--quick` runs: the common cases and each kind of trouble once.
QUICK = (
    "model_nostream",
    "model_stream",
    "tool_async",
    "tool_fanout",
    "tool_thread",
    "tool_http_write",
    "cleanup_slow",
    "stop_twice",
)
# What is run where no scenario is named: each one, and the larger ones by size.
FULL = (
    *SCENARIOS,
    "tool_fanout:tools=1",
    "tool_fanout:tools=100",
    "tool_fanout:tools=1000",
    "tool_nested:depth=1",
    "tool_nested:depth=5",
    "tool_thread:mode=cooperative",
    "tool_subprocess:mode=ignores",
    "tool_async:source=signal",
    "tool_async:source=deadline",
    "tool_async:source=outer",
)
MODES = {
    "tool_thread": ("stubborn", "cooperative"),
    "tool_subprocess": ("obeys", "ignores"),
    "pool_contended": ("contended",),
}
_LEAST = {"tools": 1, "depth": 1, "payload": 1, "body_ms": 0, "cleanup_ms": 0}
_MOST = {"tools": 10_000, "depth": 20, "payload": 1_000_000}


def parse_scene(text: str, params: dict[str, Any] | None = None) -> Scene:
    """`name`, or `name:parameter=value,…`, with more parameters given apart.

    Raises ValueError that names what is wrong and what there is.
    """
    name, _, written = text.partition(":")
    if name not in SCENARIOS:
        raise ValueError(f"no scenario {name!r}: there are {', '.join(SCENARIOS)}")
    given: dict[str, Any] = {}
    for part in filter(None, written.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{text}: {part!r} is no parameter=value")
        given[key.strip()] = value.strip()
    return with_params(SCENARIOS[name], {**given, **(params or {})})


def with_params(scene: Scene, params: dict[str, Any]) -> Scene:
    """The scenario with other parameters; raises ValueError for what it cannot have."""
    for key, value in params.items():
        if key not in PARAMETERS:
            raise ValueError(
                f"{scene.name}: no parameter {key!r}: there are {', '.join(PARAMETERS)}"
            )
        modes = MODES.get(scene.name, ())
        if key == "mode" and value not in modes:
            there = ", ".join(modes) or "none"
            raise ValueError(f"{scene.name}: no mode {value!r}: there are {there}")
    try:
        new = msgspec.convert(
            {**msgspec.to_builtins(scene), **params}, Scene, strict=False
        )
    except msgspec.ValidationError as error:
        raise ValueError(f"{scene.name}: {error}") from None
    for key in _LEAST:
        value, least, most = getattr(new, key), _LEAST[key], _MOST.get(key, 60_000)
        if not (math.isfinite(value) and least <= value <= most):
            raise ValueError(f"{scene.name}: {key}={value} is not in {least} to {most}")
    return new


def params_of(scene: Scene) -> dict[str, Any]:
    """What is kept of a scene beside its name: what differs from the scenario's own."""
    own = SCENARIOS[scene.name]
    return {
        key: getattr(scene, key)
        for key in PARAMETERS
        if getattr(scene, key) != getattr(own, key)
    }


def parse_scenes(texts: Iterable[str], params: dict[str, Any]) -> list[Scene]:
    """All that is to be run, each once."""
    scenes = [parse_scene(text, params) for text in texts]
    return list({(s.name, *params_of(s).items()): s for s in scenes}.values())
