"""Exchanging keeps every rule, is never worse, fills what lacks, counts as the judge does, and ends alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from solvers.engines import exchange
from solvers.engines.contents import Contents
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.improve import PATIENCE, SLICE_UNITS, improved, improved_at_once, worth
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.solve import SolveOrder, first_layout, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Patterns
from tests.unit.solvers.planners.joint.solve.scenes import BASES, check_layout, scene

UNITS = 60


def after(problem: JointProblem, layout: Layout, units: int = UNITS, seed: int = 1) -> Layout:
    """Ended by work alone."""
    return improved(Judge(problem), layout, None, Deadline(1e9, work_units=units), seed)


def at_once(problem: JointProblem, layout: Layout) -> Layout:
    return improved_at_once(Judge(problem), layout)


def lacking(problem: JointProblem, layout: Layout) -> float:
    return float((layout.missing(problem) + layout.fewer(problem)).sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("how", [after, at_once])
def test_keeps_rules_and_is_never_worse(how: Callable[[JointProblem, Layout], Layout], seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    layout = first_layout(problem)
    found = how(problem, layout)
    check_layout(problem, found)
    assert worth(problem, found) <= worth(problem, layout) + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_steps_where_those_are_no_part_of_all(seed: int) -> None:
    steps = np.array([7, 21, 42, 63, 84, 100], dtype=np.int64)
    problem = replace(scene(seed, devices=20), shares_pct=steps, share_step_pct=7)
    judge = Judge(problem)
    alone = [np.flatnonzero(problem.variant_workload == work)[:1] for work in range(len(problem.workloads))]
    rows = Patterns.chained([Patterns.singles(np.arange(problem.kinds), item, steps[-1:]) for item in alone])
    found = after(problem, judge.layout(rows.widened(judge.width), np.ones(len(rows), dtype=np.int64)))
    assert any(len(item.variants) > 1 for item in found.patterns)
    check_layout(problem, found)


def test_sheds_devices_that_nobody_needs_at_once() -> None:
    problem = scene(1, devices=20)
    problem = replace(problem, workloads=tuple(replace(item, replicas_max=99) for item in problem.workloads))
    layout = first_layout(problem)
    double = replace(layout, counts=tuple(2 * count for count in layout.counts))
    found = at_once(problem, double)
    assert sum(found.counts) < sum(double.counts)
    assert lacking(problem, found) <= lacking(problem, double) + 1e-9


def test_it_finds_cheaper_devices() -> None:
    problem = scene(4, devices=20)
    layout = first_layout(problem)
    assert worth(problem, after(problem, layout, 300)) < 0.99 * worth(problem, layout)


@pytest.mark.parametrize("seed", [1, 3])
def test_who_is_short_on_all_devices_that_there_are_is_served_by_these(seed: int) -> None:
    # To close one of them first, as where devices are spare, left 0.16 of a rate short.
    problem = family_problem(64, 20, 3)
    devices = {"t4": 13, "l4": 13, "a10": 13, "v100": 1, "a100": 6, "h100": 3}
    pools = (replace(pool, devices=devices[pool.gpu_type]) for pool in problem.pools)
    works = (replace(item, rate_rps=0.99 * item.rate_rps, rate_least_rps=0.0) for item in problem.workloads)
    problem = replace(problem, pools=tuple(pools), workloads=tuple(works))
    begun = at_once(problem, first_layout(problem))
    assert lacking(problem, begun) > 0.005
    assert lacking(problem, after(problem, begun, 400, seed)) == 0.0


def test_it_ends_by_itself_where_nothing_is_gained_and_sooner_with_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: object, rows: Patterns, walk: exchange.Walk) -> exchange.Exchanged:
        units = exchange.WALKS * walk.units
        return exchange.Exchanged(rows=rows, usd_per_h=1.0, units=units, attempt_units=walk.attempt_units, served=False)

    monkeypatch.setattr(exchange.Exchange, "run", nothing)
    problem, spent = scene(1, devices=20), list[int]()
    layout = first_layout(problem)
    for times in (1, 50, 100):
        many, plenty = replace(layout, counts=tuple(times * count for count in layout.counts)), Deadline(1e9, 10**7)
        improved(Judge(problem), many, None, plenty, 1)
        spent.append(round((1 - plenty.left_part) * 10**7))
    assert 10 * spent[0] < spent[1] == spent[2] < 2 * PATIENCE * exchange.WALKS * SLICE_UNITS


def test_places_what_lacks_where_there_is_room() -> None:
    problem = scene(1, devices=20)
    works = (replace(item, replicas_max=99, budget_usd_per_h=np.inf, avoids=()) for item in problem.workloads)
    problem = replace(problem, quotas=(), workloads=tuple(works))
    layout = first_layout(problem)
    less = replace(layout, patterns=layout.patterns[1:], counts=layout.counts[1:])
    assert lacking(problem, less) > 0
    assert lacking(problem, after(problem, less, 400)) == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("basis", BASES)
def test_it_counts_as_the_judge_does(seed: int, basis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the walk says its devices are worth, judged anew: a batch, a watt or a rule apart would be told from it."""
    told: list[tuple[Patterns, float, np.ndarray[tuple[int], np.dtype[np.float64]]]] = []
    run = exchange.Exchange.run
    rooms: list[exchange.Rooms] = []
    begin = exchange.Exchange.__init__

    def kept(self: exchange.Exchange, contents: Contents, room: exchange.Rooms) -> None:
        rooms.append(room)
        begin(self, contents, room)

    def watched(self: exchange.Exchange, rows: Patterns, walk: exchange.Walk) -> exchange.Exchanged:
        answer = run(self, rows, walk)
        told.append((answer.rows, answer.usd_per_h, rooms[-1].missed_usd))
        return answer

    monkeypatch.setattr(exchange.Exchange, "__init__", kept)
    monkeypatch.setattr(exchange.Exchange, "run", watched)
    problem = scene(seed, basis=basis)
    after(problem, first_layout(problem))
    judge = Judge(problem)
    for rows, usd_per_h, missed_usd in told:
        patterns = judge.judge(rows)
        assert patterns.lawful.all()
        again = judge.layout(patterns.rows, np.ones(len(rows.kind), dtype=np.int64))
        rate = problem.rate_rps
        part = 1 - again.served_rps(problem) / np.where(rate > 0, rate, 1.0)
        missed = missed_usd[(rate > 0) & (part > 1e-9)].sum()
        assert usd_per_h == pytest.approx(worth(problem, again) + missed, rel=1e-9, abs=1e-9)


def test_equal_seeds_end_alike_and_others_do_not() -> None:
    problem = scene(2, devices=20)
    layout = first_layout(problem)
    assert after(problem, layout, seed=5) == after(problem, layout, seed=5)
    assert len({repr(after(problem, layout, seed=seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**53, 2**63 - 1])
def test_every_seed_that_a_policy_may_have_is_searched_with(seed: int) -> None:
    problem = scene(4, devices=20)
    layout = first_layout(problem)
    assert worth(problem, after(problem, layout, 300, seed)) < 0.99 * worth(problem, layout)


def test_no_time_changes_nothing() -> None:
    problem = scene(2)
    layout = first_layout(problem)
    assert improved(Judge(problem), layout, None, Deadline(0.0), 1) is layout


def test_who_asks_to_serve_is_answered_as_soon_as_everybody_is_served() -> None:
    problem = scene(1, devices=20)
    judge, whole = Judge(problem), solve(problem, SolveOrder(), Deadline(600.0, 300))
    assert not whole.missing(problem).any()
    ended = Deadline(600.0, 2000)
    assert improved(judge, whole, None, ended, seed=1, serves=True) == whole
    assert ended.left_part > 0.99
