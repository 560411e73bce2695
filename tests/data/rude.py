"""Programs and functions that do not want to end: `python rude.py NAME [ARGUMENT…]`.

It loads nothing but the standard library, so that it starts at once and shows what a
worker loads by itself. Each says `ready` when it has become rude.
"""

# ruff: noqa: T201, TID251

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

FOREVER = 600


def say_ready() -> None:
    os.write(1, b"ready\n")  # in one piece, whoever else writes


def ignore_term() -> None:
    """TERM does nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_ready()
    time.sleep(FOREVER)


def daemonise() -> None:
    """Leave a process that has left parent, group and session, and ignores TERM."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say_ready()
            time.sleep(FOREVER)
        os._exit(0)
    os.wait()


def daemonise_and_stay() -> None:
    """Leave one, and do not end either."""
    daemonise()
    ignore_term()


def fork_from_a_thread() -> None:
    """A child that only one of the threads has, and that ignores TERM."""
    import threading

    thread = threading.Thread(target=daemonise)
    thread.start()
    thread.join()
    ignore_term()


def hold_stdout() -> None:
    """End at once, and leave a child that holds stdout open."""
    subprocess.Popen(["sleep", str(FOREVER)])
    say_ready()


def spin() -> None:
    """Use the processor for ever."""
    say_ready()
    while True:
        pass


def run_away() -> None:
    """Be another process all the time, in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_ready()
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()


def shout() -> None:
    """Write 1 MB to stderr before the answer."""
    for n in range(1024):
        sys.stderr.write(f"{n:05} " + "é" * 508 + "\n")
    sys.stderr.write("the last line\n")
    sys.stderr.flush()
    say_ready()


def not_listen() -> None:
    """End without a look at stdin."""
    os.close(0)
    say_ready()


def say_goodbye(path: str) -> None:
    """Be polite: at TERM write a file, print a lot, end with 5."""

    def end(*_: object) -> None:
        print("x" * 300_000, flush=True)  # more than a pipe holds
        Path(path).write_text("goodbye")
        sys.exit(5)

    signal.signal(signal.SIGTERM, end)
    say_ready()
    time.sleep(FOREVER)


# For workers


def add(a: int, b: int) -> int:
    print("this is no answer")  # on what was once the way back
    os.write(1, b"nor is this\n")
    return a + b


def loaded() -> list[str]:
    """The modules that this process has."""
    return sorted(sys.modules)


def pid() -> int:
    return os.getpid()


def hang(started: str) -> NoReturn:
    """Be as rude as can be: daemons, no TERM, a busy loop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        daemonise_and_stay()
    Path(started).touch()
    while True:
        pass


def clean_up(started: str, cleaned: str) -> None:
    try:
        Path(started).touch()
        time.sleep(FOREVER)
    finally:
        Path(cleaned).touch()


def die(how: str) -> None:
    """End this process in the middle of a call."""
    if how == "exit":
        os._exit(7)
    if how == "segfault":
        import ctypes

        ctypes.string_at(0)
    if how == "kill":  # as the kernel does when memory is short
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close":
        os.closerange(3, 100)
        time.sleep(FOREVER)
    sys.exit(3)


class Odd(Exception):
    """Can be pickled, and not be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd: {one}, {two}")


def fail(how: str) -> None:
    if how == "odd":
        raise Odd(1, 2)
    if how == "local":
        raise type("Local", (Exception,), {})("made here")
    if how == "group":
        raise ExceptionGroup("some", [KeyError("a"), ValueError("b")])
    raise KeyError(how)


def unsendable() -> object:
    return lambda: None


class Account:
    @staticmethod
    def open(name: str) -> str:
        return f"account of {name}"

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    def close(self) -> None: ...


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
