"""The tables of a journal, and every statement that reads or writes them."""

from __future__ import annotations

APPLICATION = 0x7472696F  # the application_id of our files: "trio"

# How a file becomes one of the next version: step n makes version n + 1. Files of every
# version are out there, so a step is never changed.
STEPS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL UNIQUE,
            claim INTEGER NOT NULL,
            owner TEXT
        )""",
        # The run by number, so that the keys of many runs share a page; and with a
        # rowid, so that all events of a commit go to the last page, whatever their run.
        """CREATE TABLE events (
            run INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            event TEXT NOT NULL,
            PRIMARY KEY (run, seq)
        )""",
    )
]

BEGIN_RUN = """
INSERT INTO runs (run_id, claim, owner) VALUES (?, 1, ?) ON CONFLICT DO NOTHING
"""
# Two look-ups in an index, however long the run is. No row: somebody else has the run.
ADD_EVENT = """
INSERT INTO events (run, seq, event)
SELECT id, 1 + ifnull((SELECT max(seq) FROM events WHERE run = id), 0), ?2
FROM runs WHERE run_id = ?1 AND claim = ?3
"""
FREE = "UPDATE runs SET owner = NULL WHERE run_id = ? AND claim = ?"
LOAD = """
SELECT seq, event FROM events
WHERE run = (SELECT id FROM runs WHERE run_id = ?) ORDER BY seq
"""
# One statement, so one snapshot: somebody else may be making it a journal meanwhile.
WHOSE = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id, pragma_user_version
"""
CLAIM = "UPDATE runs SET owner = ?, claim = ? WHERE run_id = ?"
CARRIED_BY = "SELECT claim, owner FROM runs WHERE run_id = ?"
RUNS = "SELECT run_id FROM runs ORDER BY id DESC"
