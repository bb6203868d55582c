"""The books of the fleet: what is taken comes back, and each rule names itself when it blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import ProjectName, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, Project
from solvers.problems.fleet import Fleet, RoomSearch, Seat, open_fleet
from solvers.problems.needs import Need, needs_of
from tests import builders

CAPS = (PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=180.0),)


def world(**changes: object) -> Snapshot:
    services = [builders.service("one"), builders.service("two", affinity=Affinity(avoid_services=("demo/one",)))]  # type: ignore[arg-type]
    projects = (Project(name=ProjectName("demo"), quota_gpus=2.0),)
    return builders.lab(services, power_caps=CAPS, projects=projects, **changes)


def opened() -> tuple[Fleet, Need, Need]:
    picture = world()
    one, two = needs_of(picture, builders.everything_movable(picture))
    return open_fleet(picture, {}), one, two


def seat(need: Need, device: int, share_pct: int = 30, memory_mib: int = 1000, power_w: float = 20.0) -> Seat:
    return Seat(
        workload=need.workload,
        project=need.project,
        device=device,
        share_pct=share_pct,
        memory_mib=memory_mib,
        power_w=power_w,
    )


def search(need: Need, **changes: object) -> RoomSearch:
    return replace(RoomSearch(need=need, share_pct=30, memory_mib=1000, power_w=20.0), **changes)  # type: ignore[arg-type]


def test_devices_and_classes_are_ordered_by_name() -> None:
    fleet, _, _ = opened()
    assert [device.id for device in fleet.devices] == sorted(device.id for device in fleet.devices)
    assert [item.gpu_type for item in fleet.classes] == ["a100", "l4", "t4", "v100"]


def test_best_fit_takes_the_fullest_device_with_room() -> None:
    fleet, one, _ = opened()
    other = replace(one, workload=WorkloadId("demo/other"))
    fleet.put(seat(other, 1, share_pct=60))
    assert fleet.find(search(one)) == 1
    assert fleet.find(search(one, share_pct=50)) == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"share_pct": 101}, ReasonCode.NO_SHARE_LEFT),
        ({"memory_mib": 99_999}, ReasonCode.NO_MEMORY_LEFT),
        ({"power_w": 48.0}, ReasonCode.POWER_CAP),
    ],
)
def test_what_blocks_names_itself(change: dict[str, object], code: ReasonCode) -> None:
    fleet, one, _ = opened()
    assert fleet.find(search(one, **change)) is code


def test_avoidance_works_in_both_directions() -> None:
    for first, second in ((1, 2), (2, 1)):
        fleet, *needs = opened()
        fleet.put(seat(needs[first - 1], 0))
        assert not fleet.fits(search(needs[second - 1]), 0)
        assert fleet.fits(search(needs[second - 1]), 1)


def test_full_everywhere_is_anti_affinity() -> None:
    fleet, one, _ = opened()
    for device in range(len(fleet.devices)):
        fleet.put(seat(one, device, power_w=0.0))
    assert fleet.find(search(one)) is ReasonCode.ANTI_AFFINITY


def test_where_no_room_is_left_the_rule_about_neighbours_is_not_blamed() -> None:
    """A replica that takes a whole device would find none there without the rule either."""
    fleet, one, _ = opened()
    for device in range(len(fleet.devices)):
        fleet.put(seat(one, device, share_pct=100, power_w=0.0))
    assert fleet.find(search(one, share_pct=100)) is ReasonCode.NO_SHARE_LEFT


def test_no_devices_at_all() -> None:
    picture = replace(world(), devices=())
    one, _ = needs_of(picture, builders.everything_movable(picture))
    assert open_fleet(picture, {}).find(search(one)) is ReasonCode.NO_DEVICE_OF_TYPE


def test_power_never_counts_above_a_devices_limit() -> None:
    fleet, one, _ = opened()
    before = float(fleet.domains[0].headroom_w[0])
    fleet.put(seat(one, 0, power_w=5_000.0))
    assert before - float(fleet.domains[0].headroom_w[0]) == pytest.approx(60.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.floats(0, 500)), max_size=12), st.randoms())
def test_lifting_everything_leaves_the_books_as_they_were(rows: list[tuple[int, int, float]], order: object) -> None:
    fleet, one, two = opened()
    fresh, _, _ = opened()
    seats = [
        seat((one, two)[index % 2], device, share_pct, 100, power_w)
        for index, (device, share_pct, power_w) in enumerate(rows)
    ]
    for item in seats:
        fleet.put(item)
    order.shuffle(seats)  # type: ignore[attr-defined]
    for item in seats:
        fleet.lift(item)
    for name in ("share_free", "memory_free", "clients_free", "occupants", "closed"):
        assert (getattr(fleet, name) == getattr(fresh, name)).all()
    assert fleet.dynamic_w == pytest.approx(fresh.dynamic_w, abs=1e-9)
    assert fleet.domains[0].headroom_w == pytest.approx(fresh.domains[0].headroom_w, abs=1e-9)
    assert fleet.quota_left == pytest.approx(fresh.quota_left)
    assert not any(fleet.hosts.values())
