"""Whether this machine is fit to measure, and what it is."""

from __future__ import annotations

import gc
import os
import platform
import sys
import sysconfig
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from ._results import Environment
from .adapters import ADAPTERS

OURS = ("trioagent", "trio", "msgspec", "httpx", "rich", "numpy", "matplotlib")
SLEEPS, SLEEP_SECONDS = 200, 0.001
LATE_US = 1_000  # a timer that is this late hides what is measured
CPU = Path("/sys/devices/system/cpu")
CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
QUICK_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")

Level = Literal["ok", "warning", "failure"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    value: str
    level: Level = "ok"
    advice: str = ""


def environment(collect: str = "on") -> Environment:
    """Where a bench runs. `collect` is "off" where the adapters collect no garbage."""
    return Environment(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        platform=platform.platform(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 0,
        affinity=_affinity(),
        governor=_read(CPU / "cpu0/cpufreq/scaling_governor"),
        load=[round(load, 2) for load in _load()],
        gc=collect,
        clock=_read(Path(CLOCK_SOURCE)),
        packages={name: v for name in OURS if (v := _version(name))},
    )


def examine() -> list[Finding]:
    """Look at all that makes measurements hold or not. Takes half a second."""
    return [
        _python(),
        _collector(),
        _cores(),
        _busy(),
        _governor(),
        _turbo(),
        _clock(),
        _timers(),
        _wardens(),
        *_packages(),
    ]


def _python() -> Finding:
    debug = bool(sysconfig.get_config_var("Py_DEBUG"))
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    kind = ", debug build" * debug + ", without a GIL" * free
    value = f"{platform.python_implementation()} {platform.python_version()}{kind}"
    if debug:
        return Finding(
            "python", value, "warning", "a debug build is several times slower"
        )
    return Finding("python", value)


def _collector() -> Finding:
    value = f"{'on' if gc.isenabled() else 'off'}, thresholds {gc.get_threshold()}"
    return Finding("garbage collector", value)


def _cores() -> Finding:
    here = _affinity()
    value = f"{os.cpu_count()}, this process may use {len(here) or 'all'}"
    if len(here) == 1 or os.cpu_count() == 1:
        advice = (
            "the adapter, its control thread and the server share one: use two or more"
        )
        return Finding("processors", value, "warning", advice)
    return Finding("processors", value)


def _busy() -> Finding:
    load = _load()
    if not load:
        return Finding("load", "unknown")
    value = " ".join(f"{one:.2f}" for one in load)
    if load[0] > 0.5 * (os.cpu_count() or 1):
        return Finding(
            "load", value, "warning", "something else is running: end it first"
        )
    return Finding("load", value)


def _governor() -> Finding:
    value = _read(CPU / "cpu0/cpufreq/scaling_governor")
    if value and value != "performance":
        advice = "`cpupower frequency-set -g performance` keeps the clock steady"
        return Finding("frequency governor", value, "warning", advice)
    return Finding("frequency governor", value or "not visible (a virtual machine?)")


def _turbo() -> Finding:
    off = {"intel_pstate/no_turbo": "1", "cpufreq/boost": "0"}
    for name, word in off.items():
        if value := _read(CPU / name):
            return Finding("turbo", "off" if value == word else "on: times may drift")
    return Finding("turbo", "not visible")


def _clock() -> Finding:
    source = _read(Path(CLOCK_SOURCE))
    ticks = [time.monotonic_ns() for _ in range(10_000)]
    steps = [b - a for a, b in pairwise(ticks) if b > a]
    value = f"{source or 'unknown source'}, reads {min(steps, default=0)} ns apart"
    if source and source not in QUICK_CLOCKS:
        return Finding("clock", value, "warning", "a slow clock is itself a latency")
    return Finding("clock", value)


def timer_lateness() -> list[int]:
    """How late a thread wakes up that has slept for 1 ms, in ns, sorted."""
    late: list[int] = []

    def sleeper() -> None:
        for _ in range(SLEEPS):
            due = time.monotonic_ns() + int(SLEEP_SECONDS * 1e9)
            time.sleep(SLEEP_SECONDS)
            late.append(time.monotonic_ns() - due)

    thread = threading.Thread(target=sleeper)
    thread.start()
    thread.join()
    return sorted(late)


def _timers() -> Finding:
    late = timer_lateness()
    median, tail = (late[int(len(late) * p)] / 1e3 for p in (0.5, 0.99))
    value = f"late by {median:.0f} µs (median), {tail:.0f} µs (p99)"
    if tail > LATE_US:
        return Finding(
            "timers", value, "warning", "wake-ups are late: is it a busy host?"
        )
    return Finding("timers", value)


def _wardens() -> Finding:
    if sys.platform == "win32":
        advice = "the bench cannot end what it has started there"
        return Finding("system", sys.platform, "failure", advice)
    if sys.platform != "linux":
        return Finding("system", sys.platform, "warning", "some counts need Linux")
    return Finding("system", sys.platform)


def _packages() -> list[Finding]:
    found = [
        _package("numpy", "pip install 'trioagent[bench]'", "failure"),
        _package("matplotlib", "for pictures: pip install 'trioagent[plots]'", "ok"),
    ]
    for name, (_, pins) in ADAPTERS.items():
        if name == "trioagent":
            continue
        for package, pin in pins.items():
            found.append(_peer(package, pin))
    return found


def _package(name: str, remedy: str, level: Level) -> Finding:
    there = _version(name)
    if there:
        return Finding(name, there)
    return Finding(name, "not installed", level, remedy)


def _peer(package: str, pin: str) -> Finding:
    there = _version(package)
    if not there:
        remedy = "it is skipped; pip install 'trioagent[peers]'"
        return Finding(package, "not installed", "ok", remedy)
    if pin and there != pin:
        return Finding(package, there, "warning", f"its adapter was written for {pin}")
    return Finding(package, there)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


def _load() -> tuple[float, ...]:
    return os.getloadavg() if hasattr(os, "getloadavg") else ()


def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model", "Hardware"}:
            return value.strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
