"""The table of claims: complete, one form, and honest about what could not be judged."""

from __future__ import annotations

import pytest

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort
from lab.claims.registry import Judged, claims, judged
from solvers.errors import EngineError, InputError


def claim(name: str, evidence: ClaimEvidence | Exception) -> Claim:
    def judge(effort: Effort) -> ClaimEvidence:
        if isinstance(evidence, Exception):
            raise evidence
        return evidence

    return Claim(id=name, kind=ClaimClass.EXACT, stated="so", judge=judge)


CATALOGUE = {
    "AC-HET": "EEPPSSSSSG",
    "AC-INS": "EEPPSSSSSSSSG",
    "AC-MOR": "EEPPSSSG",
    "AC-MUD": "EEPPSSSSSSSG",
    "AC-OLT": "EEEPSSSSSSSSSG",
}
"""The classes of each paper's acceptance claims, in the order of their numbers."""


def test_every_claim_of_the_catalogue_is_there_once_with_its_class() -> None:
    wanted = {
        f"{paper}-{number:02}": letter
        for paper, letters in CATALOGUE.items()
        for number, letter in enumerate(letters, 1)
    }
    assert {item.id: item.kind.value for item in claims()} == wanted
    assert len(claims()) == len(wanted)


def test_claims_are_chosen_by_how_they_begin() -> None:
    assert [item.id for item in claims(["AC-HET-1", "AC-HET-03"])] == ["AC-HET-03", "AC-HET-10"]
    with pytest.raises(InputError, match="no claim begins with AC-NO"):
        claims(["AC-NO"])


def test_what_needs_a_gpu_says_so_and_is_never_passed_by_a_simulation() -> None:
    on_hardware = [item for item in claims() if item.kind is ClaimClass.HARDWARE]
    assert len(on_hardware) == 5
    for item in on_hardware:
        told = item.judge(Effort())
        assert told.status is ClaimStatus.NOT_REPRODUCED
        assert "needs a GPU" in told.note


def test_claims_are_told_in_one_form_as_they_come() -> None:
    seen = ClaimEvidence(measured="7", status=ClaimStatus.PASS, note="n")
    heard: list[Judged] = []
    told = judged([claim("b", seen), claim("a", seen)], Effort(), heard.append)
    assert told == heard
    assert told[0] == {"id": "b", "class": "E", "stated": "so", "measured": "7", "status": "pass", "note": "n"}


def test_a_judge_that_breaks_is_a_failed_claim_and_stops_nobody() -> None:
    good = ClaimEvidence(measured="7", status=ClaimStatus.PASS)
    broken, after = judged([claim("a", EngineError("no\nengine")), claim("b", good)], Effort(), lambda each: None)
    assert broken["status"] == "fail"
    assert broken["note"] == "could not be judged: EngineError: no engine"
    assert after["status"] == "pass"
