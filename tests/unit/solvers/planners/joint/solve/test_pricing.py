"""The compiled search finds the best contents of every device, and nothing is worth more than its ceilings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from solvers.domain.arrays import Floats
from solvers.engines import deadline as deadline_module
from solvers.engines.contents import Contents, Effort, ItemPrices, Priced
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve import generate as generating
from solvers.planners.joint.solve import pricing as pricing_of
from solvers.planners.joint.solve.generate import Pace, generate, singles
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.pricing import Found, Look, Pricing, lagrangian, scale_of
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Judged, Patterns
from tests.unit.solvers.planners.joint.solve.oracle import every_choice, every_pattern, optimum
from tests.unit.solvers.planners.joint.solve.scenes import BASES, scene

ENDLESS = 1e9
NOTHING = 1e-7
EXACT = Look(part=NOTHING, step_pct=20)


def _varied(seed: int, basis: str) -> JointProblem:
    """Every rule at once; memory binds in some, limits that the plan sets in others."""
    problem = replace(scene(seed, services=4, basis=basis), share_step_pct=20)
    if seed % 3 == 0:
        problem = replace(problem, memory_mib=problem.memory_mib * 2.2)
    if seed % 4 == 0:
        capped = (replace(pool, capped=True, limit_w=120.0) for pool in problem.pools)
        problem = replace(problem, pools=tuple(capped))
    return problem


def _duals(rows: Rows, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    duals = np.where(np.isfinite(rows.upper), -1.0, 1.0) * rng.uniform(0, 1, rows.count)
    duals[: rows.pool_at] *= rng.uniform(1, 5)
    duals[rows.pool_at : rows.cap_at] *= 0.3
    return np.asarray(duals)


def _best(problem: JointProblem, rows: Rows, duals: Floats, judged: Judged) -> Floats:
    """By pool, what the best of these is worth."""
    reduced = rows.columns(judged).reduced(duals)
    pool = problem.kind_pool[judged.rows.kind]
    return np.array([-reduced[pool == number].min(initial=0.0) for number in range(len(problem.pools))])


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("seed", range(12))
def test_ceilings_are_the_best_of_all_patterns(seed: int, basis: str) -> None:
    problem = _varied(seed, basis)
    rows = Rows(problem)
    if seed % 2:
        rows.cut(np.arange(2), np.array([1, 2]))
    duals, judge = _duals(rows, seed), Judge(problem)
    found = Pricing(judge, rows, judge.width).price(duals, EXACT, Deadline(ENDLESS), 0.0)
    most = _best(problem, rows, duals, every_choice(problem))
    assert (found.ceilings >= most - 1e-9).all()
    assert found.ceilings == pytest.approx(most, abs=2 * NOTHING * scale_of(problem).max())
    best = _best(problem, rows, duals, every_pattern(problem, 20))
    columns = rows.columns(judge.judge(found.rows))
    worth = -columns.reduced(duals)
    for pool in np.flatnonzero(best > 0):
        assert worth[problem.kind_pool[found.rows.kind] == pool].max() == pytest.approx(best[pool], rel=1e-9)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("step_pct", [15, 30, 60])
def test_all_of_a_device_is_a_share_whatever_the_step(step_pct: int, basis: str) -> None:
    problem = replace(scene(step_pct, services=2, basis=basis), share_step_pct=step_pct)
    alone = (replace(item, dedicated=number == 0) for number, item in enumerate(problem.workloads))
    problem = replace(problem, workloads=tuple(alone), pools=tuple(replace(i, clients=2) for i in problem.pools))
    rows, judge = Rows(problem), Judge(problem)
    duals = np.where(np.arange(rows.count) < rows.pool_at, 3.0, 0.0)
    found = Pricing(judge, rows, judge.width).price(duals, replace(EXACT, step_pct=step_pct), Deadline(ENDLESS), 0.0)
    most = _best(problem, rows, duals, every_choice(problem))
    assert (found.ceilings >= most - 1e-9).all()
    assert found.ceilings == pytest.approx(most, abs=2 * NOTHING * scale_of(problem).max())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settles", [0.0, 0.03, 0.5])
@pytest.mark.parametrize("units", [1, 2, 4])
def test_stopped_at_any_time_ceilings_hold(seed: int, units: int, *, settles: float) -> None:
    problem = _varied(seed, "device")
    rows, judge = Rows(problem), Judge(problem)
    look = replace(EXACT, settles=settles)
    found = Pricing(judge, rows, judge.width).price(_duals(rows, seed), look, Deadline(ENDLESS, units), 0.0)
    assert (found.ceilings >= _best(problem, rows, found.duals, every_choice(problem)) - 1e-9).all()


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("seed", range(12))
def test_prices_settle_where_nothing_is_worth_more(seed: int, basis: str) -> None:
    """What demand is worth falls, and nothing else changes: all patterns there are come below what the look allows."""
    problem = _varied(seed, basis)
    rows, part = Rows(problem), 0.01
    if seed % 2:
        rows.cut(np.arange(2), np.array([1, 2]))
    duals, judge = _duals(rows, seed), Judge(problem)
    look = replace(EXACT, part=part, settles=0.5)
    found = Pricing(judge, rows, judge.width).price(duals, look, Deadline(ENDLESS), 0.0)
    demand, before = slice(rows.pool_at), _best(problem, rows, duals, every_choice(problem))
    assert found.duals[rows.pool_at :] == pytest.approx(duals[rows.pool_at :])
    assert (found.duals[demand] <= duals[demand]).all()
    assert (found.duals[demand] >= np.minimum(duals[demand], 0.0)).all()
    most = _best(problem, rows, found.duals, every_choice(problem))
    assert (found.ceilings >= most - 1e-9).all()
    unsettled = _best(problem, rows, np.where(np.arange(rows.count) < rows.pool_at, 0.0, duals), every_choice(problem))
    allowed = np.maximum(part * scale_of(problem), 0.0) + 1e-9
    if not problem.usd_per_wh and not (unsettled > allowed).any():
        assert (found.ceilings <= allowed).all()
    if (before > allowed).any() and not (unsettled > allowed).any():
        assert (found.duals[demand] < duals[demand]).any()


def test_pools_that_took_more_may_take_more_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first all may take as much; whoever was content with little is left enough for a surprise."""
    problem, asked = scene(1), list[list[float]]()
    rows, judge = Rows(problem), Judge(problem)
    price = Contents.price

    def watched(self: Contents, prices: ItemPrices, efforts: Mapping[int, Effort]) -> list[Priced]:
        asked.append([effort.units for effort in efforts.values()])
        took = (100 if number == 0 else 1 for number in efforts)
        return [replace(item, units=units) for item, units in zip(price(self, prices, efforts), took, strict=True)]

    monkeypatch.setattr(Contents, "price", watched)
    pricing, count = Pricing(judge, rows, judge.width), len(problem.pools)
    for _ in range(2):
        pricing.price(_duals(rows, 1), EXACT, Deadline(ENDLESS, 1000), 0.0)
    first, second = asked
    assert first == pytest.approx([1000 / count] * count)
    assert second[0] == pytest.approx(750 * 100 / (100 + count - 1) + 250 / count)
    assert sum(second) == pytest.approx(1000)


def test_where_devices_are_many_settled_prices_are_near_in_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, gaps = family_problem(400, 60, 1), list[float]()
    pace = Pace(gap=1e-4, rounds=10, first_pct=5, finest_pct=5, repeats=8, proves=False)
    for devices in (generating.SETTLED_DEVICES, 10**6):
        monkeypatch.setattr(generating, "SETTLED_DEVICES", devices)
        master = Master(problem, Judge(problem))
        master.offer(singles(problem, master.width))
        found = generate(master, Deadline(ENDLESS, 10**6), pace)
        assert found is not None
        gaps.append(found.gap)
    settled, otherwise = gaps
    assert settled < 0.5 * otherwise


def test_prices_settle_as_soon_where_devices_cost_nothing() -> None:
    """Nothing is allowed above what is free: lowered by no more than what it is worth too much, contents stayed it."""
    problem, most = family_problem(200, 40, 1), 20_000
    pools = (replace(pool, usd_per_h=pool.usd_per_h * (number > 2)) for number, pool in enumerate(problem.pools))
    problem = replace(problem, pools=tuple(pools), usd_per_wh=0.0)
    master, deadline = Master(problem, Judge(problem)), Deadline(ENDLESS, most)
    master.offer(singles(problem, master.width))
    found = generate(master, deadline, Pace(gap=1e-3, rounds=12, first_pct=5))
    assert found is not None
    assert found.gap < 2e-3
    assert deadline.left_part > 1 - 1000 / most


def test_a_slow_machine_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a unit took last is what one takes."""
    problem, now_s, asked = _varied(1, "device"), [0.0], list[float]()
    judge = Judge(problem, lanes=1)
    pricing = Pricing(judge, Rows(problem), judge.width)

    def slow(prices: ItemPrices, efforts: Mapping[int, Effort]) -> list[Priced]:
        asked.append(sum(effort.units for effort in efforts.values()))
        begun = pricing_of.BEGIN_UNITS * len(problem.workloads)
        now_s[0] += 0.002 * (100 + begun) * len(efforts)  # twice as long as a unit should take
        none = judge.judge(Patterns.none(judge.width)).rows
        return [Priced(ceiling=0.0, pi=prices.pi, rows=none, units=100) for _ in efforts]

    monkeypatch.setattr(judge.contents, "price", slow)
    monkeypatch.setattr(deadline_module.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(deadline_module.time, "process_time", lambda: now_s[0])
    deadline = Deadline(100.0, _begun_s=0.0, _begun_cpu_s=0.0)
    for _ in range(2):
        pricing.price(np.zeros(Rows(problem).count), Look(part=0.01, step_pct=1), deadline, 0.0)
    assert asked == pytest.approx([100_000, (100_000 - 1000 * now_s[0] / 2) / 2])


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("work_units", "within_s"), [(None, 75.0), (100_000, 100.0)])
def test_whatever_a_unit_takes_a_look_ends_in_time(
    work_units: int | None, within_s: float, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes first may take what is left but for a part of each that waits."""
    problem, until_s, now_s = _varied(1, "device"), list[float](), 1000.0
    judge, rows = Judge(problem, lanes=lanes), Rows(problem)

    def watched(prices: ItemPrices, efforts: Mapping[int, Effort]) -> list[Priced]:
        until_s.extend(effort.until_s - now_s for effort in efforts.values())
        return [Priced(ceiling=0.0, pi=prices.pi, rows=Patterns.none(judge.width), units=1) for _ in efforts]

    monkeypatch.setattr(judge.contents, "price", watched)
    monkeypatch.setattr(deadline_module.time, "monotonic", lambda: now_s)
    deadline = Deadline(100.0, work_units, _begun_s=now_s)
    Pricing(judge, rows, judge.width).price(_duals(rows, 1), EXACT, deadline, 0.25)
    count, late_s = len(problem.pools), pricing_of.LATE_PART * 100.0
    waiting = [max(0, count - at - lanes) for at in range(count)]
    assert until_s == pytest.approx(
        [within_s * (1 - pricing_of.EQUAL_PART * others / count) + late_s for others in waiting]
    )


@pytest.mark.parametrize("seed", range(4))
def test_who_has_no_time_ends_at_once_and_ceilings_hold(seed: int) -> None:
    problem = _varied(seed, "device")
    rows, judge = Rows(problem), Judge(problem)
    duals, pools = _duals(rows, seed), range(len(problem.pools))
    most, above = _best(problem, rows, duals, every_choice(problem)), list[float]()
    for until_s in (time.monotonic(), ENDLESS):
        effort = Effort(tolerance=NOTHING, step_pct=20, units=ENDLESS, until_s=until_s)
        found = judge.contents.price(rows.item_prices(duals), dict.fromkeys(pools, effort))
        ceilings = np.array([item.ceiling for item in found])
        assert (ceilings >= most - 1e-9).all()
        above.append(float((ceilings - most).sum()))
    assert above[0] > above[1]


def test_without_a_look_nothing_is_proven() -> None:
    problem = scene(1)
    rows, judge = Rows(problem), Judge(problem)
    found = Pricing(judge, rows, judge.width).price(np.zeros(rows.count), EXACT, Deadline(ENDLESS, 0), 0.0)
    assert lagrangian(rows, np.zeros(rows.count), found.ceilings) == -np.inf


@pytest.mark.parametrize("seed", range(4))
def test_the_relaxed_optimum_of_all_patterns_is_reached_and_proven(seed: int) -> None:
    problem = replace(scene(seed, services=4, devices=3), share_step_pct=20)
    judge = Judge(problem)
    master = Master(problem, judge)
    found = generate(master, Deadline(ENDLESS), Pace(gap=1e-4))
    assert found is not None
    assert found.bound is not None
    master.offer(every_pattern(problem, 20).rows)
    everything = master.programme.solve()
    assert everything is not None
    assert found.best.value == pytest.approx(everything.value, rel=1e-3)
    assert everything.value >= found.bound.usd_per_h - 1e-6 >= everything.value * (1 - 1e-3) - 1e-6
    assert found.bound.usd_per_h <= optimum(problem, every_choice(problem)) + 1e-6


def _hostile(problem: JointProblem, what: str) -> JointProblem:
    if what == "nothing runs":
        return replace(problem, mean_ms=np.full_like(problem.mean_ms, np.inf))
    if what == "no rate is asked":
        return replace(problem, workloads=tuple(replace(work, rate_rps=0.0) for work in problem.workloads))
    if what == "one share":
        shares = np.s_[:, :, -1:]
        return replace(
            problem, shares_pct=problem.shares_pct[-1:], mean_ms=problem.mean_ms[shares],
            tail_ms=problem.tail_ms[shares], power_w=problem.power_w[shares],
        )  # fmt: skip
    if what == "no variants":
        return problem.of_variants(np.zeros(0, dtype=np.int64))
    if what == "no time at all":
        none = np.zeros_like(problem.mean_ms)
        return replace(problem, mean_ms=none, tail_ms=none)
    endless = np.full_like(problem.power_w, np.inf)
    return replace(problem, memory_mib=np.full_like(problem.memory_mib, np.inf), power_w=endless)


@pytest.mark.parametrize(
    "what", ["nothing runs", "no rate is asked", "one share", "no variants", "no time at all", "no end of memory"]
)
def test_strange_numbers_end_in_ceilings_that_hold(what: str) -> None:
    problem = _hostile(_varied(2, "device"), what)
    rows, judge = Rows(problem), Judge(problem)
    duals = _duals(rows, 2)
    found = Pricing(judge, rows, judge.width).price(duals, EXACT, Deadline(ENDLESS), 0.0)
    assert np.isfinite(found.ceilings).all()
    assert (found.ceilings >= _best(problem, rows, duals, every_choice(problem)) - 1e-9).all()


@pytest.mark.parametrize(("slowness", "steps"), [(1.0, [10, 10]), (3.0, [10, 1])])
def test_finer_shares_are_looked_at_earlier_where_work_takes_longer(
    monkeypatch: pytest.MonkeyPatch, slowness: float, steps: list[int]
) -> None:
    """And at once at the finest: a look between is no bound."""
    problem, looked, price = family_problem(12, 8, 21), list[int](), Pricing.price

    def noted(pricing: Pricing, duals: Floats, look: Look, deadline: Deadline, until_part: float) -> Found:
        looked.append(look.step_pct)
        return price(pricing, duals, look, deadline, until_part)

    monkeypatch.setattr(Pricing, "price", noted)
    monkeypatch.setattr(Pricing, "slowness", lambda _pricing, _deadline: slowness)
    monkeypatch.setattr(generating, "NEAR", -1.0)
    master = Master(problem, Judge(problem))
    master.offer(singles(problem, master.width))
    quarter = Deadline(4000.0, _begun_s=time.monotonic() - 3000.0)
    assert generate(master, quarter, Pace(gap=0.0, rounds=2, fine_until=0.1, proves=False)) is not None
    assert looked == steps


def test_a_unit_takes_what_it_takes_where_time_ends_a_search() -> None:
    problem = family_problem(12, 8, 21)
    pricing = Pricing(Judge(problem), Rows(problem), 3)
    pricing._unit_ms = 2.5
    assert (pricing.slowness(Deadline(10.0)), pricing.slowness(Deadline(10.0, 1000))) == (2.5, 1.0)


def test_coarse_looks_tell_what_a_unit_takes_at_every_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a short look makes a machine seem slow, and the search hurries."""
    problem = family_problem(48, 24, 21)
    rows, judge = Rows(problem), Judge(problem)
    duals, price, now_s, times = _duals(rows, 2), judge.contents.price, [0.0], {1: 1.0, 5: pricing_of.COARSE}

    def steady(items: ItemPrices, efforts: dict[int, Effort]) -> list[Priced]:
        found, begun = list(price(items, efforts)), pricing_of.BEGIN_UNITS * len(problem.workloads) * len(efforts)
        each = times[next(iter(efforts.values())).step_pct]
        now_s[0] += 0.004 * (each * sum(item.units for item in found) + begun) / judge.contents.lanes
        return found

    monkeypatch.setattr(judge.contents, "price", steady)
    monkeypatch.setattr(deadline_module.time, "monotonic", lambda: now_s[0])
    for step in (1, 5):
        pricing = Pricing(judge, rows, judge.width)
        pricing.price(duals, Look(part=1e-4, step_pct=step), Deadline(1e6), 0.0)
        assert pricing.slowness(Deadline(1e6)) == pytest.approx(4.0)


def test_no_look_outlasts_what_is_kept_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever puts the answer together has half of it at least."""
    problem, ends = family_problem(48, 24, 21), list[float]()
    rows, judge = Rows(problem), Judge(problem)
    price = judge.contents.price

    def noted(items: ItemPrices, efforts: dict[int, Effort]) -> list[Priced]:
        ends.extend(effort.until_s for effort in efforts.values())
        return list(price(items, efforts))

    monkeypatch.setattr(judge.contents, "price", noted)
    deadline = Deadline(1000.0)
    Pricing(judge, rows, judge.width).price(_duals(rows, 2), EXACT, deadline, 0.02)
    assert max(ends) <= deadline.moment(0.0) + deadline.time_left_s - 10.0 + 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_prices_fall_no_further_than_they_must(seed: int) -> None:
    """What they fall further bounds less."""
    problem, sides = scene(seed, services=1), list[float]()
    rows, judge = Rows(problem), Judge(problem)
    duals = np.where(np.arange(rows.count) < rows.pool_at, 100.0, 0.0)
    for spared in (0.03, 0.5):
        look = Look(part=0.01, step_pct=20, settles=spared)
        found = Pricing(judge, rows, judge.width).price(duals, look, Deadline(ENDLESS, 10_000), 0.0)
        sides.append(rows.sides(found.duals))
        parts = _best(problem, rows, found.duals, every_pattern(problem, 20)) / (look.part * scale_of(problem))
        assert parts.max() <= 1.0
        assert spared > 0.1 or parts.max() > 0.9
    assert rows.sides(duals) > sides[0] > sides[1]


def test_looks_are_as_close_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = family_problem(48, 24, 21)
    pricing = Pricing(Judge(problem), Rows(problem), 3)
    assert pricing.nearest(Deadline(ENDLESS, 1000), 0.1) == pricing_of.LOOK_LEAST  # of so few
    monkeypatch.setattr(pricing_of, "LOOSE_WORKLOADS", 0)
    first = pricing.nearest(Deadline(ENDLESS, 1000), 0.1)
    assert first == pytest.approx(pricing_of.LOOK_UNITS[0] * 24 / 900)
    pricing.price(_duals(Rows(problem), 2), Look(part=0.01, step_pct=5), Deadline(ENDLESS, 1000), 0.0)
    assert pricing.nearest(Deadline(ENDLESS, 1000), 0.1) == pytest.approx(first / 4)
    deadline = Deadline(ENDLESS, 1000)
    pricing.price(_duals(Rows(problem), 2), Look(part=0.01, step_pct=1), deadline, 0.0)
    taken = 1000 * (1 - deadline.left_part)
    assert pricing.nearest(Deadline(ENDLESS, 10), 0.0) == pytest.approx(0.01 * taken / 10, rel=0.2)
    assert pricing.nearest(Deadline(ENDLESS, 10**6), 0.0) == pricing_of.LOOK_LEAST


def test_no_look_is_begun_that_would_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, looked, price = family_problem(48, 24, 21), list[float](), Pricing.price

    def noted(pricing: Pricing, duals: Floats, look: Look, deadline: Deadline, until_part: float) -> Found:
        looked.append(look.part)
        return price(pricing, duals, look, deadline, until_part)

    monkeypatch.setattr(Pricing, "price", noted)
    for nearest in (0.0, 0.05):
        monkeypatch.setattr(Pricing, "nearest", lambda *_, nearest=nearest: nearest)
        master = Master(problem, Judge(problem))
        master.offer(singles(problem, master.width))
        pace = Pace(gap=0.0, rounds=4, first_pct=1, first_part=0.02, fine_until=0.1, proves=False)
        assert generate(master, Deadline(ENDLESS, 10**6), pace) is not None
    assert looked[:4] == sorted(looked[:4], reverse=True)
    assert looked[4:] == [0.02]
