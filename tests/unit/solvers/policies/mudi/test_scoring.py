"""The exact spread of a few jobs equals looking at every way.

What inference leaves is split evenly, and memory goes to those who touch theirs most often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import cast

import numpy as np

from solvers.domain.ids import ModelName
from solvers.policies.mudi.curves import Company, MudiCurves, MudiParameters, targets_ms
from solvers.policies.mudi.models import Piecewise
from solvers.policies.mudi.scoring import Scores, best_spread, even, warmest_first
from solvers.policies.mudi.sizing import CoordinatedReplica
from solvers.problems.needs import Need


def test_shares_are_as_even_as_their_bounds_let_them() -> None:
    assert even(70, [10, 10, 10], [100, 100, 100]) == [24, 23, 23]
    assert even(70, [10, 10, 10], [15, 100, 100]) == [15, 28, 27]
    assert even(100, [10], [40]) == [40]


def test_the_coldest_memory_stands_on_the_host() -> None:
    bounds = [(2000, 8000), (1000, 4000), (3000, 3000)]
    assert warmest_first(20_000, bounds, [100.0, 900.0, 50.0]) == [8000, 4000, 3000]
    assert warmest_first(11_000, bounds, [100.0, 900.0, 50.0]) == [7000, 1000, 3000]
    assert warmest_first(11_000, bounds, [900.0, 100.0, 50.0]) == [4000, 4000, 3000]
    assert warmest_first(6000, bounds, [100.0, 900.0, 50.0]) == [2000, 1000, 3000]


DEVICES = (3, 5, 8)
MOST = 2


def brute(jobs: int, cost: dict[tuple[int, tuple[int, ...]], float]) -> tuple[int, float]:
    """Jobs without a place and the cost of the best of all ways."""
    best = (jobs + 1, 0.0)
    for way in product((None, *DEVICES), repeat=jobs):
        sets = {device: tuple(n for n in range(jobs) if way[n] == device) for device in DEVICES}
        if any((device, some) not in cost for device, some in sets.items()):
            continue
        best = min(best, (way.count(None), round(sum(cost[device, some] for device, some in sets.items()), 9)))
    return best


def _known(cost: dict[tuple[int, tuple[int, ...]], float], device: int, some: tuple[int, ...]) -> float | None:
    return cost.get((device, some))


def test_nothing_is_better_than_the_best() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        jobs = int(rng.integers(1, 5))
        sets = [some for some in product((0, 1), repeat=jobs) if sum(some) <= MOST]
        cost = {
            (device, tuple(n for n in range(jobs) if some[n])): float(rng.uniform(0, 10))
            for device in DEVICES
            for some in sets
            if not any(some) or rng.uniform() < 0.8
        }
        found = best_spread(jobs, DEVICES, MOST, partial(_known, cost))
        placed = {device: tuple(n for n in range(jobs) if found[n] == device) for device in DEVICES}
        mine = (found.count(None), round(sum(cost[device, some] for device, some in placed.items()), 9))
        assert mine == brute(jobs, cost)


def test_a_device_that_cannot_even_stay_as_it_is_takes_nobody() -> None:
    assert best_spread(2, (1,), 3, lambda device, some: None) == [None, None]


LINES = {1: Piecewise(k1=-200.0, k2=-20.0, knee=0.4, l0=30.0), 8: Piecewise(k1=-300.0, k2=-30.0, knee=0.4, l0=90.0)}
LIMIT_MS = 100.0
TRAIN = ModelName("train")


class Curves:
    """Beside each job everything is as much slower again, and on the second class of devices a batch is missing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, Company]] = []

    def know(self, asked: Iterable[tuple[Need, int, Company]]) -> None:
        self.asked += [(need.model, kind, company) for need, kind, company in asked]

    def beside(self, need: Need, kind: int, company: Company) -> dict[int, Piecewise]:
        factor = (1.0 + len(company)) * len(need.model)
        return {
            batch: replace(line, k1=line.k1 * factor, k2=line.k2 * factor, l0=line.l0 * factor)
            for batch, line in LINES.items()
            if batch <= 8 - 7 * kind
        }


def host(rate_rps: float, model: str = "m") -> CoordinatedReplica:
    need = SimpleNamespace(workload=f"demo/{model}", model=model, limit_ms=LIMIT_MS)
    return cast("CoordinatedReplica", SimpleNamespace(need=need, rate_rps=rate_rps))


def scored(
    hosts: dict[int, list[CoordinatedReplica]], present: dict[int, Company], classes: list[int]
) -> tuple[Scores, Curves]:
    curves = Curves()
    scores = Scores(
        curves=cast(MudiCurves, curves),
        parameters=MudiParameters(),
        class_of=np.array(classes),
        hosts=hosts,
        company_of=lambda at: present.get(at, ()),
        company=np.full(len(classes), -1),
    )
    return scores, curves


def slope(rates_rps: list[float], present: Company = ()) -> float:
    scores, _ = scored({0: [host(rate) for rate in rates_rps]}, {0: present}, [0])
    return float(scores.slopes(np.array([0]), TRAIN)[0])


def test_the_slope_is_that_of_the_segment_on_which_the_target_lies() -> None:
    """Targets in a window of 100 ms: with few requests the limit itself, with many its part for each batch."""
    few = slope([1.0])
    # 100 ms beside one job: above the knee's 60 ms for a batch of 1, below its 180 ms for a batch of 8.
    assert few == (400.0 + 60.0) / 2
    many = slope([300.0])
    assert many == (40.0 + 60.0) / 2
    assert slope([1.0, 300.0]) == few + many
    # Beside two jobs the knee of a batch of 1 is at 90 ms.
    assert slope([1.0], (TRAIN,)) == (600.0 + 90.0) / 2


def test_a_device_that_changed_is_looked_at_again() -> None:
    present: dict[int, Company] = {}
    scores, _ = scored({0: [host(1.0)]}, present, [0])
    first = scores.slopes(np.array([0]), TRAIN)[0]
    present[0] = (TRAIN,)
    assert scores.slopes(np.array([0]), TRAIN)[0] == first
    scores.changed(0)
    assert scores.slopes(np.array([0]), TRAIN)[0] == slope([1.0], (TRAIN,)) > first


def test_devices_that_carry_the_same_networks_share_their_curves() -> None:
    """Whatever their rates; and nothing is asked for twice."""
    scores, curves = scored({at: [host(1.0 + at)] for at in range(50)}, {7: (TRAIN,)}, [0] * 50)
    scores.slopes(np.arange(50), TRAIN)
    assert sorted(curves.asked) == [("m", 0, (TRAIN,)), ("m", 0, (TRAIN, TRAIN))]
    scores.slopes(np.arange(50), TRAIN)
    scores.changed(3)
    scores.slopes(np.arange(50), TRAIN)
    assert len(curves.asked) == 2


def test_where_no_service_is_nothing_slopes() -> None:
    scores, curves = scored({}, {}, [0, 1])
    assert scores.slopes(np.array([0, 1]), TRAIN).tolist() == [0.0, 0.0]
    assert curves.asked == []


def test_slopes_of_all_together_are_those_of_each_by_itself() -> None:
    rng = np.random.default_rng(11)
    for _ in range(30):
        count = int(rng.integers(1, 12))
        hosts = {
            at: [host(float(rng.uniform(0.0, 400.0)), "m" * int(rng.integers(1, 4))) for _ in range(rng.integers(1, 4))]
            for at in range(count)
            if rng.uniform() < 0.8
        }
        present = {at: (TRAIN,) * int(rng.integers(0, 3)) for at in range(count)}
        scores, curves = scored(hosts, present, [int(rng.integers(0, 2)) for _ in range(count)])
        places = np.flatnonzero(rng.uniform(size=count) < 0.7)
        plain = []
        for at in places.tolist():
            total = 0.0
            for each in hosts.get(at, []):
                lines = curves.beside(each.need, int(scores.class_of[at]), (*present[at], TRAIN))
                steep = []
                for batch, line in lines.items():
                    target = float(targets_ms(LIMIT_MS, each.rate_rps, batch, MudiParameters()))
                    steep.append(abs(line.k1 if target >= line.l0 else line.k2))
                total += sum(steep) / len(steep)
            plain.append(total)
        assert scores.slopes(places, TRAIN).tolist() == plain
