"""InSS' latency model as a claim: what is met, and what is said without data."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.claims.base import ClaimStatus, Effort
from lab.claims.inss.models import Errors, judge_05


@pytest.mark.parametrize(
    ("ours", "blind", "met"), [(3.9, 4.0, True), (4.1, 8.3, True), (4.1, 8.1, False), (9.0, 10.0, False)]
)
def test_below_four_percent_or_half_of_blindness(ours: float, blind: float, *, met: bool) -> None:
    assert Errors(by_name={"inss": ours, "inss-ni": blind}, members=7).met is met


def test_without_data_it_says_so(tmp_path: Path) -> None:
    told = judge_05(Effort(data=tmp_path))
    assert (told.measured, told.status) == ("nothing", ClaimStatus.NOT_REPRODUCED)
    assert f"there is no public data in {tmp_path}" in told.note
