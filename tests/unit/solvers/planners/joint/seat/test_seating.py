"""Seats keep every node's power and mend what is short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.ids import ProjectName
from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.seating import seat
from solvers.planners.joint.seat.seats import Seats, Terms
from solvers.problems.patterns import Layout, Pattern
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload


def terms(**changes: Any) -> Terms:
    made = Terms(deadline=Deadline(60.0), job_most_pct={})
    return replace(made, **changes)


def layout(*patterns: Pattern) -> Layout:
    counts = {item: patterns.count(item) for item in patterns}
    return Layout(patterns=tuple(counts), counts=tuple(counts.values()))


def contents(seats: Seats, device: int) -> tuple[tuple[int, int], ...]:
    item = seats.patterns[device]
    return () if item is None else tuple(zip(item.variants, item.shares_pct, strict=True))


def books_agree(seats: Seats) -> None:
    """The running sums are those of the contents."""
    again = Seats(seats.floor)
    for device, item in enumerate(seats.patterns):
        again.put(device, item)
    assert again.left_w == pytest.approx(seats.left_w)
    assert again.served_rps == pytest.approx(seats.served_rps)
    assert again.replicas == seats.replicas


class TestPower:
    def check(self, seats: Seats) -> None:
        assert (seats.left_w >= -1e-6).all()
        books_agree(seats)

    def test_heavy_and_light_share_nodes(self) -> None:
        made = problem(2, devices=(6,), workloads=(workload(0, 300.0), workload(1, 60.0)))
        heavy, light = pattern(made, (0, 100)), pattern(made, (1, 20))
        seats = seat(floor(made, nodes=(2, 120.0)), layout(heavy, heavy, heavy, light, light, light), terms())
        self.check(seats)
        assert sorted(contents(seats, device)[0][0] for device in range(6)) == [0, 0, 0, 1, 1, 1]
        assert seats.served_rps == pytest.approx([300.0, 60.0])

    def test_what_stands_together_changes_places_when_the_node_cannot_bear_it(self) -> None:
        made = problem(2, devices=(4,), workloads=(workload(0, 200.0), workload(1, 40.0)))
        heavy, light = pattern(made, (0, 100)), pattern(made, (1, 20))
        stands = {0: [held(0, 100)], 1: [held(0, 100)], 2: [held(1, 20)], 3: [held(1, 20)]}
        seats = seat(floor(made, stands, nodes=(2, 120.0)), layout(heavy, heavy, light, light), terms())
        self.check(seats)
        assert seats.served_rps == pytest.approx([200.0, 40.0])
        moved = [device for device in range(4) if contents(seats, device)[0][0] != stands[device][0].variant]
        assert len(moved) == 2

    def test_what_starts_anew_changes_places_before_what_stands(self) -> None:
        """By one change, and by two where none is enough alone; whatever stood on the devices before."""
        made = problem(3, devices=(4,), workloads=(workload(0, 200.0), workload(1, 40.0), workload(2, 0.0)))
        heavy, light = pattern(made, (0, 100)), pattern(made, (1, 20))
        stands = {0: [held(0, 100)], 1: [held(2, 20)], 2: [held(1, 20)], 3: [held(2, 20)]}
        at = {0: heavy, 1: heavy, 2: light, 3: light}
        seats = seat(floor(made, stands, nodes=(2, 120.0)), layout(), terms(), at)
        self.check(seats)
        assert [contents(seats, device)[0][0] for device in range(4)] == [0, 1, 1, 0]
        several = problem(3, devices=(8,), workloads=(workload(0, 320.0), workload(1, 80.0), workload(2, 0.0)))
        heavy, light = pattern(several, (0, 80)), pattern(several, (1, 20))
        stood = {device: [held(0, 80)] if device < 2 else [held(2, 20)] for device in range(4)}
        stood |= {device: [held(1, 20)] if device < 6 else [held(2, 20)] for device in range(4, 8)}
        at = {device: heavy if device < 4 else light for device in range(8)}
        seats = seat(floor(several, stood, nodes=(4, 205.0)), layout(), terms(), at)
        self.check(seats)
        assert [contents(seats, device)[0][0] for device in range(8)] == [0, 0, 1, 1, 1, 1, 0, 0]

    def test_where_no_one_change_is_enough_two_are_made(self) -> None:
        # 40 W too much on the first node, as much left on the other: the widest change, of 30 W, would leave 10.
        draws = (80, 60, 80, 60, 80, 50)
        works = tuple(workload(number, float(draw)) for number, draw in enumerate(draws))
        made = problem(6, devices=(2, 2, 2), workloads=works)
        of = floor(made, {device: [held(device, draw)] for device, draw in enumerate(draws)}, nodes=(1, 0.0))
        of.domain_of[:, 0] = (0, 1, 0, 1, 0, 1)
        of.room_w[:2] = 200.0, 210.0
        each = (pattern(made, (at, draw), kind=at // 2 * 2 + 1) for at, draw in enumerate(draws))
        seats = seat(of, layout(*each), terms())
        self.check(seats)
        assert seats.served_rps == pytest.approx(draws)
        assert [contents(seats, device)[0][0] for device in range(6)] == [1, 0, 3, 2, 4, 5]

    def test_where_nothing_can_change_places_a_clock_falls(self) -> None:
        made = problem(2, devices=(2,), workloads=(workload(0, 70.0), workload(1, 70.0)))
        seats = seat(floor(made, nodes=(2, 150.0)), layout(pattern(made, (0, 100)), pattern(made, (1, 100))), terms())
        self.check(seats)
        clocks = sorted(int(made.kind_clock_mhz[item.kind]) for item in seats.patterns if item is not None)
        assert clocks == [600, 1000]
        assert not seats.short_rps(0)
        assert not seats.short_rps(1)

    def test_at_last_the_least_goes_without(self) -> None:
        works = (workload(0, 100.0, unserved_usd=1000.0), workload(1, 100.0, unserved_usd=10.0))
        made = problem(2, devices=(2,), workloads=works)
        seats = seat(floor(made, nodes=(2, 100.0)), layout(pattern(made, (0, 100)), pattern(made, (1, 100))), terms())
        self.check(seats)
        assert not seats.short_rps(0)
        assert seats.short_rps(1) == pytest.approx(100.0)

    @pytest.mark.parametrize("seed", range(6))
    def test_random_fleets_bear_it(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        made = problem(6, devices=(12, 6), workloads=tuple(workload(number, 100.0) for number in range(6)))
        patterns = [
            pattern(
                made,
                *((int(variant), int(rng.choice([20, 40]))) for variant in rng.choice(6, 2, replace=False)),
                kind=kind,
            )
            for kind in [1] * 9 + [3] * 5
        ]
        seats = seat(floor(made, nodes=(3, 110.0)), layout(*patterns), terms())
        self.check(seats)


class TestMending:
    def test_a_layout_that_is_short_is_completed(self) -> None:
        made = problem(2, workloads=(workload(0, 150.0), workload(1)))
        seats = seat(floor(made), layout(pattern(made, (0, 80)), pattern(made, (1, 20))), terms())
        assert not seats.short_rps(0)
        books_agree(seats)

    def test_nobody_pays_for_another(self) -> None:
        made = problem(2, devices=(1,), workloads=(workload(0, 100.0), workload(1)), crowd=np.full((2, 2), 1.3))
        seats = seat(floor(made), layout(pattern(made, (0, 100))), terms())
        assert contents(seats, 0) == ((0, 100),)
        assert seats.short_rps(1) == pytest.approx(20.0)

    @pytest.mark.parametrize(
        "changes", [{"replicas_max": 1}, {"budget_usd_per_h": 1.0}], ids=["replicas_max", "budget"]
    )
    def test_owners_bounds_hold(self, changes: dict[str, Any]) -> None:
        made = problem(1, workloads=(workload(0, 300.0, **changes),))
        seats = seat(floor(made), layout(pattern(made, (0, 80))), terms())
        assert seats.served_rps[0] == pytest.approx(100.0)

    def test_quotas_hold(self) -> None:
        made = problem(1, workloads=(workload(0, 300.0),), quotas=((ProjectName("demo"), 1.4),))
        seats = seat(floor(made), layout(pattern(made, (0, 80))), terms())
        assert 100.0 < seats.served_rps[0] <= 140.0 + 1e-6
