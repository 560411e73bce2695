"""Kill -9 at every place that matters, and two who want the same run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from trioagent import EffectStatus, Outcome, RunResumed, Status, StoreError, ToolStarted
from trioagent._state import RunState
from trioagent._turn import check_history
from trioagent.stores.sqlite import SqliteStore

from .payer import make_agent
from .processes import charges, last_words, open_bank, python

ROOT = Path(__file__).parent.parent
PROCESSES, RUNS = 4, 50


def carry_all(journal: str, ledger: str) -> list[str]:
    """What the carriers say, a line for each run."""
    argv = [sys.executable, "-m", "tests.dying", journal, ledger]
    carriers = [
        subprocess.Popen(
            [*argv, str(seed), str(RUNS)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for seed in range(PROCESSES)
    ]
    return [
        line for c in carriers for line in c.communicate(timeout=240)[0].split("\n")
    ]


async def test_two_hundred_runs_are_killed_and_no_effect_is_there_twice(
    tmp_path: Path,
) -> None:
    journal, ledger = tmp_path / "journal.db", tmp_path / "ledger"
    ledger.touch()
    said = carry_all(str(journal), str(ledger))
    ends = Counter(line.split()[1] for line in said if line)
    assert ends.keys() <= {"completed", "review"}, said
    assert ends.total() == PROCESSES * RUNS
    killed = sum(int(line.split()[2]) for line in said if line)
    assert killed > PROCESSES * RUNS, "or this test shows nothing"
    assert ends["review"] > 0

    done = Counter(ledger.read_text().split())
    assert max(done.values()) == 1, "no key twice"
    sure = unknown = 0
    async with SqliteStore(journal) as store:
        for run_id in await store.runs():
            events = await store.load(run_id)
            outcome = Outcome.of(RunState.replay(events))
            check_history(outcome.history)
            keys = {e.call.place: e.key for e in events if isinstance(e, ToolStarted)}
            for report in outcome.tools:
                key = keys.get((report.turn, report.position), "")
                if report.effect_status is EffectStatus.CONFIRMED:
                    assert done[key] == 1, f"{run_id}: confirmed, and not there"
                    sure += 1
                elif report.effect_status is EffectStatus.UNCERTAIN:
                    unknown += 1
                else:
                    assert done[key] == 0, f"{run_id}: {report}, and it is there"
    assert sure <= len(done) <= sure + unknown


ROUNDS = 50


def resume_all(journal: str, ledger: str) -> list[str]:
    """What became of the rivals, a line for each round."""
    argv = [sys.executable, "-m", "tests.rivals", journal, ledger, str(ROUNDS)]
    done = subprocess.run(
        argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=200
    )
    return done.stdout.splitlines()


async def test_of_two_who_resume_a_run_one_does_and_the_other_does_nothing(
    tmp_path: Path,
) -> None:
    # B43
    journal, ledger = tmp_path / "journal.db", tmp_path / "ledger"
    ledger.touch()
    said = [tuple(line.split()[1:]) for line in resume_all(str(journal), str(ledger))]
    assert len(said) == ROUNDS
    assert set(said) <= {("completed", "owned"), ("completed", "late")}, Counter(said)
    done = Counter(ledger.read_text().split())
    assert len(done) == done.total() == ROUNDS
    async with SqliteStore(journal) as store:
        for run_id in await store.runs():
            events = await store.load(run_id)
            assert sum(isinstance(e, RunResumed) for e in events) == 1


async def test_an_owner_that_slept_through_the_takeover_writes_nothing_more(
    tmp_path: Path,
) -> None:
    with open_bank() as bank:
        await sleep_and_wake(bank, str(tmp_path / "journal.db"))


async def sleep_and_wake(bank: str, journal: str) -> None:
    with python("tests.payer", journal, bank, "keyed", "blind", "") as owner:
        assert owner.stdout
        run_id = owner.stdout.readline().strip()
        charges(bank, least=1)
        owner.send_signal(signal.SIGSTOP)
        agent = make_agent(journal, bank, "keyed", looks=False, seconds=30)
        with pytest.raises(StoreError) as found:
            await agent.resume(run_id)
        assert found.value.code == "owned"
        assert str(owner.pid) in str(found.value), "it says who has it"
        outcome = await agent.resume(run_id, take_over=True)
        assert outcome.status is Status.COMPLETED
        assert agent.store is not None
        before = await agent.store.load(run_id)
        owner.send_signal(signal.SIGCONT)
        owner.send_signal(signal.SIGTERM)
        said = last_words(owner)
        assert owner.returncode != 0
    assert said == [], "it has no outcome to tell of"
    assert await agent.store.load(run_id) == before
    assert len(charges(bank)) == 1
