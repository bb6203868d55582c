"""The table of claims: complete, one form, and honest about what could not be judged."""

from __future__ import annotations

import pytest

from app.arena.claims.base import Claim, ClaimClass, Effort, Evidence, Status
from app.arena.claims.registry import Judged, claims, judged
from solvers.errors import EngineError, InputError


def claim(name: str, evidence: Evidence | Exception) -> Claim:
    def judge(effort: Effort) -> Evidence:
        if isinstance(evidence, Exception):
            raise evidence
        return evidence

    return Claim(id=name, kind=ClaimClass.EXACT, stated="so", judge=judge)


def test_every_known_claim_has_its_number_once() -> None:
    found = [item.id for item in claims()]
    assert found == sorted(set(found))
    assert [name for name in found if name.startswith("AC-HET")] == [f"AC-HET-{number:02}" for number in range(1, 11)]
    assert [item.id for item in claims(["AC-HET-1", "AC-HET-03"])] == ["AC-HET-03", "AC-HET-10"]
    with pytest.raises(InputError, match="no claim begins with AC-NO"):
        claims(["AC-NO"])


def test_claims_are_told_in_one_form_as_they_come() -> None:
    seen = Evidence(measured="7", status=Status.PASS, note="n")
    heard: list[Judged] = []
    told = judged([claim("b", seen), claim("a", seen)], Effort(), heard.append)
    assert told == heard
    assert told[0] == {"id": "b", "class": "E", "stated": "so", "measured": "7", "status": "pass", "note": "n"}


def test_a_judge_that_breaks_is_a_failed_claim_and_stops_nobody() -> None:
    good = Evidence(measured="7", status=Status.PASS)
    broken, after = judged([claim("a", EngineError("no\nengine")), claim("b", good)], Effort(), lambda each: None)
    assert broken["status"] == "fail"
    assert broken["note"] == "could not be judged: EngineError: no engine"
    assert after["status"] == "pass"
