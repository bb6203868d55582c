"""Every claim is judged: quick ones with little effort in `make test`, all with full effort in `make claims`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lab.claims.catalogue import claims
from lab.claims.claim import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort, Judged, judged
from solvers.errors import EngineError, InputError

ROOT = Path(__file__).resolve().parents[2]
LITTLE = Effort(seeds=1, examples=20)
FULL = Effort(jobs=2, data=Path(os.environ.get("HEADROOM_DATA", "../shared/data")))
QUICK = [item for item in claims() if item.quick]


@pytest.mark.parametrize("claim", QUICK, ids=lambda item: item.id)
def test_a_quick_claim_comes_out_as_it_did(claim: Claim) -> None:
    assert claim.judge(LITTLE).status is claim.outcome, claim.judge(LITTLE)


@pytest.mark.claims
@pytest.mark.parametrize("claim", claims(), ids=lambda item: item.id)
def test_every_claim_comes_out_as_it_did(claim: Claim) -> None:
    (told,) = judged([claim], FULL, lambda _: None)
    assert told["status"] == claim.outcome.value, told


CATALOGUE = {
    "AC-HET": "EEPPSSSSSG",
    "AC-INS": "EEPPSSSSSSSSG",
    "AC-MOR": "EEPPSSSG",
    "AC-MUD": "EEPPSSSSSSSG",
    "AC-OLT": "EEEPSSSSSSSSSG",
}
"""The classes of each paper's acceptance claims, in the order of their numbers."""


def test_every_claim_of_the_catalogue_is_there_once_with_its_class() -> None:
    wanted = [
        (f"{paper}-{number:02}", letter)
        for paper, letters in CATALOGUE.items()
        for number, letter in enumerate(letters, 1)
    ]
    assert [(item.id, item.kind.value) for item in claims()] == wanted


def needs_gpu(claim: Claim) -> bool:
    """Whether no recording has told yet."""
    return claim.kind is ClaimClass.HARDWARE and "needs a GPU" in claim.judge(Effort()).note


def test_the_guide_tells_what_came_of_each() -> None:
    table = (ROOT / "docs" / "lab" / "claims.md").read_text(encoding="utf-8")
    for paper in CATALOGUE:
        line = next(line for line in table.splitlines() if line.startswith("|") and f"{paper}-01" in line)
        told = [numbers_of(cell) for cell in line.split("|")[2:5]]
        of_paper = [item for item in claims() if item.id.startswith(paper)]
        on_gpu = {int(item.id[-2:]) for item in of_paper if needs_gpu(item)}
        kept = {int(item.id[-2:]) for item in of_paper if item.outcome is ClaimStatus.PASS}
        assert told == [kept, {int(item.id[-2:]) for item in of_paper} - kept - on_gpu, on_gpu], paper


def numbers_of(cell: str) -> set[int]:
    """`01 to 05, 07` as numbers; what stands in parentheses is no number."""
    ranges = re.findall(r"(\d\d)(?: to (\d\d))?", re.sub(r"\(.*?\)", "", cell))
    return {number for first, last in ranges for number in range(int(first), int(last or first) + 1)}


def test_claims_are_chosen_by_how_they_begin() -> None:
    assert [item.id for item in claims(["AC-HET-1", "AC-HET-03"])] == ["AC-HET-03", "AC-HET-10"]
    with pytest.raises(InputError, match="no claim begins with AC-NO"):
        claims(["AC-NO"])


def test_what_needs_a_gpu_is_never_passed_by_a_simulation() -> None:
    on_hardware = [item for item in claims() if item.kind is ClaimClass.HARDWARE]
    told = {item.id: item.judge(Effort()) for item in on_hardware}
    by_boards = [name for name, found in told.items() if found.note.startswith("h100: ") and "; h200: " in found.note]
    assert by_boards == ["AC-HET-10", "AC-INS-13", "AC-MUD-12"]
    assert [item.id for item in on_hardware if needs_gpu(item)] == ["AC-MOR-08", "AC-OLT-14"]
    assert all(item.outcome is ClaimStatus.NOT_REPRODUCED for item in on_hardware if needs_gpu(item))


def made(name: str, evidence: ClaimEvidence | Exception) -> Claim:
    def judge(effort: Effort) -> ClaimEvidence:
        if isinstance(evidence, Exception):
            raise evidence
        return evidence

    return Claim(id=name, kind=ClaimClass.EXACT, stated="so", judge=judge)


def test_claims_are_told_in_one_form_as_they_come() -> None:
    seen = ClaimEvidence(measured="7", status=ClaimStatus.PASS, note="n")
    heard: list[Judged] = []
    told = judged([made("b", seen), made("a", seen)], Effort(), heard.append)
    assert told == heard
    assert told[0] == {"id": "b", "class": "E", "stated": "so", "measured": "7", "status": "pass", "note": "n"}


def test_a_judge_that_breaks_is_a_failed_claim_and_stops_nobody() -> None:
    good = ClaimEvidence(measured="7", status=ClaimStatus.PASS)
    broken, after = judged([made("a", EngineError("no\nengine")), made("b", good)], Effort(), lambda _: None)
    assert broken["status"] == "fail"
    assert broken["note"] == "could not be judged: EngineError: no engine"
    assert after["status"] == "pass"
