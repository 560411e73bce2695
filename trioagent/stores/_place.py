"""Where a journal is, and how to say what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

from trioagent._errors import StoreError

from ._owner import make_private

REMEDIES = {
    "missing": "look whether the path is right",
    "corrupt": "it was left as it is: bring back a copy, or move it out of the way",
    "newer": "use the version of trioagent that wrote it, or a later one",
    "busy": "another process is writing: try again, or allow it more busy_seconds",
    "full": "make room; what was acknowledged before is safe",
    "io": "look at the disk, and at who may read and write there",
    "hung": "look at the disk; what is still on its way may or may not be kept",
    "unknown_run": "look which there are with `runs`",
    "exists": "each run needs an id of its own",
    "owned": "wait for its end, or take it over",
    "fenced": "nothing more is kept of what was asked for here",
    "error": "this may be a bug in trioagent",
}


def default_path() -> Path:
    """Where the runs of this user go when nobody says where."""
    home = os.environ.get("TRIOAGENT_HOME")
    if home:
        return Path(home) / "journal.db"
    from platformdirs import user_data_path  # only who needs it pays for it

    return user_data_path("trioagent") / "journal.db"


class Place:
    """The path of a journal. What is wrong with the journal is said in its words."""

    def __init__(self, path: Path, *, may_create: bool, make_folder: bool) -> None:
        self.path = path
        self._path = os.path.abspath(path)  # also after a chdir
        self._may_create = may_create
        self._make_folder = make_folder

    @property
    def real(self) -> str:
        """What all who use it agree on, whatever links they came by."""
        return os.path.realpath(self._path)

    def is_there(self, inode: int | None = None) -> bool:
        """Whether there is a file, and whether it is that one."""
        try:
            return os.stat(self._path).st_ino == inode or inode is None
        except FileNotFoundError:
            return False

    def look(self) -> bool:
        """Whether there is a journal to read: none is fine where one may be made."""
        if not self.is_there():
            if not self._may_create:
                raise self.problem("missing", "there is no such file")
            folder = Path(self.real).parent
            if not self._make_folder and not folder.is_dir():
                what = f"there is no directory {folder}"
                raise self.problem("missing", what, "make it, or correct the path")
            return False
        return True

    def create(self) -> str:
        """Make an empty file that only the user can read, if there is none."""
        if not self.look():
            if self._make_folder:
                Path(self.real).parent.mkdir(0o700, parents=True, exist_ok=True)
            try:
                fd = os.open(self.real, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            except FileExistsError:  # somebody else was faster
                return self.real
            make_private(fd)
            os.close(fd)
        return self.real

    def problem(self, code: str, what: str, remedy: str = "") -> StoreError:
        """What happened, to which file, and what to do about it."""
        text = f"the journal {self.path}: {what}; {remedy or REMEDIES[code]}"
        return StoreError(text, code=code)
