"""Claims of InSS hold, and their judges see what is wrong."""

from __future__ import annotations

import pytest

from lab.claims.base import Claim, ClaimStatus, Effort
from lab.claims.inss import claims


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.id)
def test_it_holds(claim: Claim) -> None:
    found = claim.judge(Effort(examples=30))
    assert found.status is ClaimStatus.PASS, found.note


def test_a_misprint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "ROWS", {"R": ((10.0,), (11.0,), (9.9,))})
    found = claims.judge_01(Effort())
    assert found.status is ClaimStatus.FAIL
    assert "10.000" in found.note
