"""Who is still there: a lock that the kernel takes back when its holder is gone.

Each store that writes to a journal holds a lock file beside it. Whether the owner of a
claim lives is asked of the kernel, so nobody waits for a lease to run out after a
`kill -9`, and a process that is only stopped (SIGSTOP) counts as alive. These are flock
locks: they belong to the open file, where fcntl's belong to the process and are lost
as soon as anybody in it closes the same file. A child made by a bare `os.fork` shares
them, so an owner counts as alive until its forked children are gone too.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from glob import escape, glob

if sys.platform == "win32":  # written by the book, never run
    import msvcrt

    def _try_lock(fd: int, *, shared: bool) -> bool:
        os.lseek(fd, 1 << 20, os.SEEK_SET)  # beyond the text: that can be read
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # it knows no shared locks
        except OSError:
            return False
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return True

    def make_private(fd: int) -> None:
        """Files are private to the user by where they are."""

else:
    import fcntl

    def _try_lock(fd: int, *, shared: bool) -> bool:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def make_private(fd: int) -> None:
        """Only the user may read it, whatever the umask says."""
        os.fchmod(fd, 0o600)


class OwnerLock:
    """Says that its maker is alive, from when it is made until `release`."""

    def __init__(self, journal: str) -> None:
        _remove_the_dead(journal)
        while True:
            self.owner = os.urandom(16).hex()
            self._path = _lock_file(journal, self.owner)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            # Until it is locked it looks like one of the dead: whoever clears them away
            # may have had it in hand. Then nobody would see us alive: try another.
            if _try_lock(self._fd, shared=False) and os.path.exists(self._path):
                break
            os.close(self._fd)
        make_private(self._fd)
        os.write(self._fd, str(os.getpid()).encode())

    def release(self) -> None:
        """Nobody is here any more."""
        os.close(self._fd)
        with suppress(OSError):  # somebody may have been faster
            os.unlink(self._path)


def holder(journal: str, owner: str, *, clear: bool = True) -> str | None:
    """The process id of an owner that lives. `clear` removes the file of a dead one."""
    path = _lock_file(journal, owner)
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        # Shared: two that ask at once must not take each other for the owner.
        if not _try_lock(fd, shared=True):
            return os.read(fd, 20).decode() or "unknown"
        if clear:
            with suppress(OSError):
                os.unlink(path)
        return None
    finally:
        os.close(fd)


def _lock_file(journal: str, owner: str) -> str:
    return f"{journal}-owner-{owner}"


def _remove_the_dead(journal: str) -> None:
    prefix = _lock_file(journal, "")
    for path in glob(escape(prefix) + "*"):
        holder(journal, path.removeprefix(prefix))
