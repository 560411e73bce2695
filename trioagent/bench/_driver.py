"""The bench's own process: it starts the adapters, and lets them take turns.

All adapters are stopped by turns, sample by sample: what the machine does meanwhile
happens to each. Every process it starts is under a warden, so none outlives it.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from trioagent.isolate._supervised import Supervised

from ._protocol import Answer, Command
from ._results import Result, Sample, Series
from ._scenarios import Scene, params_of
from .adapters import ADAPTERS

PACKAGES = Path(__file__).parents[2]  # where `trioagent` is found
ANSWER_SECONDS = 90.0
DELAY_MS = (5.0, 60.0)  # from when the work is under way to the stop
RACE_MS = 1.5  # around the instant at which a racing tool is done
MOST_HUNG = 2  # runs that do not return, before a series is given up


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    """What is to be measured."""

    scenes: list[Scene]
    adapters: list[str]
    commands: dict[str, list[str]] = {}  # of adapters that the bench does not bring
    pythons: dict[str, str] = {}  # interpreters of those it does; by default this one
    samples: int = 200  # of each adapter in each scenario, over all processes
    processes: int = 8
    warmup: int = 10  # of each process and scenario; they are dropped
    seed: int = 1
    gc: str = "on"
    affinity: tuple[int, ...] = ()  # the adapters' processors; the server has them all
    series_seconds: float = 0  # about what a scenario may take in one round; 0: all

    @property
    def steps(self) -> int:
        """Samples, with those that are dropped."""
        each = self.samples + self.warmup * self.processes
        return len(self.scenes) * len(self.adapters) * each

    def in_round(self, number: int) -> int:
        """Samples that the process of a round takes."""
        return len(range(number, self.samples, self.processes))


class Died(Exception):
    """An adapter's process has ended, or does not answer."""


class Child:
    """A process that answers JSON lines; nothing of it is left after `stop`."""

    def __init__(self, process: Supervised) -> None:
        self._process = process
        self._read = b""

    @classmethod
    async def start(cls, argv: list[str]) -> Child:
        """Start it; it is under a warden."""
        path = os.pathsep.join(filter(None, [str(PACKAGES), os.getenv("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        process = await Supervised.start(
            argv, env=env, stderr="nothing", grace_seconds=0.2
        )
        return cls(process)

    async def line(self) -> bytes:
        """The next line; raises `Died`."""
        with trio.move_on_after(ANSWER_SECONDS):
            while b"\n" not in self._read:
                part = await self._process.stdout.receive_some()
                if not part:
                    raise Died(f"its process ended: {await self._process.wait()}")
                self._read += part
            line, _, self._read = self._read.partition(b"\n")
            return line
        raise Died(f"its process has not answered for {ANSWER_SECONDS:g} s")

    async def ask(self, command: Command) -> Answer:
        """One command, one answer; raises `Died`."""
        try:
            await self._process.stdin.send_all(msgspec.json.encode(command) + b"\n")
        except trio.BrokenResourceError:
            raise Died("its process has ended") from None
        line = await self.line()
        try:
            return msgspec.json.decode(line, type=Answer)
        except msgspec.MsgspecError:
            raise Died(f"{line[:80]!r} on its stdout is no answer") from None

    async def stop(self) -> None:
        """End it, with all that it started."""
        await self._process.stop()


class Session:
    """One run of the bench. `result` holds what has been measured so far."""

    def __init__(
        self, plan: Plan, result: Result, tick: Callable[[str, Scene], None]
    ) -> None:
        self.plan = plan
        self.result = result
        self._tick = tick  # after each sample
        self._children: dict[str, Child] = {}
        self._server = ""

    async def run(self) -> None:
        """Measure it all. When it returns, or is cancelled, no process is left."""
        series = {
            (scene, name): Series(
                adapter=name,
                scenario=scene.name,
                params=params_of(scene),
                seed=self.plan.seed,
                warmup=self.plan.warmup,
                processes=self.plan.processes,
            )
            for scene in self.plan.scenes
            for name in self.plan.adapters
        }
        self.result.series = list(series.values())
        self.result.complete = False
        server = await Child.start([sys.executable, "-m", f"{__package__}._server"])
        try:
            self._server = f"http://127.0.0.1:{(await server.line()).decode()}"
            for number in range(self.plan.processes):
                for scene in self.plan.scenes:
                    row = {n: series[scene, n] for n in self.plan.adapters}
                    await self._round(number, scene, row)
                await self._end_all()  # the next round has processes of its own
            self.result.complete = True
        finally:
            with trio.CancelScope(shield=True):  # each brings its own bound
                await self._end_all()
                await server.stop()

    async def _end_all(self) -> None:
        for name in list(self._children):
            await self._end(name)

    async def _end(self, name: str) -> None:
        await self._children[name].stop()
        del self._children[name]

    async def _round(self, number: int, scene: Scene, row: dict[str, Series]) -> None:
        """Some samples of each adapter in one scenario, by turns."""
        ready = [name for name in row if await self._set_up(name, scene, row[name])]
        chance = random.Random(f"{self.plan.seed} {scene.name} {number}")
        warmup, wanted = self.plan.warmup, self.plan.in_round(number)
        began = trio.current_time()
        for turn in range(warmup + wanted):
            delay = int(draw(scene, chance) * 1e6)
            chance.shuffle(ready)
            for name in list(ready):
                before = trio.current_time()
                sample = await self._sample(name, scene, row[name], delay)
                if sample and turn >= warmup:
                    sample.process = number
                    row[name].samples.append(sample)
                if sample and sample.returned is None:  # that is not the others' time
                    began += trio.current_time() - before
                if row[name].problem:
                    ready.remove(name)
                self._tick(name, scene)
            spent = trio.current_time() - began
            if not ready or (0 < self.plan.series_seconds < spent and turn > warmup):
                break

    async def _set_up(self, name: str, scene: Scene, series: Series) -> bool:
        """Whether an adapter is there and ready for the scenario."""
        if series.skipped or series.problem:
            return False
        try:
            if name not in self._children:
                self._children[name] = await self._start(name)
            child = self._children[name]
            about = await child.ask(Command(method="versions"))
            series.versions = about.versions
            scene = msgspec.structs.replace(scene, server=self._server)
            answer = about
            if not about.skipped:
                answer = await child.ask(Command(method="setup", scene=scene))
        except (Died, OSError) as error:
            answer = Answer(problem=str(error))
            await self._forget(name)
        series.skipped, series.problem = answer.skipped, answer.problem
        return not (answer.skipped or answer.problem)

    async def _start(self, name: str) -> Child:
        if name in self.plan.commands:
            return await Child.start(self.plan.commands[name])
        cores = ",".join(map(str, self.plan.affinity))
        python = self.plan.pythons.get(name, sys.executable)
        host = f"{__package__}._host"
        return await Child.start([python, "-m", host, name, self.plan.gc, cores])

    async def _forget(self, name: str) -> None:
        if name in self._children:
            await self._end(name)

    async def _sample(
        self, name: str, scene: Scene, series: Series, delay: int
    ) -> Sample | None:
        """One run and its stop. What goes wrong ends the series, not the bench."""
        sample = None
        try:
            child = self._children[name]
            answer = await child.ask(Command(method="start", delay_ns=delay))
            if not answer.problem:
                answer = await child.ask(Command(method="join"))
            series.problem, sample = answer.problem, answer.sample
        except Died as error:
            series.problem = str(error)
            await self._forget(name)
        if sample and sample.quiet is None:  # what is left must not touch the next one
            await self._forget(name)
            hung = sum(s.returned is None for s in series.samples)
            if sample.returned is None and hung + 1 >= MOST_HUNG:
                series.problem = f"{MOST_HUNG} runs did not return: it was given up"
            else:
                await self._set_up(name, scene, series)
        return sample


def draw(scene: Scene, chance: random.Random) -> float:
    """The milliseconds from when the work is under way to the stop."""
    if scene.when == "race":
        return scene.body_ms + chance.uniform(-RACE_MS, RACE_MS)
    return chance.uniform(*DELAY_MS)


def adapters_from(given: list[str]) -> dict[str, list[str]]:
    """Adapters as typed, `NAME` or `NAME=COMMAND`; the command of each, empty for ours.

    Raises ValueError that names what is wrong.
    """
    found: dict[str, list[str]] = {}
    for text in given:
        name, equals, command = text.partition("=")
        if not equals and name not in ADAPTERS:
            there = ", ".join(ADAPTERS)
            raise ValueError(f"no adapter {name!r}: there are {there}, or NAME=COMMAND")
        if equals and (name in ADAPTERS or not name or not command):
            raise ValueError(f"{text!r}: it is NAME=COMMAND, with a name of its own")
        found[name] = shlex.split(command)
    return found


def pythons_from(given: list[str]) -> dict[str, str]:
    """`NAME=PATH` of each; raises ValueError that names what is wrong."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or name not in ADAPTERS:
            raise ValueError(f"--python {text}: it is NAME=PATH, of an adapter")
        if not os.access(path, os.X_OK):
            raise ValueError(f"--python {text}: {path} is no program")
        found[name] = path
    return found
