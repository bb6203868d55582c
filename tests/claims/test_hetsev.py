"""HetSev's claims fail where something is wrong; figures of its evaluation are read off outcomes made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.claims.claim import ClaimStatus, Effort, Outcomes
from lab.claims.hetsev import rules, worlds
from lab.claims.hetsev.rules import Farm
from lab.outcome import Better, RunOutcome, RunWindow, ServiceOutcome, metric
from solvers.domain.ids import ServiceId
from solvers.domain.workload import AntiAffinity
from solvers.policies.hetsev.deciding import HetsevParameters
from solvers.policies.hetsev.planner import HetSev


def window(at: float, rps: float, gpus: float, utilisation_pct: float) -> RunWindow:
    return RunWindow(
        from_s=at,
        until_s=at + 5,
        asked_rps=rps,
        in_time_rps=rps,
        violated_rps=0,
        devices_used=gpus,
        replicas=gpus,
        usd_per_h=1,
        power_w=1,
        utilisation_pct=100,
        kernels_pct=utilisation_pct,
    )


def outcome(label: str, *, low: float, high: float, p95_ms: float, metrics: dict[str, float]) -> RunOutcome:
    windows = [window(5.0 * at, low if at < 700 else high, 8, 20 if label == "k8s_hpa" else 60) for at in range(1200)]
    service = ServiceOutcome(service=ServiceId("a"), asked=10, completed=10, late=0, dropped=0, latency_ms_p95=p95_ms)
    named = tuple(metric(name, number, Better.LOWER) for name, number in metrics.items())
    return RunOutcome(scenario="s", contender=label, seed=0, metrics=named, services=(service,), windows=tuple(windows))


NUMBERS = {
    "violation_pct": 1.0, "windows_violation_pct": 2.0, "attained_pct": 100.0,
    "cost_reserved_usd": 1.0, "cost_occupied_usd": 1.0,
}  # fmt: skip
OURS = outcome("hetsev", low=200, high=1000, p95_ms=100, metrics=NUMBERS)
THEIRS = outcome("k8s_hpa", low=202, high=400, p95_ms=300, metrics={**NUMBERS, "cost_occupied_usd": 2.2})


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[RunOutcome, ...]]:
    made = {"hetsev": (OURS,), "k8s_hpa": (THEIRS,)}

    def outcomes(scenario: str, contenders: tuple[str, ...], effort: Effort) -> Outcomes:
        assert set(contenders) == set(made)
        return made

    monkeypatch.setattr(worlds, "outcomes", outcomes)
    monkeypatch.setattr(worlds, "scenarios", lambda beginning: ("one", "two"))
    return made


def test_ratios_in_the_spike(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    told = worlds.in_spike(Effort())
    assert told.status is ClaimStatus.PASS
    assert told.measured == "throughput up to 2.50x, cluster utilisation up to 3.00x, response time 0.333x (1/3.00)"
    assert "peak over peak 2.50x; two tenants gain at most: v100 1.8" in told.note
    assert "hetsev in the spike: 8.0 GPUs 60 % busy" in told.note
    found["k8s_hpa"] = (replace(THEIRS, windows=OURS.windows),)
    assert worlds.in_spike(Effort()).status is ClaimStatus.NOT_REPRODUCED


def test_before_the_spike_both_serve_the_same(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    assert worlds.before_spike(Effort()).measured == "throughput 0.990x, 3 seeds"
    assert worlds.before_spike(Effort()).status is ClaimStatus.PASS
    found["hetsev"] = (outcome("hetsev", low=150, high=1000, p95_ms=1, metrics=NUMBERS),)
    assert worlds.before_spike(Effort()).status is ClaimStatus.FAIL


def test_violations_of_the_fluctuating_run(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    assert worlds.fluctuating(Effort()).status is ClaimStatus.PASS
    worse = {**NUMBERS, "violation_pct": 1.2}
    found["hetsev"] = (outcome("hetsev", low=1, high=1, p95_ms=1, metrics=worse),)
    told = worlds.fluctuating(Effort())
    assert told.status is ClaimStatus.NOT_REPRODUCED
    assert told.measured.startswith("1.20 % of requests, 2.00 % in the mean window, at most 8 instances")


def test_costs_by_three_rules(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    told = worlds.costs(Effort())
    assert told.status is ClaimStatus.PASS
    assert told.measured == "2.20x (best 2.20x, worst 2.20x), SLO kept by both"
    assert "reserved memory 1.00x" in told.note
    missed = {**NUMBERS, "attained_pct": 50.0}
    found["hetsev"] = (outcome("hetsev", low=1, high=1, p95_ms=1, metrics=missed),)
    told = worlds.costs(Effort())
    assert told.status is ClaimStatus.NOT_REPRODUCED
    assert told.measured.endswith("SLO missed in some run")


def test_a_peak_is_held_for_a_minute() -> None:
    rates = [100.0] * 20 + [1000.0] + [100.0] * 20
    assert max(worlds.minutes(rates)) == pytest.approx((1000 + 11 * 100) / 12)
    assert worlds.minutes(rates[:3]) == [100]


LITTLE = Effort(seeds=1, examples=10)


def test_a_wrong_optimum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**rules.CASES, "a": replace(rules.CASES["a"], change=(0, 5), objective=0.48)}
    monkeypatch.setattr(rules, "CASES", wrong)
    told = rules.programmes(LITTLE)
    assert told.status is ClaimStatus.FAIL
    assert told.note.startswith("a by cbc: [-1, 8]")


def test_a_wrong_price_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "T4_PRICE", 0.025)
    told = rules.bills(LITTLE)
    assert told.status is ClaimStatus.FAIL
    assert "T4, 3 GB: 45" in told.note


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CYCLES_BEFORE", 15)
    monkeypatch.setattr(rules, "CYCLES_CONSTANT", 40)


@pytest.mark.usefixtures("shorter")
def test_a_planner_that_breaks_rules_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Farm):
        def __init__(self, models: list[str], planner: HetSev, seed: int) -> None:
            free = HetsevParameters(anti_affinity=AntiAffinity.OFF, cooldown_s=0.0, share_pct=25)
            super().__init__(models, HetSev(parameters=free), seed)

    monkeypatch.setattr(rules, "Farm", Careless)
    told = rules.plans_keep_rules(LITTLE)
    assert told.status is ClaimStatus.FAIL
    assert "shrank within the cool-down" in told.note


def test_a_queue_that_starves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "GAP_MAX", 3)
    assert rules.queues_are_served(LITTLE).status is ClaimStatus.FAIL
