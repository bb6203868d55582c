"""Figures of InSS' evaluation, read off outcomes made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lab.claims.base import ClaimStatus, Effort
from lab.claims.inss import worlds
from lab.claims.runs import Outcomes, varied
from solvers.errors import InputError
from solvers.sim.outcome import RunOutcome, metric
from solvers.sim.scenario import WorldScenario

STATED = {"inss": 2897.0, "gpulet": 2000.0, "gslice": 1900.0, "igniter": 900.0, "bda_gpulet": 2250.0, "inss_ni": 2950.0}
VIOLATIONS = {"inss": 0.5, "gpulet": 4.4, "gslice": 4.5, "igniter": 3.8, "bda_gpulet": 4.0, "inss_ni": 2.0}


def outcome(label: str, capacity: float, violation: float) -> RunOutcome:
    numbers = {"capacity_rps": capacity, "throughput_rps": 1000.0, "violation_pct": violation}
    return RunOutcome(
        scenario="s", contender=label, seed=0, metrics=tuple(metric(name, each) for name, each in numbers.items())
    )


Judge = Callable[[dict[str, float], dict[str, float]], list[ClaimStatus]]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judge:
    def judge(capacity: dict[str, float], violation: dict[str, float]) -> list[ClaimStatus]:
        made = {name: outcome(name, capacity[name], violation[name]) for name in capacity}

        def outcomes(scenario: str, contenders: Sequence[str], effort: Effort) -> Outcomes:
            return {name: (made[name],) for name in contenders}

        def changed(
            scenario: str, contender: str, change: Callable[[WorldScenario], WorldScenario], seed: int = 0
        ) -> RunOutcome:
            return made[contender]

        monkeypatch.setattr(worlds, "outcomes", outcomes)
        monkeypatch.setattr(worlds, "varied", changed)
        for kept in (worlds._six, worlds._eight, worlds._at_once, worlds._without_spare):
            kept.cache_clear()
        found = [claim.judge(Effort(seeds=1)) for claim in worlds.CLAIMS[:4]]
        assert all("ablation" in each.note for each in found if each.status is ClaimStatus.NOT_REPRODUCED)
        return [each.status for each in found]

    return judge


def test_the_printed_figures_pass(judged: Judge) -> None:
    assert judged(STATED, VIOLATIONS) == [ClaimStatus.PASS] * 4


@pytest.mark.parametrize(
    ("capacity", "violation", "missed"),
    [
        ({"gslice": 2100.0}, {}, 0),
        ({}, {"inss": 1.1, "inss_ni": 3.0}, 1),
        ({}, {"igniter": 0.4}, 1),
        ({"bda_gpulet": 2200.0}, {}, 2),
        ({}, {"bda_gpulet": 5.5}, 2),
        ({"inss_ni": 3100.0}, {}, 3),
        ({}, {"inss_ni": 0.4}, 3),
    ],
)
def test_each_figure_can_be_missed(
    judged: Judge, capacity: dict[str, float], violation: dict[str, float], missed: int
) -> None:
    found = judged({**STATED, **capacity}, {**VIOLATIONS, **violation})
    assert [at for at, status in enumerate(found) if status is ClaimStatus.NOT_REPRODUCED] == [missed]


@pytest.mark.parametrize(("four", "status"), [(1500.0, ClaimStatus.PASS), (1250.0, ClaimStatus.NOT_REPRODUCED)])
def test_heavy_load_is_judged_across_fleets(monkeypatch: pytest.MonkeyPatch, four: float, status: ClaimStatus) -> None:
    capacity = {"inss": 2000.0, "gpulet": 1300.0, "gslice": 1200.0, "igniter": 1100.0}

    def outcomes(scenario: str, contenders: Sequence[str], effort: Effort) -> Outcomes:
        ours = four if scenario == "inss-eight-4" else capacity["inss"]
        made = {name: outcome(name, ours if name == "inss" else capacity[name], 0.5) for name in contenders}
        return {
            name: (replace(each, metrics=(*each.metrics[:1], metric("throughput_rps", number), each.metrics[2])),)
            for name, each in made.items()
            for number in (each.metrics[0].value,)
        }

    monkeypatch.setattr(worlds, "outcomes", outcomes)
    monkeypatch.setattr(worlds, "varied", lambda *_: outcome("inss", 1.0, 0.1))
    for kept in (worlds._eight, worlds._at_once):
        kept.cache_clear()
    told = worlds.judge_10(Effort(seeds=1))
    assert told.status is status
    assert f"capacity_rps: InSS {four:.0f} on four GPUs, 2000 on five" in told.measured


def test_ablations_run_worlds_that_are_there() -> None:
    with pytest.raises(InputError, match="there is no world nowhere"):
        varied("nowhere", "inss", lambda world: world)
