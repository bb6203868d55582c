"""A narrowed problem asks for the rest, allows the rest, and widens to a layout of the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.ids import ProjectName
from solvers.engines.deadline import Deadline
from solvers.planners.joint import change
from solvers.planners.joint.change import narrow
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.reach import ReachTerms, reached
from solvers.problems.joint import Cap, JointProblem
from solvers.problems.patterns import Layout, Pattern, Standing
from tests.unit.solvers.planners.joint.seat.floors import pattern, problem, workload
from tests.unit.solvers.planners.joint.solve.scenes import check_layout, scene


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened but what must be."""
    monkeypatch.setattr(change, "LOOSE_DEVICES_MAX", 0)


def world() -> tuple[JointProblem, tuple[Standing, ...]]:
    works = (
        workload(0, 100.0, replicas_min=3, replicas_max=9, budget_usd_per_h=4.0),
        workload(1, 60.0),
        workload(2, 20.0, avoids=(3,)),
        workload(3, 20.0, avoids=(2,)),
    )
    made = problem(
        devices=(6,),
        workloads=works,
        caps=(Cap(name="all", limit_w=400.0, devices=(6,)),),
        quotas=((ProjectName("demo"), 5.0),),
    )
    standing = (
        Standing(pattern=pattern(made, (0, 40)), devices=2),
        Standing(pattern=pattern(made, (0, 20), (1, 60)), devices=1),
        Standing(pattern=pattern(made, (2, 20)), devices=1),
    )
    return made, standing


@pytest.mark.usefixtures("strict")
def test_what_stays_is_taken_off() -> None:
    made, standing = world()
    part = narrow(made, standing, frozenset({1}))
    small = part.problem
    assert [item.devices for item in part.fixed] == [2, 1]
    assert [pool.devices for pool in small.pools] == [3]
    assert [item.id for item in small.workloads] == ["demo/w0", "demo/w1", "demo/w3"]
    first = small.workloads[0]
    assert first.rate_rps == pytest.approx(20.0)
    assert (first.replicas_min, first.replicas_max) == (1, 7)
    assert first.budget_usd_per_h == pytest.approx(4.0 - 0.8)
    assert small.workloads[2].avoids == ()
    drawn = 2 * (10.0 + 40.0) + (10.0 + 20.0)
    assert small.caps == (Cap(name="all", limit_w=pytest.approx(400.0 - drawn), devices=(3,)),)
    assert small.quotas == ((ProjectName("demo"), pytest.approx(4.0)),)


@pytest.mark.usefixtures("strict")
def test_patterns_find_their_way_in_and_out() -> None:
    made, standing = world()
    part = narrow(made, standing, frozenset({1}))
    (open_one,) = part.open_standing(standing)
    assert (open_one.pattern.variants, open_one.devices) == ((0, 1), 1)
    wide = part.widened(Layout(patterns=(open_one.pattern,), counts=(1,), bound_usd_per_h=1.0))
    assert wide.bound_usd_per_h is None
    assert dict(zip(wide.patterns, wide.counts, strict=True)) == {item.pattern: item.devices for item in standing}
    assert part.inside([pattern(made, (2, 20))]) == ()


def test_the_worst_filled_devices_are_opened_besides() -> None:
    made, standing = world()
    part = narrow(made, standing, frozenset({1}))
    assert [item.devices for item in part.fixed] == [2]
    assert [pool.devices for pool in part.problem.pools] == [4]


def test_with_nothing_to_change_nothing_is_left() -> None:
    made = problem(1)
    standing = (Standing(pattern=pattern(made, (0, 20)), devices=1),)
    part = narrow(made, standing, frozenset())
    assert part.problem.workloads == ()
    assert part.widened(Layout(patterns=(), counts=())).counts == (1,)


@pytest.mark.parametrize("seed", range(6))
def test_a_layout_of_the_part_is_a_lawful_layout_of_the_whole(seed: int) -> None:
    made = scene(seed)
    before = first_layout(made)
    standing = tuple(
        Standing(pattern=item, devices=count) for item, count in zip(before.patterns, before.counts, strict=True)
    )
    works = tuple(
        replace(work, rate_rps=work.rate_rps * (0.5 if number == 1 else 1.0))
        for number, work in enumerate(made.workloads)
    )
    later = replace(made, workloads=works)
    part = narrow(later, standing, frozenset({1, 2}))
    wide = part.widened(first_layout(part.problem))
    check_layout(later, wide)
    rates = np.array([work.rate_rps for work in works])
    stood = np.minimum(before.served_rps(made), rates)
    resting = [number for number in range(len(works)) if number not in (1, 2)]
    lost = (stood - np.minimum(wide.served_rps(later), rates))[resting] / rates[resting]
    assert (lost < 0.6).all()


TERMS = ReachTerms(launch_usd_per_s=0.0, restart_part=0.01, period_s=60.0)


class TestReached:
    def changed(self, made: JointProblem, *standing: Standing, fresh: tuple[Pattern, ...] = ()) -> Layout:
        return reached(made, standing, fresh, TERMS, Deadline(seconds=60.0, work_units=500))

    def test_surplus_goes(self) -> None:
        made = problem(2, workloads=(workload(0, 40.0), workload(1)))
        both, alone = pattern(made, (0, 40), (1, 20)), pattern(made, (0, 40))
        kept = self.changed(made, Standing(pattern=both, devices=1), Standing(pattern=alone, devices=2))
        assert dict(zip(kept.patterns, kept.counts, strict=True)) == {both: 1}

    def test_what_stands_on_many_devices_moves_to_few(self) -> None:
        made = problem(2, workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = [Standing(pattern=pattern(made, (number, 40)), devices=1) for number in (0, 1)]
        kept = self.changed(made, *apart)
        assert (kept.counts, len(kept.patterns[0].variants)) == ((1,), 2)
        assert (kept.served_rps(made) >= made.rate_rps * (1 - 1e-6)).all()

    def test_money_alone_interrupts_nobody(self) -> None:
        made = problem(2, devices=(2,), workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = [Standing(pattern=pattern(made, (number, 100)), devices=1) for number in (0, 1)]
        dense = pattern(made, (0, 40), (1, 40))
        assert sorted(self.changed(made, *apart, fresh=(dense,)).counts) == [1, 1]

    def test_where_something_is_idle_nobody_is_interrupted_by_the_same(self) -> None:
        made = problem(2, devices=(3,), workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = [Standing(pattern=pattern(made, (number, 100)), devices=1) for number in (0, 1)]
        dense = pattern(made, (0, 40), (1, 40))
        assert self.changed(made, *apart, fresh=(dense,)).patterns == (dense,)
