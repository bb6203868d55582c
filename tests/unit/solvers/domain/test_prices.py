"""The one rule of prices that plans and bills follow: which row, and which part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.device import PriceKind, PriceRow
from tests import builders

SPOT = PriceRow(kind=PriceKind.SPOT, usd_per_h=1.0, region="north")
POLICY = builders.policy()


def test_a_slice_pays_by_its_part_of_the_memory() -> None:
    slices = [builders.mig_slice("n1", index, "a100", part) for index, part in enumerate((1, 2, 3), start=1)]
    kind, host = builders.gpu_type("a100"), builders.node("n1")
    assert POLICY.usd_per_h(builders.device("n1", 0, "a100"), kind, host) == 2.9
    for part, device in zip((1, 2, 3), slices, strict=True):
        assert POLICY.usd_per_h(device, kind, host) == pytest.approx(2.9 * part / 8)


def test_no_slice_costs_more_than_its_gpu() -> None:
    kind = builders.gpu_type("a100")
    odd = replace(builders.mig_slice("n1", 1, "a100", 7), memory_mib=2 * kind.memory_mib)
    assert POLICY.usd_per_h(odd, kind, builders.node("n1")) == 2.9


def test_a_whole_device_costs_its_type_whatever_memory_it_reports() -> None:
    device = builders.device("n1", 0, "t4", memory_mib=15000)
    assert POLICY.usd_per_h(device, builders.gpu_type("t4"), builders.node("n1")) == 0.35


def test_the_policys_price_kind_comes_before_the_nodes() -> None:
    device, host = builders.device("n1", 0, "t4"), builders.node("n1", region="north")
    kind = builders.gpu_type("t4", prices=(*builders.gpu_type("t4").prices, SPOT))
    assert POLICY.usd_per_h(device, kind, host) == 0.35
    assert builders.policy(price_kind=PriceKind.SPOT).usd_per_h(device, kind, host) == 1.0


def test_no_price_row_means_no_cost() -> None:
    host = builders.node("n1", price_kind=PriceKind.RESERVED)
    assert POLICY.usd_per_h(builders.device("n1", 0, "t4"), builders.gpu_type("t4"), host) == 0.0
