"""What is read off one run: stamps, what was left, and whether it told the truth."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

from ._probe import Probe, Said, now
from ._protocol import Handle
from ._results import Sample
from ._scenarios import Scene
from ._server import Seen, read_seen

SEEN_MS = 5.0  # a close takes this long at most until the server sees it
LOOK_SECONDS = 0.0005


class Witness:
    """The loopback server, asked what it has seen."""

    def __init__(self, address: str) -> None:
        split = urlsplit(address)
        self._connection = http.client.HTTPConnection(
            split.hostname or "", split.port, timeout=30
        )

    def ask(self, what: str) -> list[Seen]:
        """`reset`, `wait` or `log`; what there was since the last reset."""
        self._connection.request("GET", f"/{what}")
        return read_seen(self._connection.getresponse().read())


def watch(handle: Handle, witness: Witness | None, issued: int) -> Sample:
    """Look until nothing is left of a run that has returned, and say what there was."""
    probe, scene = handle.probe, handle.scene
    gone = probe.returned
    end = now() + int(scene.watch_ms * 1e6)
    tasks_left = bool(probe.left.tasks)
    while gone is not None:
        seen = _seen_of_run(scene, witness)
        left = probe.look(handle.tasks_left() if tasks_left else 0)
        if left.processes or left.tasks:  # nobody tells when these are gone
            gone = now()
        if not left and all(request.closed for request in seen):
            gone = max(gone, probe.ended or 0, *(r.closed or 0 for r in seen), 0)
            break
        if now() > end:
            gone = None
            break
        time.sleep(LOOK_SECONDS)  # a thread of its own, not the loop
    return _fill(handle, _seen_of_run(scene, witness), issued, gone)


def _seen_of_run(scene: Scene, witness: Witness | None) -> list[Seen]:
    seen = witness.ask("log") if witness else []
    # There the first request is another run's, which has the connection.
    return seen[1:] if scene.mode == "contended" else seen


def _fill(handle: Handle, seen: list[Seen], issued: int, quiet: int | None) -> Sample:
    probe, scene = handle.probe, handle.scene
    returned = probe.returned
    over = returned if returned is not None else now()
    called = probe.called or issued
    closes = [r.closed for r in seen if r.closed is not None and r.closed > issued]
    observed = probe.observed
    if not scene.body and closes:  # there the server is the one that sees the stop
        observed = max(closes)
    sample = Sample(
        ready=probe.ready_at,
        due=issued,
        issued=issued,
        called=probe.called,
        observed=observed,
        cleaned=probe.cleaned,
        returned=returned,
        quiet=quiet,
        alive_tasks=probe.left.tasks,
        alive_threads=probe.left.threads,
        alive_processes=probe.left.processes,
        open_requests=sum(
            r.closed is None or r.closed > over + SEEN_MS * 1e6 for r in seen
        ),
        late_effects=sum(at > over for at in _effects(probe, seen)),
        cut_cleanups=probe.cleanups,
        late_requests=sum(at > called for at in probe.requests)
        + sum(r.begun > called + SEEN_MS * 1e6 for r in seen),
        late_tokens=sum(at > called for at in probe.shown),
        streamed=sum(at > issued for r in seen for at in r.pieces),
    )
    if handle.said is not None:
        sample.status, sample.said = handle.said.status, handle.said.said
    sample.untrue = _lie(scene, probe, len(_effects(probe, seen)), handle.said)
    sample.true_status = not sample.untrue
    return sample


def _effects(probe: Probe, seen: list[Seen]) -> list[int]:
    return [*probe.effects, *(r.begun for r in seen if r.path == "/commit")]


def _lie(scene: Scene, probe: Probe, effects: int, said: Said | None) -> str:
    """What is wrong with what the run says; empty if it is the truth."""
    if said is None:
        return "it has said nothing"
    right = {"timed_out"} if scene.source == "deadline" else {"stopped"}
    if scene.body and probe.finished >= scene.tools and len(probe.requests) > 1:
        right = {*right, "completed"}  # the answer was there before the stop was
    if said.status not in right:
        return f"it says {said.status}, and was {' or '.join(sorted(right))}"
    if effects > said.confirmed + said.uncertain:
        named = said.confirmed + said.uncertain
        return f"{effects} effects happened, and it names {named}"
    if said.confirmed > effects:
        return f"it says that {said.confirmed} effects happened, and {effects} did"
    return ""
