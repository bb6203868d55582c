"""The solve keeps every rule, is never worse than the first answer, proves what it says, and repeats itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from solvers.domain.arrays import Whole
from solvers.engines import deadline as deadline_module
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve import generate as generating
from solvers.planners.joint.solve import solve as solving
from solvers.planners.joint.solve.generate import Depth, Dive, Pace, Relaxation, generate
from solvers.planners.joint.solve.improve import improved_at_once
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.solve import (
    MARGIN_LEAST,
    TURNS_MOST,
    TURNS_WORTH,
    Phases,
    SolveOrder,
    _turns,
    first_layout,
    solve,
    worth_units,
)
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.solve.oracle import every_pattern, optimum
from tests.unit.solvers.planners.joint.solve.scenes import BASES, check_layout, scene


def _solved(problem: JointProblem, order: SolveOrder | None = None, units: int = 300) -> Layout:
    return solve(problem, order or SolveOrder(), Deadline(1e9, units))


@cache
def _many() -> JointProblem:
    """So many devices that their dives are quick and rough."""
    return family_problem(200, 48, 1)


@cache
def _cheap() -> Layout:
    return _solved(_many())


def _begun() -> tuple[Master, Relaxed]:
    """Where a dive into many devices may begin: the next ten rounds take five times as long."""
    master = Master(_many(), Judge(_many()))
    first_layout(_many(), master=master)
    begun = generate(master, Deadline(1e9, 1_000), Pace(rounds=10))
    assert begun is not None
    return master, begun.best


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_every_rule_is_kept_and_the_first_answer_is_beaten(seed: int) -> None:
    problem = scene(seed, basis=BASES[seed % 3 and 3 - seed % 3])
    layout = _solved(problem)
    check_layout(problem, layout)
    assert layout.value(problem) <= first_layout(problem).value(problem) + 1e-9
    assert layout.bound_usd_per_h is not None
    assert layout.bound_usd_per_h <= layout.value(problem) + 1e-6
    assert layout.prices is not None
    assert (layout.prices.demand_usd >= -1e-9).all()
    assert {"columns", "rounds", "relaxed_usd_per_h", "first_s", "generate_s"} <= set(layout.facts)


@pytest.mark.parametrize(("seed", "basis"), [(0, "device"), (1, "device"), (3, "device"), (0, "memory"), (3, "memory")])
def test_small_problems_are_solved_as_well_as_by_enumeration(seed: int, basis: str) -> None:
    problem = replace(scene(seed, services=3, devices=3, basis=basis), shares_pct=np.array([20, 40, 60, 80, 100]))
    problem = replace(
        problem,
        **{name: getattr(problem, name)[:, :, 1:] for name in ("mean_ms", "tail_ms", "power_w")},
        share_step_pct=20,
    )
    layout = _solved(problem, units=600)
    best = optimum(problem, every_pattern(problem, 20))
    assert layout.value(problem) == pytest.approx(best, rel=2e-3)
    assert layout.bound_usd_per_h is not None
    assert layout.bound_usd_per_h <= best + 1e-6


@pytest.mark.parametrize("services", [1, 8, 16, 40])
def test_what_a_search_is_worth_is_spent_in_whole_turns(services: int) -> None:
    """What a turn does not fit into goes into the bound: with a little less work the demo cost a fifth more."""
    problem = scene(0, services=services)
    deadline, turns = Deadline(1e9, round(worth_units(problem))), 0
    for turn in _turns(problem, deadline):
        assert turn.work_units is not None
        deadline.spend(turn.work_units)
        turns += 1
    assert turns == TURNS_WORTH


def test_in_haste_one_quick_dive_is_where_exchanging_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves somebody a little short, which exchanging makes up; the first answer serves everybody and is dear."""
    problem, begun = _many(), list[Layout]()

    def exchanged(_judge: Judge, layout: Layout, *_rest: object, **_named: object) -> Layout:
        begun.append(layout)
        return layout

    monkeypatch.setattr(solving, "improved", exchanged)
    _solved(problem, units=200)
    assert begun[0].leaves_short(problem)
    assert not begun[1].leaves_short(problem)
    assert begun[0].usd_per_h < begun[1].usd_per_h


def test_a_turn_that_gains_nothing_from_the_best_begins_anew() -> None:
    # From the best alone all further turns stay at 10.66.
    assert _solved(family_problem(10, 4, 4), units=900).usd_per_h < 9.9


@pytest.mark.parametrize(("units", "most"), [(100, 2), (20_000, 8)])
def test_a_dive_prices_as_often_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch, units: int, most: int) -> None:
    rounds = list[int]()
    master, relaxed = _begun()

    def counted(rest: Master, deadline: Deadline, pace: Pace) -> Relaxation | None:
        rounds.append(pace.rounds + pace.cut_rounds)
        return generate(rest, deadline, pace)

    monkeypatch.setattr(generating, "generate", counted)
    deadline = Deadline(1e9, units)
    layout = Dive(master, relaxed, Depth(rounds=8, until_part=0.2)).run(deadline)
    assert layout.patterns
    assert max(rounds[1:]) <= most  # the first stage's are before anything is known
    assert min(rounds[1:-1]) >= most / 8
    assert (sorted(rounds[1:])[len(rounds) // 2] == 1) == (most == 2)


def test_a_dive_that_leaves_somebody_short_is_what_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what there was before leaves less short: that is dear, and hard to make cheap."""
    problem, begun = _many(), list[Layout]()
    dear, cheap = first_layout(problem), _cheap()
    before = replace(dear, counts=(dear.counts[0] - 1, *dear.counts[1:]))
    dived = replace(cheap, counts=(0,) * 5 + cheap.counts[5:])

    def exchanged(_judge: Judge, layout: Layout, *_rest: object, **_named: object) -> Layout:
        begun.append(layout)
        return layout

    monkeypatch.setattr(solving, "improved", exchanged)
    monkeypatch.setattr(Dive, "run", lambda _dive, _deadline: dived)
    monkeypatch.setattr(solving, "completed", lambda _judge, layout, _deadline: layout)
    phases = Phases(problem, SolveOrder(), before, Master(problem, Judge(problem)))
    assert phases.worth(before) < phases.worth(dived)
    phases.turn(Deadline(1e9, 500), 1)
    assert begun[0] is dived


def test_a_dive_that_takes_all_its_time_is_completed_from_what_is_kept_for_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hair short it counts for nothing beside a dear first answer, and no time is left to exchange."""
    problem, cheap = _many(), _cheap()
    dived = replace(cheap, counts=(max(0, cheap.counts[0] - 1), *cheap.counts[1:]))
    assert dived.leaves_short(problem)

    run = Dive.run

    def dives(dive: Dive, deadline: Deadline) -> Layout:
        if dive.taken is not None:  # what completes it
            return run(dive, deadline)
        assert deadline.work_units is not None
        deadline.spend(deadline.work_units)
        return dived

    monkeypatch.setattr(Dive, "run", dives)
    phases = Phases(problem, SolveOrder(), first_layout(problem), Master(problem, Judge(problem)))
    dear_usd, within = phases.found.judged_usd(problem), Deadline(1e9, 500)
    found = phases.turn(within, 1)
    assert not found.leaves_short(problem)
    assert found.judged_usd(problem) < 0.5 * (dear_usd + cheap.judged_usd(problem))
    assert not within.over  # something is left for the bound


def test_a_dive_goes_on_where_there_was_no_time_for_its_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known before them has no prices for their rows."""
    cut = list[int]()
    master, relaxed = _begun()
    tighten = Master.tighten

    def late(rest: Master, relaxed: Relaxed) -> bool:
        if found := tighten(rest, relaxed):
            cut.append(rest.rows.count)
            monkeypatch.setattr(rest.programme, "solve", lambda *_rest, **_named: None)
        return found

    monkeypatch.setattr(Master, "tighten", late)
    assert Dive(master, relaxed, Depth()).run(Deadline(1e9, 5_000)).patterns
    assert cut


def test_equal_orders_end_alike() -> None:
    problem = scene(4)
    one, other = _solved(problem), _solved(problem)
    assert (one.patterns, one.counts, one.bound_usd_per_h) == (other.patterns, other.counts, other.bound_usd_per_h)


def test_no_time_gives_the_first_answer() -> None:
    problem = scene(4)
    layout, first = _solved(problem, units=0), improved_at_once(Judge(problem), first_layout(problem))
    assert (layout.patterns, layout.counts) == (first.patterns, first.counts)
    assert layout.bound_usd_per_h is None


def test_what_stands_is_kept_where_nothing_is_much_better() -> None:
    problem = scene(1)
    before = _solved(problem)
    after = _solved(problem, SolveOrder(standing=before, warm=before.patterns, launch_usd_per_s=0.01, seed=2))
    kept = sum(min(devices, dict(after.pairs).get(item, 0)) for item, devices in before.pairs)
    assert kept >= 0.8 * sum(before.counts)
    assert after.value(problem) <= before.value(problem) * 1.02


def test_demand_nobody_can_serve_stays_unserved() -> None:
    problem = scene(6, services=4)
    none = replace(problem, pools=tuple(replace(pool, devices=0) for pool in problem.pools), caps=())
    layout = _solved(none)
    assert layout.patterns == ()
    assert layout.missing(none).tolist() == [1.0] * 4


def test_a_dozen_devices_are_not_left_where_the_first_dives_lead() -> None:
    # Dives alone end at 9.455, with 1,000 units too.
    assert _solved(family_problem(12, 8, 21), units=250).usd_per_h < 9.2


@pytest.mark.parametrize(
    ("drawn", "units", "usd_per_h"),
    [((8, 5, 4), 500, 6.1), ((12, 8, 1), 250, 12.3), ((16, 10, 24), 1000, 17.6), ((24, 12, 1), 400, 19.7)],
)
def test_devices_are_counted_before_they_are_whole(drawn: tuple[int, int, int], units: int, usd_per_h: float) -> None:
    # Dives on whatever devices they come to, with exchange after them, end at 6.20, 12.85, 18.24 and 20.75.
    assert _solved(family_problem(*drawn), units=units).usd_per_h < usd_per_h


def test_devices_of_every_new_optimum_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a little more than all rates was too little before: where devices lack it always is."""
    problem, counts = family_problem(12, 8, 21), list[float]()
    counted = Master.counted

    def noted(master: Master, relaxed: Relaxed, times: float, deadline: Deadline) -> tuple[Whole, Layout, float] | None:
        counts.append(times)
        return counted(master, relaxed, times, deadline)

    monkeypatch.setattr(Master, "counted", noted)
    phases = Phases(problem, SolveOrder(), first_layout(problem), Master(problem, Judge(problem)))
    for turn in range(6):
        known, phases.margin = phases.converged, MARGIN_LEAST
        phases.turn(Deadline(1e9, 150), turn)
        assert bool(counts) is not known
        counts.clear()
    assert phases.converged


def test_a_turn_ends_by_exchanging_at_prices_of_what_it_found() -> None:
    # At the relaxed optimum's prices alone it ends at 18.21.
    assert _solved(family_problem(16, 6, 31), units=400).usd_per_h < 17.5


def test_a_device_alone_in_its_pool_draws_no_more_than_its_cap_leaves() -> None:
    problem = family_problem(12, 8, 1)
    pools = zip(problem.pools, Rows(problem).alone().pools, strict=True)
    less = {pool.name: alone.limit_w for pool, alone in pools if alone != pool}
    caps = {cap.devices: cap.limit_w for cap in problem.caps}
    single = {
        pool.name: next(limit for devices, limit in caps.items() if devices[at])
        for at, pool in enumerate(problem.pools)
        if pool.devices == 1
    }
    assert less == pytest.approx(single)
    assert less
    uncapped = replace(problem, caps=())
    assert Rows(uncapped).alone() is uncapped


def test_turns_that_take_nothing_end_as_well() -> None:
    """They grew without end, until there was no number for what the next one might take."""
    assert len(list(_turns(family_problem(8, 5, 1), Deadline(1e9)))) <= TURNS_MOST


def test_of_time_alone_as_many_turns_are_taken_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, now_s, units = family_problem(8, 5, 1), [0.0], list[int | None]()
    monkeypatch.setattr(deadline_module.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(deadline_module.time, "process_time", lambda: now_s[0])
    within = Deadline(1.0, _begun_s=0.0, _begun_cpu_s=0.0)
    for turn in _turns(problem, within):
        assert turn.work_units is not None
        units.append(turn.work_units)
        now_s[0] += 0.002 * turn.work_units  # twice as long as a unit should take
    # The fourth would be half as long again as what is left.
    assert units == [54, 107, 213]
