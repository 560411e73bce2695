"""When a model is asked again, and when it is left alone for a while."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

import trio

from trioagent._errors import ModelError, ModelTimeout, ModelUnavailable
from trioagent._ports import Again, Failure, Retry

FIRST_PAUSE = 0.5  # seconds; doubled for each further attempt
LONGEST_PAUSE = 8.0


def retries(
    times: int = 1, *, restart: bool = False, chance: random.Random | None = None
) -> Retry:
    """A policy: ask again `times` times, after a random pause that doubles.

    The pause is anything from nothing to 0.5 s, 1 s, 2 s … 8 s (full jitter), so that
    many callers do not come back at once. Where the provider says how long to wait, it
    is that; and if that is longer than the time left, the run fails now. With `restart`
    a reply that broke off after some of it was shown is asked for again from its
    beginning, and `ModelAsked.restarts` says so.
    """
    if times < 0:
        raise ValueError(f"retries: times must be 0 or more, not {times}")

    def retry(failure: Failure) -> Again | None:
        if failure.attempt > times:
            return None
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failure.attempt - 1))
        asked = failure.error.retry_after
        pause = (chance or random).uniform(0, longest) if asked is None else asked
        if pause >= failure.seconds_left:
            return None
        return Again(seconds=pause, restart=restart)

    return retry


@dataclass
class _Circuit:
    failures: int = 0
    opened_at: float | None = None
    probe_until: float = 0.0  # others are refused while one tries


class CircuitBreaker:
    """Leaves an endpoint alone after `failures` timeouts or server errors in a row.

    It stays open for `open_seconds`; then one request may try (half open), and its
    answer closes or opens it again. What a client did wrong (4xx, too many requests)
    and what a user stopped says nothing of the endpoint. Each `trio.run` has its own
    state: its clock means nothing to another.
    """

    def __init__(self, failures: int = 5, open_seconds: float = 30) -> None:
        if failures < 1 or open_seconds <= 0:
            raise ValueError("CircuitBreaker: failures and open_seconds are above 0")
        self._failures = failures
        self._open_seconds = open_seconds

    def refuses(self, endpoint: str) -> float | None:
        """See `Breaker.refuses`."""
        circuit = _circuits().setdefault(endpoint, _Circuit())
        now = trio.current_time()
        if circuit.opened_at is None:
            return None
        until = max(circuit.opened_at + self._open_seconds, circuit.probe_until)
        if now < until:
            return until - now
        circuit.probe_until = now + self._open_seconds
        return None

    def note(self, endpoint: str, error: ModelError | None) -> None:
        """See `Breaker.note`."""
        circuit = _circuits().setdefault(endpoint, _Circuit())
        if error is None:
            _circuits()[endpoint] = _Circuit()
        elif _is_down(error):
            circuit.failures += 1
            circuit.probe_until = 0.0
            if circuit.failures >= self._failures:
                circuit.opened_at = trio.current_time()

    def state(self, endpoint: str) -> Literal["closed", "open", "half_open"]:
        """What it would say of an endpoint now."""
        circuit = _circuits().get(endpoint, _Circuit())
        if circuit.opened_at is None:
            return "closed"
        waited = trio.current_time() - circuit.opened_at
        return "open" if waited < self._open_seconds else "half_open"


def _is_down(error: ModelError) -> bool:
    """Whether an error says that the endpoint does not work, for anybody."""
    if isinstance(error, ModelTimeout):
        return True
    status = error.status or 500
    return isinstance(error, ModelUnavailable) and (status >= 500 or status == 408)


_HERE: trio.lowlevel.RunVar[dict[str, _Circuit]] = trio.lowlevel.RunVar(
    "trioagent circuits"
)


def _circuits() -> dict[str, _Circuit]:
    try:
        return _HERE.get()
    except LookupError:
        circuits: dict[str, _Circuit] = {}
        _HERE.set(circuits)
        return circuits
