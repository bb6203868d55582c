"""AC-HET-02: the worked bills, and the three rules where they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.world.ledger import Bill, Usage, bill

V100, T4 = 0.191, 0.024


def usage(price: float, memory_gb: float, whole_gb: float, **changes: Any) -> Usage:
    made = Usage(
        gpu="a",
        price_per_gb_s=price,
        memory_gb_gpu=whole_gb,
        memory_gb_reserved=memory_gb,
        memory_gb_used=memory_gb,
        begin_s=0,
        end_s=600,
    )
    return replace(made, **changes)


@pytest.mark.parametrize(("price", "whole_gb", "shared", "whole"), [(V100, 32, 343.8, 3667.2), (T4, 16, 43.2, 230.4)])
def test_ac_het_02_worked_bills(price: float, whole_gb: float, shared: float, whole: float) -> None:
    assert bill([usage(price, 3, whole_gb)]).paper == pytest.approx(shared)
    assert bill([usage(price, 3, whole_gb, whole_gpu=True)]).paper == pytest.approx(whole)


def test_two_tenants_pay_for_their_memory_or_for_the_gpu_they_occupy_together() -> None:
    first = usage(V100, 4, 32, memory_gb_used=3.0)
    second = replace(first, begin_s=300, end_s=900)
    found = bill([second, first])
    assert found.paper == pytest.approx(V100 * 3 * 1200)
    assert found.reserved == pytest.approx(V100 * 4 * 1200)
    assert found.occupied == pytest.approx(V100 * 32 * 900)


def test_gaps_are_not_occupied_and_gpus_are_counted_apart() -> None:
    first = usage(T4, 2, 16, end_s=10)
    later, elsewhere = replace(first, begin_s=20, end_s=30), replace(first, gpu="b")
    assert bill([first, later, elsewhere]).occupied == pytest.approx(T4 * 16 * 30)
    assert bill([]) == Bill(paper=0, reserved=0, occupied=0)
