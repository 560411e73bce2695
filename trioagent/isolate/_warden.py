"""The warden: runs one command, and nothing that came of it outlives the owner.

    python -I -S _warden.py CONTROL OWNER GRACE LC_CTYPE COMMAND…

It knows nothing but the standard library, for it is run by its path and starts often.
CONTROL is its end of a socket to the owner, whose pid is OWNER. What it is told there:

    T       end it: TERM to every descendant, after GRACE seconds KILL
    K       KILL now
    (end)   the owner is dead, by `kill -9` too: KILL now

and what it answers, a line each: `started PID`, or `failed ERRNO` where the command
could not be run, and when no descendant is left `ended CODE`, which is negative where a
signal ended the command. What the command leaves behind ends in the same way.

On Linux it adopts orphans, so that descendants are found which have left their parent,
group and session (double fork, setsid). It is two processes, each of which ends
everything when the other one is killed. Elsewhere it has only the command's process
group. What it cannot end is what it may not signal: a program that runs as another
user.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from math import inf

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SCAN_SECONDS = 0.02  # between two looks for descendants while they are being ended
NOT_FOUND = 127

ON_LINUX = sys.platform.startswith("linux")


def prctl(option: int, value: int) -> None:
    """Ask the kernel for what only Linux has."""
    if ON_LINUX:
        none = ctypes.c_ulong(0)
        done = ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), none, none, none)
        if done != 0:
            raise OSError(f"prctl({option}, {value}) was refused")


def fork_tied(sig: int) -> int:
    """Fork; the child gets `sig` when this process ends, however it does.

    The kernel ties it to the thread that forks, and this program has but one.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, sig)
        if os.getppid() != parent:  # it was faster
            os._exit(NOT_FOUND)
    return pid


def start(command: list[str], environment: dict[str, str]) -> int:
    """Run the command in a session of its own; its pid. Raises OSError."""
    reader, writer = os.pipe()  # closed by a successful exec
    pid = fork_tied(signal.SIGKILL)
    if pid == 0:
        try:
            os.setsid()
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by every Python
                signal.signal(ignored, signal.SIG_DFL)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        finally:
            os._exit(NOT_FOUND)
    os.close(writer)
    with open(reader, "rb") as problem:
        if code := problem.read():
            os.waitpid(pid, 0)
            raise OSError(int(code), os.strerror(int(code)))
    return pid


def descendants() -> dict[int, int]:
    """Every process below this one, and the group it is in."""
    parents: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc") if ON_LINUX else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the name, which may hold anything: state, parent, group.
                    _, parent, group = file.read().rpartition(b")")[2].split()[:3]
            except OSError:  # it has ended
                continue
            parents[int(name)] = int(parent), int(group)
    found: dict[int, int] = {}
    above = {os.getpid()}
    while above:
        above = {pid for pid, (parent, _) in parents.items() if parent in above}
        found.update((pid, parents[pid][1]) for pid in above)
    return found


def terminate(leader: int, told: set[int]) -> None:
    """Send TERM to all descendants that are not `told`, and note them there."""
    new = (set(descendants()) if ON_LINUX else {leader}) - told
    for pid in new:
        send(os.kill if ON_LINUX else os.killpg, pid, signal.SIGTERM)
    told |= new


def kill(leader: int) -> None:
    """Send KILL to all descendants, in whole groups: none can fork itself out of it.

    Their groups have no other members, but for the one that the wardens are in: that is
    where a command stands before it has a session of its own.
    """
    found = descendants()
    groups = set(found.values()) if ON_LINUX else {leader}
    for group in groups - {os.getpgrp()}:
        send(os.killpg, group, signal.SIGKILL)
    for pid in found:
        send(os.kill, pid, signal.SIGKILL)


def send(how: Callable[[int, int], None], whom: int, sig: int) -> None:
    """Signal a process or a group, if it is there and we may."""
    try:
        how(whom, sig)
    except OSError:
        pass


def reap(leader: int, code: int | None) -> tuple[int | None, bool]:
    """Collect children that have ended: the leader's code, and whether any is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, not ON_LINUX and group_lives(leader)
        if pid == 0:
            return code, True
        if pid == leader:
            code = os.waitstatus_to_exitcode(status)


def group_lives(leader: int) -> bool:
    """Whether somebody is left in the command's group."""
    try:
        os.killpg(leader, 0)
    except OSError:
        return False
    return True


def wake_on_signals() -> int:
    """A file descriptor that tells of the signals that come."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: those are reset by exec, so the command has the defaults.
    for sig in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, lambda *_: None)
    return reader


class Orders:
    """When to KILL, by what was heard from the owner and by signals."""

    def __init__(self, control: int, owner: int | None, grace: float) -> None:
        self.kill_at = inf  # once it is set, TERM has been called for
        self.grace = grace
        self.control = control
        self.signals = wake_on_signals()
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.poll.register(self.signals, select.POLLIN)
        # The end of the socket is not all: a child that the owner has forked may hold
        # a copy of the other side.
        if owner is not None:
            self.poll.register(owner, select.POLLIN)

    def hear(self) -> bytes:
        """The next order; nothing where the owner is dead."""
        try:
            return os.read(self.control, 1)
        except OSError:  # with something unread in its end
            return b""

    def end_by(self, seconds: float) -> None:
        """Have it ended from now on, and killed after `seconds`."""
        self.kill_at = min(self.kill_at, time.monotonic() + seconds)

    def wait(self) -> None:
        """Until something happens, or it is time to look again."""
        looking = None if self.kill_at == inf else SCAN_SECONDS * 1000
        for fd, _ in self.poll.poll(looking):
            if fd == self.signals:
                if set(os.read(fd, 512)) - {signal.SIGCHLD}:
                    self.end_by(self.grace)
            elif fd == self.control and self.hear() == b"T":
                self.end_by(self.grace)
            else:
                self.end_by(0)
                self.poll.unregister(fd)


def supervise(orders: Orders, command: list[str], environment: dict[str, str]) -> int:
    """Run the command until nothing of it is left; its exit code."""
    leader = start(command, environment)
    leave_streams()
    tell(orders.control, b"started %d\n" % leader)
    code: int | None = None
    told: set[int] = set()
    while True:
        code, left = reap(leader, code)
        if not left:
            break
        if code is not None:
            orders.end_by(orders.grace)
        if time.monotonic() >= orders.kill_at:
            kill(leader)
        elif orders.kill_at < inf:
            terminate(leader, told)
        orders.wait()
    return NOT_FOUND if code is None else code


def leave_streams() -> None:
    """Only the command has them, so their other ends see it when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def tell(control: int, report: bytes) -> None:
    """Answer the owner, if it lives."""
    try:
        os.write(control, report)
    except OSError:
        pass


def stand_by(inner: int) -> None:
    """The outer warden: wait for the inner one, and clear up if it was killed."""
    leave_streams()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, lambda number, _: send(os.kill, inner, number))
    _, status = os.waitpid(inner, 0)
    if status:
        while reap(inner, None)[1]:
            kill(inner)
            time.sleep(SCAN_SECONDS)  # noqa: TID251 - there is no event loop here
    os._exit(0)


def watch(owner: int) -> int | None:
    """A file descriptor that tells of the owner's end, where the kernel has such."""
    try:
        return os.pidfd_open(owner) if ON_LINUX else None
    except OSError:
        return None


def main() -> None:
    """Read the arguments, stand by, and report."""
    control, owner = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control, False)
    environment = dict(os.environ)
    if not int(sys.argv[4]):  # Python has set it to get out of the C locale
        environment.pop("LC_CTYPE", None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    watched = watch(owner)
    if os.getppid() != owner:  # it died before we could watch it: start nothing
        return
    if ON_LINUX and (inner := fork_tied(signal.SIGTERM)):
        os.close(control)
        stand_by(inner)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # it is not handed down
    orders = Orders(control, watched, float(sys.argv[3]))
    try:
        report = b"ended %d\n" % supervise(orders, sys.argv[5:], environment)
    except OSError as error:
        report = b"failed %d\n" % (error.errno or 0)
    tell(control, report)
    os._exit(0)


if __name__ == "__main__":
    main()
