"""GPU types: price rows, whole units of SMs, clock tables; MIG devices; what nodes and devices refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from solvers.domain.device import Device, Label, MigProfile, MigSlice, PowerCap, PowerScope, PriceKind, PriceRow, Taint
from solvers.domain.ids import DeviceId
from solvers.errors import FieldError
from tests import builders

SPOT = PriceKind.SPOT
HALF = MigProfile(name="3g.40gb", sm_count=42, memory_mib=40000, instances_max=2)

BAD: dict[str, Callable[[], object]] = {
    "prices": lambda: builders.gpu_type("t4", prices=(PriceRow(kind=SPOT, usd_per_h=1),) * 2),
    "mig_profiles": lambda: builders.gpu_type("a100", mig_profiles=(HALF, HALF)),
    "clocks_mhz_sm": lambda: builders.gpu_type("t4", clocks_mhz_sm=()),
    "sm_granularity": lambda: builders.gpu_type("t4", sm_granularity=41),
    "mps_clients_max": lambda: builders.gpu_type("t4", mps_clients_max=0),
    "instances_max": lambda: replace(HALF, instances_max=0),
    "region": lambda: PriceRow(kind=SPOT, usd_per_h=1, region=""),
    "interruptions_per_h": lambda: PriceRow(kind=SPOT, usd_per_h=1, interruptions_per_h=-1),
    "limit_w": lambda: PowerCap(scope=PowerScope.RACK, subject="r1", limit_w=0),
    "labels": lambda: builders.node("n1", labels=(Label(key="a", value="1"), Label(key="a", value="2"))),
    "taints": lambda: builders.device("n1", 0, "t4", taints=(Taint(key="a"), Taint(key="a", value="b"))),
    "index": lambda: builders.device("n1", -1, "t4"),
    "parent": lambda: MigSlice(parent=DeviceId(""), profile="1g"),
}


@pytest.mark.parametrize("field", sorted(BAD))
def test_impossible_hardware_is_refused(field: str) -> None:
    with pytest.raises(FieldError) as caught:
        BAD[field]()
    assert caught.value.field == field


@pytest.mark.parametrize("clocks", [(900, 900), (900, 600), (0, 900)])
def test_clocks_that_do_not_rise_are_refused(clocks: tuple[int, ...]) -> None:
    with pytest.raises(FieldError, match="clocks_mhz_sm"):
        builders.gpu_type("t4", clocks_mhz_sm=clocks)


@pytest.mark.parametrize(("share_pct", "sm_count"), [(1, 2), (5, 2), (10, 4), (14, 4), (15, 6), (99, 38), (100, 40)])
def test_a_share_gives_whole_pairs_of_sms(share_pct: int, sm_count: int) -> None:
    assert builders.gpu_type("t4").sm_count_of_share(share_pct) == sm_count


def test_a_share_never_gives_less_than_one_unit_nor_more_than_asked() -> None:
    for granularity in (1, 2, 7):
        made = builders.gpu_type("a100", sm_granularity=granularity)
        given = [made.sm_count_of_share(share) for share in range(1, 101)]
        assert given == sorted(given)
        assert all(count % granularity == 0 for count in given)
        assert given[0] == granularity
        assert all(count <= max(granularity, share * 1.08) for share, count in enumerate(given, start=1))


def test_a_regions_own_price_comes_before_the_default() -> None:
    prices = (PriceRow(kind=SPOT, usd_per_h=0.2), PriceRow(kind=SPOT, usd_per_h=0.1, region="north"))
    for order in (prices, prices[::-1]):
        made = builders.gpu_type("t4", prices=order)
        assert made.price_row(SPOT, "north") is prices[1]
        assert made.price_row(SPOT, "south") is prices[0]


def test_a_kind_without_a_row_has_no_price() -> None:
    made = builders.gpu_type("t4", prices=(PriceRow(kind=SPOT, usd_per_h=0.0, region="north"),))
    assert made.price_row(SPOT, "north") is made.prices[0]
    assert made.price_row(SPOT, "south") is None
    assert made.price_row(PriceKind.OWNED, "north") is None


def test_the_highest_clock_is_the_last_of_a_rising_table() -> None:
    assert builders.gpu_type("t4", clocks_mhz_sm=(300, 900, 1590)).clock_mhz_sm_max == 1590


def test_a_mig_slice_brings_its_own_memory_and_sms() -> None:
    part = builders.mig_slice("n1", 1, "a100", 3)
    whole = builders.device("n1", 0, "a100")
    assert isinstance(part, Device)
    assert part.mig is not None
    assert (part.mig.parent, part.gpu_type) == (whole.id, whole.gpu_type)
    assert part.sm_count < whole.sm_count
    assert part.memory_mib < whole.memory_mib
