"""What a snapshot looks up: prices of devices and MIG slices, and values by id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.device import PriceKind, PriceRow
from tests import builders

SPOT = PriceRow(kind=PriceKind.SPOT, usd_per_h=1.0, region="north")


def test_a_slice_pays_by_its_part_of_the_memory() -> None:
    slices = [builders.mig_slice("n1", index, "a100", part) for index, part in enumerate((1, 2, 3), start=1)]
    whole = builders.device("n1", 0, "a100")
    picture = builders.snapshot([whole, *slices])
    assert picture.price_usd_per_h(whole) == 2.9
    for part, device in zip((1, 2, 3), slices, strict=True):
        assert picture.price_usd_per_h(device) == pytest.approx(2.9 * part / 8)


def test_a_whole_device_costs_its_type_whatever_memory_it_reports() -> None:
    device = builders.device("n1", 0, "t4", memory_mib=15000)
    assert builders.snapshot([device]).price_usd_per_h(device) == 0.35


def test_the_policys_price_kind_comes_before_the_nodes() -> None:
    device = builders.device("n1", 0, "t4")
    types = (builders.gpu_type("t4", prices=(*builders.gpu_type("t4").prices, SPOT)),)
    picture = builders.snapshot([device], nodes=[builders.node("n1", region="north")], gpu_types=types)
    assert picture.price_usd_per_h(device) == 0.35
    assert replace(picture, policy=builders.policy(price_kind=PriceKind.SPOT)).price_usd_per_h(device) == 1.0


def test_no_price_row_means_no_cost() -> None:
    device = builders.device("n1", 0, "t4")
    picture = builders.snapshot([device], nodes=[builders.node("n1", price_kind=PriceKind.RESERVED)])
    assert picture.price_usd_per_h(device) == 0.0


def test_values_are_found_by_their_own_ids() -> None:
    picture = builders.lab([builders.service()], jobs=(builders.job(),), tasks=(builders.task(),))
    assert picture.devices_by_id()["GPU-b-1"].gpu_type == "v100"  # type: ignore[index]
    assert set(picture.services_by_id()) == {"demo/vision"}
    assert set(picture.jobs_by_id()) == {"demo/train"}
    assert set(picture.tasks_by_id()) == {"demo/batch"}
    assert set(picture.profiles_by_key()) == {("resnet50", name) for name in ("a100", "l4", "t4", "v100")}
    assert picture.demands_by_service() == {}
