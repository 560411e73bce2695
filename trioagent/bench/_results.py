"""What the bench measures and keeps: samples, series of them, and the file they are in.

The file's JSON Schema is published as `docs/bench-result.schema.json`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

SCHEMA = 1  # grows when a field changes its meaning; new fields alone do not change it


class BadResult(ValueError):
    """A file that is no result of the bench, or of a newer version of it."""


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One stop: when what happened, and what was left.

    Stamps are nanoseconds of CLOCK_MONOTONIC, the same in all processes of a machine;
    None where it never came while the bench watched, or does not exist in a scenario.
    """

    process: int = 0  # which of the series' processes
    ready: int | None = None  # the work that is to be stopped has all begun
    due: int  # the instant the stop was planned for, drawn before the run began
    issued: int  # the stop was asked for, by another thread
    called: int | None = None  # in the loop, the framework was told of it
    observed: int | None = None  # the first tool, or the server, saw it
    cleaned: int | None = None  # the last cleanup was done
    returned: int | None = None  # the run gave control back to who awaited it
    quiet: int | None = None  # nothing of the run was left any more
    alive_tasks: int = 0  # when the run returned
    alive_threads: int = 0  # likewise: threads that worked for it
    alive_processes: int = 0
    open_requests: int = 0  # likewise, as the server sees it, `SEEN_MS` later
    late_effects: int = 0  # effects that landed after the return
    cut_cleanups: int = 0  # cleanups that were begun and never done
    late_requests: int = 0  # requests to the model begun after `called`
    late_tokens: int = 0  # pieces that were still shown after `called`
    streamed: int = 0  # pieces that the server still sent after `issued`
    status: str = ""  # completed, stopped, timed_out, failed: as the run says it
    said: str = ""  # the same in the framework's own words
    true_status: bool = True  # whether that agrees with what the bench saw
    untrue: str = ""  # what is wrong with it, where it does not


class Series(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """All samples of one adapter in one scenario."""

    adapter: str
    scenario: str
    params: dict[str, Any] = {}
    versions: dict[str, str] = {}  # of the packages that were measured
    seed: int = 0
    warmup: int = 0  # samples of each process that were dropped
    processes: int = 1
    samples: list[Sample] = []
    skipped: str = ""  # why nothing was measured, where that is nobody's fault
    problem: str = ""  # what went wrong, where something did

    @property
    def key(self) -> str:
        """Scenario and parameters, to find the same series in another file."""
        return scenario_key(self.scenario, self.params)


class Environment(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """Where it was measured."""

    python: str = ""
    implementation: str = ""
    platform: str = ""
    cpu: str = ""
    cores: int = 0
    affinity: list[int] = []
    governor: str = ""
    load: list[float] = []  # over 1, 5 and 15 minutes, as the bench began
    gc: str = "on"
    clock: str = ""
    packages: dict[str, str] = {}


class Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """One run of the bench."""

    schema: int = SCHEMA
    created: str = ""  # UTC, ISO 8601
    commit: str = ""  # of the project in whose folder it ran
    command: str = ""  # what to type to repeat it
    complete: bool = True  # False where it was interrupted
    env: Environment = msgspec.field(default_factory=Environment)
    series: list[Series] = []

    def find(self, adapter: str, key: str) -> Series | None:
        """The series of an adapter in a scenario, by its `key`."""
        found = (s for s in self.series if s.adapter == adapter and s.key == key)
        return next(found, None)


def scenario_key(scenario: str, params: dict[str, Any]) -> str:
    """Such as `tool_fanout tools=10`."""
    return " ".join([scenario, *(f"{k}={v}" for k, v in sorted(params.items()))])


# What is read off a sample, in nanoseconds; None where a stamp is missing. All but the
# last count from the instant the stop was planned for: see docs/bench.md.
MEASURES: dict[str, Callable[[Sample], int | None]] = {
    "observe": lambda s: _since(s.due, s.observed),
    "return": lambda s: _since(s.due, s.returned),
    "quiet": lambda s: _since(s.due, s.quiet),
    "cleanup": lambda s: _since(s.observed, s.cleaned),
    "lateness": lambda s: _since(s.due, s.issued),
}

COUNTS = (
    "alive_tasks",
    "alive_threads",
    "alive_processes",
    "open_requests",
    "late_effects",
    "cut_cleanups",
    "late_requests",
    "late_tokens",
)


def _since(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else b - a


def values(series: Series, measure: str) -> list[int]:
    """The measure of each sample that has it, in nanoseconds."""
    read = MEASURES[measure]
    return [v for v in map(read, series.samples) if v is not None]


def count(series: Series, name: str) -> int:
    """The sum of one of `COUNTS` over all samples."""
    return sum(getattr(s, name) for s in series.samples)


def untrue(series: Series) -> int:
    """In how many samples the run's own report was wrong."""
    return sum(not s.true_status for s in series.samples)


def unfinished(series: Series, stamp: str = "quiet") -> int:
    """In how many samples the stamp never came while the bench watched."""
    return sum(getattr(s, stamp) is None for s in series.samples)


def read_result(path: str | os.PathLike[str]) -> Result:
    """Read a file of `write_result`; raises `BadResult` or OSError."""
    data = Path(path).read_bytes()
    try:
        head = msgspec.json.decode(data, type=dict[str, Any])
        if head.get("schema", 0) > SCHEMA:
            raise BadResult(
                f"{path}: schema {head['schema']} is newer than this trioagent reads "
                f"({SCHEMA}): update trioagent"
            )
        return msgspec.convert(head, Result)
    except msgspec.MsgspecError as error:
        raise BadResult(f"{path} is no result of `trioagent bench`: {error}") from None


def write_result(result: Result, path: str | os.PathLike[str]) -> None:
    """Write all of it, or leave the file as it was."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    part.replace(place)


def rows(result: Result) -> Iterator[dict[str, Any]]:
    """Tidy: one flat row for each sample."""
    for series in result.series:
        for number, sample in enumerate(series.samples):
            yield {
                "adapter": series.adapter,
                "scenario": series.scenario,
                **{f"param_{k}": v for k, v in sorted(series.params.items())},
                "sample": number,
                **{name: getattr(sample, name) for name in Sample.__struct_fields__},
                **{f"{name}_ns": read(sample) for name, read in MEASURES.items()},
            }


def write_csv(result: Result, file: IO[str]) -> None:
    """One row for each sample, one column for each field."""
    table = list(rows(result))
    columns = list(dict.fromkeys(name for row in table for name in row))
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    writer.writerows(table)


def json_schema() -> dict[str, Any]:
    """The published schema of the file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A result of `trioagent bench run`",
        **msgspec.json.schema(Result),
    }
