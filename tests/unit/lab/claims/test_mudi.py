"""Mudi's claims that are exact or properties hold, and say how much they looked at."""

from __future__ import annotations

import pytest

from lab.claims.base import ClaimStatus, Effort
from lab.claims.mudi import claims

SMALL = Effort(seeds=1, examples=20)
BY_ID = {claim.id: claim for claim in claims.CLAIMS}


def test_every_claim_is_there_once() -> None:
    assert list(BY_ID) == [f"AC-MUD-{number:02d}" for number in range(1, 5)]
    assert [claim.kind.value for claim in claims.CLAIMS] == ["E", "E", "P", "P"]


@pytest.mark.parametrize("name", sorted(BY_ID))
def test_it_passes(name: str) -> None:
    evidence = BY_ID[name].judge(SMALL)
    assert (evidence.status, evidence.note) == (ClaimStatus.PASS, "")


def test_what_was_seen_is_counted() -> None:
    assert "of 1000 random curves" in BY_ID["AC-MUD-01"].judge(SMALL).measured
    assert BY_ID["AC-MUD-04"].judge(SMALL).measured.startswith("12 plans: 0 devices")
