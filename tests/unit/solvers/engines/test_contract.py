"""One contract for every engine: the same little programmes, the same answers, nothing claimed that is not proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.base import Engine, EngineAnswer, EngineStatus, Limits, Program, create, names
from solvers.engines.judgement import FEASIBILITY, weak_bound
from solvers.errors import EngineError
from tests.unit.solvers.engines.exhaustive import Exhaustive
from tests.unit.solvers.engines.programmes import INF, drawn, hard, knapsack, program

ENOUGH = Limits(time_s=20.0)
WITH_VALUES = (EngineStatus.OPTIMAL, EngineStatus.FEASIBLE)


WHOLE_NUMBERS_ONLY = ("cp-sat", "exhaustive")
"""Engines that have no continuous columns, so no duals either."""


@pytest.fixture(params=(*names(), "exhaustive"))
def engine(request: pytest.FixtureRequest) -> Engine:
    return Exhaustive() if request.param == "exhaustive" else create(request.param)


def linear(engine: Engine) -> bool:
    return engine.name not in WHOLE_NUMBERS_ONLY


def assert_sound(asked: Program, answer: EngineAnswer) -> None:
    """What every answer keeps, whatever it is worth."""
    if answer.status not in WITH_VALUES:
        assert answer.values is None
        assert answer.objective == INF
        return
    assert answer.values is not None
    assert asked.violation(answer.values) <= FEASIBILITY
    whole = answer.values[asked.integer]
    assert np.array_equal(whole, np.rint(whole))
    assert answer.objective == pytest.approx(float(asked.cost @ answer.values) + asked.offset, abs=1e-12)
    assert answer.bound <= answer.objective
    if answer.status is EngineStatus.OPTIMAL:
        assert answer.objective - answer.bound <= 1e-5 * max(1.0, abs(answer.objective))


def assert_best(asked: Program, answer: EngineAnswer, objective: float) -> None:
    assert answer.status is EngineStatus.OPTIMAL, answer
    assert_sound(asked, answer)
    assert answer.objective == pytest.approx(objective, abs=1e-6)


def test_there_are_three() -> None:
    assert names() == ("cbc", "cp-sat", "highs")
    assert all(create(name).name == name for name in names())


def test_knapsack(engine: Engine) -> None:
    asked = knapsack()
    answer = engine.solve(asked, ENOUGH)
    assert_best(asked, answer, 100 - 42)
    assert answer.values is not None
    assert answer.values.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("asked", "objective"),
    [
        pytest.param(program([1, 2], [(3, [1, 1], 3)], upper=5.0), 3.0, id="equality"),
        pytest.param(program([2, 3], [(4, [1, 2], 5), (1, [1, -1], 2)], upper=9.0), 7.0, id="two-sided"),
        pytest.param(
            program([1, 1, 1], [(1, [1, 1, 0], 1), (1, [0, 1, 1], 1), (1, [1, 0, 1], 9)]), 2.0, id="odd-cycle"
        ),
        pytest.param(program([0, 0], [(1, [1, 1], 4)], upper=3.0), 0.0, id="nothing-costs"),
        pytest.param(program([1] * 6, [(2, [1] * 6, 2)] * 4, upper=1.0), 2.0, id="degenerate"),
        pytest.param(program([1, -1], [(-4, [1, 1], INF)], lower=-3.0, upper=[9, -1]), -2.0, id="below-zero"),
        pytest.param(program([3], [(-INF, [1], INF)], lower=-2.0, upper=2.0), -6.0, id="row-without-sides"),
        pytest.param(program([1, 0], [(2.0, [0.7, 0.0], INF)], lower=[0, 2], upper=[9, 4]), 3.0, id="unused-column"),
        pytest.param(program([1, -1], [(-4, [1, 1.5], INF)], lower=[-1.4, -2], upper=[2.3, -2]), 1.0, id="one-end"),
        pytest.param(program([-1, 1], [(-4, [0.4, 1.6], INF)], lower=[-2.4, -2], upper=[-1.7, -1]), 0.0, id="two-ends"),
        pytest.param(program([], []), 0.0, id="empty"),
        pytest.param(program([], [(-1, [], 1)]), 0.0, id="no-columns"),
        pytest.param(program([5, -5], [(-1, [0, 0], 1)], lower=1.0, upper=2.5), -5.0, id="no-entries"),
    ],
)
def test_little_programmes(engine: Engine, asked: Program, objective: float) -> None:
    assert_best(asked, engine.solve(asked, ENOUGH), objective)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(program([1, 1], [(5, [1, 1], INF)], upper=2.0), id="too-little"),
        pytest.param(program([1, 1], [(3, [2, 2], 3)], upper=5.0), id="parity"),
        pytest.param(program([1], [(3, [1], 2)], upper=5.0), id="crossing-row"),
        pytest.param(program([1], [(-INF, [1], 2)], lower=0.4, upper=0.6), id="no-whole-number"),
        pytest.param(program([1], [(1, [0], 2)], upper=5.0), id="row-without-columns"),
        pytest.param(program([], [(1, [], 2)]), id="no-columns"),
    ],
)
def test_infeasible_is_a_status(engine: Engine, asked: Program) -> None:
    answer = engine.solve(asked, ENOUGH)
    assert answer.status is EngineStatus.INFEASIBLE, answer
    assert_sound(asked, answer)


def test_unbounded_is_a_status_or_refused(engine: Engine) -> None:
    asked = program([-1, -1], [(-INF, [1, -1], 2)])
    answer = engine.solve(asked, ENOUGH)
    expected = EngineStatus.UNBOUNDED if linear(engine) else EngineStatus.FAILED
    assert answer.status is expected, answer
    assert answer.note
    assert engine.solve(program([-1], []), ENOUGH).status is EngineStatus.UNBOUNDED


def test_infeasible_though_its_cost_could_run_away(engine: Engine) -> None:
    asked = program([-1, 0], [(-INF, [1, -1], 2), (3, [0, 2], 3)], upper=[INF, 5])
    assert engine.solve(asked, ENOUGH).status is EngineStatus.INFEASIBLE


def test_continuous_columns_are_solved_or_refused(engine: Engine) -> None:
    asked = program([-3, -2], [(-INF, [1, 1], 4), (-INF, [1, 3], 6)], upper=[2.5, INF], integer=[False, True])
    answer = engine.solve(asked, ENOUGH)
    if linear(engine):
        assert_best(asked, answer, -9.5)
    else:
        assert answer.status is EngineStatus.FAILED
        assert answer.note


def test_duals_are_the_change_of_the_optimum(engine: Engine) -> None:
    if not linear(engine):
        assert engine.solve(knapsack(), ENOUGH).row_duals is None
        return
    asked = program([2, 3, 1], [(4, [1, 2, 0], INF), (-INF, [1, -1, 1], 1)], upper=[INF, 1.5, INF], integer=False)
    answer = engine.solve(asked, ENOUGH)
    assert_best(asked, answer, 6.5)
    assert answer.row_duals is not None
    assert answer.reduced_costs is not None
    assert weak_bound(asked, answer.row_duals) == pytest.approx(6.5)
    for row, dual in enumerate(answer.row_duals):
        step = np.eye(2)[row] * 0.01
        moved = engine.solve(replace(asked, row_lower=asked.row_lower + step, row_upper=asked.row_upper + step), ENOUGH)
        assert moved.objective - answer.objective == pytest.approx(0.01 * dual, abs=1e-6)
    assert answer.reduced_costs[1] == pytest.approx(-1.0)


def test_whole_programmes_have_no_duals(engine: Engine) -> None:
    answer = engine.solve(knapsack(), ENOUGH)
    assert answer.row_duals is None
    assert answer.reduced_costs is None


@pytest.mark.parametrize("limits", [Limits(time_s=0.0), Limits(time_s=0.15), Limits(work=1)])
def test_a_limit_is_not_a_solution(engine: Engine, limits: Limits) -> None:
    asked, _ = hard()
    if limits.work is not None and engine.name == "cp-sat":
        limits = replace(limits, work=0.05)
    answer = engine.solve(asked, limits)
    allowed = {EngineStatus.FEASIBLE, EngineStatus.NO_SOLUTION}
    assert answer.status in (allowed if engine.name != "exhaustive" else {EngineStatus.FAILED}), answer
    assert_sound(asked, answer)
    # The best solution known of this one; a bound above it would be a lie.
    assert answer.bound <= -8283


def test_a_feasible_hint_is_never_lost(engine: Engine) -> None:
    asked, poor = hard()
    if engine.name == "exhaustive":
        asked, poor = hard(count=16)
    answer = engine.solve(asked, Limits(time_s=0.0), poor)
    assert answer.status is EngineStatus.FEASIBLE, answer
    assert_sound(asked, answer)
    assert answer.objective <= float(asked.cost @ poor)


@pytest.mark.parametrize("hint", [[1, 1, 1, 1], [0, 0, 0], [np.nan] * 4, [0.4, 0.9, 0.0, 0.6], [1, 0, 0, 0]])
def test_bad_hints_do_no_harm(engine: Engine, hint: list[float]) -> None:
    assert_best(knapsack(), engine.solve(knapsack(), ENOUGH, np.array(hint, dtype=np.float64)), 58)


def test_counted_work_ends_alike(engine: Engine) -> None:
    asked, _ = hard(count=18 if engine.name == "exhaustive" else 40)
    work = {"cp-sat": 0.1, "exhaustive": 40_000}.get(engine.name, 3)
    first, second = (engine.solve(asked, Limits(work=work)) for _ in range(2))
    assert first.status is second.status is EngineStatus.FEASIBLE
    assert first.values is not None
    assert np.array_equal(first.values, second.values if second.values is not None else [])
    assert first.bound == second.bound


def test_the_clock_ends_counted_work_too(engine: Engine) -> None:
    asked, _ = hard(count=18 if engine.name == "exhaustive" else 40)
    work = {"cp-sat": 0.1, "exhaustive": 40_000}.get(engine.name, 3)
    assert engine.solve(asked, Limits(time_s=0.0, work=work)).status is EngineStatus.NO_SOLUTION


def test_a_gap_that_was_asked_for_is_enough(engine: Engine) -> None:
    asked, poor = hard(count=16)
    answer = engine.solve(asked, Limits(time_s=20.0, gap=0.2), poor)
    assert answer.status is EngineStatus.OPTIMAL, answer
    assert answer.gap <= 0.2
    assert answer.bound <= answer.objective


@pytest.mark.parametrize("seed", range(25))
def test_all_agree_with_enumeration(engine: Engine, seed: int) -> None:
    asked = drawn(seed)
    answer, truth = engine.solve(asked, ENOUGH), Exhaustive().solve(asked, ENOUGH)
    assert answer.status is truth.status, answer
    assert_sound(asked, answer)
    if truth.values is not None:
        assert answer.objective == pytest.approx(truth.objective, abs=1e-6)
        assert answer.bound <= truth.objective + 1e-9


@pytest.mark.parametrize("seed", range(25))
def test_mixed_programmes_have_one_optimum(seed: int) -> None:
    asked = drawn(seed, mixed=True)
    one, other = (create(name).solve(asked, ENOUGH) for name in ("highs", "cbc"))
    assert one.status is other.status in (EngineStatus.OPTIMAL, EngineStatus.INFEASIBLE), (one, other)
    for answer in (one, other):
        assert_sound(asked, answer)
    if one.values is not None:
        assert one.objective == pytest.approx(other.objective, abs=1e-5)


def test_whole_numbers_behind_large_factors(engine: Engine) -> None:
    """A switch of 5e-7 would do for the row, and libraries take that for 0: the answer must not."""
    asked = program([1, 0.001], [(-INF, [-1e7, 1], 0), (5, [0, 1], INF)], upper=[1, 1e3], integer=[True, False])
    if not linear(engine):
        asked = replace(asked, integer=np.array([True, True]))
    answer = engine.solve(asked, ENOUGH)
    assert answer.status is not EngineStatus.INFEASIBLE
    assert_sound(asked, answer)
    if answer.values is not None:
        assert answer.values.tolist() == [1, 5]


@pytest.mark.parametrize(
    "change",
    [
        {"cost": np.array([np.nan, 1.0])},
        {"cost": np.array([np.inf, 1.0])},
        {"value": np.array([1.0, np.nan])},
        {"lower": np.array([np.nan, 0.0])},
        {"upper": np.array([1.0, -np.inf])},
        {"lower": np.array([np.inf, 0.0])},
        {"row_upper": np.array([np.nan])},
        {"row_lower": np.array([1.0, 2.0])},
        {"row": np.array([0, 7])},
        {"start": np.array([0, 1])},
        {"integer": np.array([True])},
        {"offset": float("nan")},
    ],
)
def test_nonsense_is_refused(engine: Engine, change: dict[str, np.ndarray]) -> None:
    asked = program([1, 1], [(1, [1, 1], 3)], upper=3.0)
    assert engine.solve(asked, ENOUGH).status is EngineStatus.OPTIMAL
    with pytest.raises(EngineError):
        engine.solve(replace(asked, **change), ENOUGH)


def test_inputs_are_left_alone(engine: Engine) -> None:
    asked = knapsack()
    for array in (asked.cost, asked.lower, asked.upper, asked.integer, asked.start, asked.row, asked.value):
        array.setflags(write=False)
    assert_best(asked, engine.solve(asked, ENOUGH, np.zeros(4)), 58)
