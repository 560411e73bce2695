"""A bank that charges and does not answer: one charge, or a person has to look."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .processes import charges, last_words, open_bank, python

COMPLETED = ["completed", "None", "stop"]
IN_REVIEW = ["stopped", "effect_uncertain", "review"]


def last_words_of_the_first(how: str, *, unknown: bool) -> list[str]:
    """Status, reason and decision of the run that was interrupted."""
    if how == "SIGKILL":
        return []
    if how == "tool":  # its limit; the run goes on, and clears it up where it can
        return IN_REVIEW if unknown else COMPLETED
    if how == "deadline":
        return ["timed_out", "deadline", "review" if unknown else "stop"]
    return ["cancelled", "user", "review" if unknown else "resume"]


@pytest.mark.parametrize("looks", ["looks", "blind"])
@pytest.mark.parametrize("effect", ["keyed", "once"])
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "deadline", "tool"])
def test_one_charge_or_a_person_has_to_look(
    how: str, effect: str, looks: str, tmp_path: Path
) -> None:
    # B24, B65
    with open_bank() as bank:
        pay(how, effect, looks, bank, str(tmp_path / "journal.db"))


def pay(how: str, effect: str, looks: str, bank: str, journal: str) -> None:
    unknown = effect == "once" and looks == "blind"
    with python("tests.payer", journal, bank, effect, looks, how) as payer:
        assert payer.stdout
        run_id = payer.stdout.readline().strip()
        charges(bank, least=1)  # it has begun, and no answer will come
        if how.startswith("SIG"):
            payer.send_signal(signal.Signals[how])
        said = last_words(payer)
    assert said == last_words_of_the_first(how, unknown=unknown)
    assert len(charges(bank)) == 1
    if said == COMPLETED:
        return
    with python("tests.payer", journal, bank, effect, looks, "", run_id) as payer:
        said = last_words(payer)[1:]
    assert len(charges(bank)) == 1
    assert said == (IN_REVIEW if unknown else COMPLETED)
