"""Figures of HetSev's evaluation, read off outcomes made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lab.claims.base import ClaimStatus, Effort
from lab.claims.hetsev import claims
from lab.claims.runs import Outcomes
from solvers.domain.ids import ServiceId
from solvers.sim.outcome import Better, RunOutcome, RunWindow, ServiceOutcome, metric


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

    def outcomes(scenario: str, contenders: Sequence[str], effort: Effort) -> Outcomes:
        assert set(contenders) == set(made)
        return made

    monkeypatch.setattr(claims, "outcomes", outcomes)
    monkeypatch.setattr(claims, "scenarios", lambda beginning: ("one", "two"))
    return made


def test_ratios_in_the_spike(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    told = claims.judge_06(Effort())
    assert told.status is ClaimStatus.PASS
    assert told.measured == "throughput up to 2.50x, cluster utilisation up to 3.00x, response time 0.333x (1/3.00)"
    assert "peak over peak 2.50x; two tenants gain at most: v100 1.7" in told.note
    assert "hetsev in the spike: 8.0 GPUs 60 % busy" in told.note
    found["k8s_hpa"] = (replace(THEIRS, windows=OURS.windows),)
    assert claims.judge_06(Effort()).status is ClaimStatus.NOT_REPRODUCED


def test_before_the_spike_both_serve_the_same(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    assert claims.judge_07(Effort()).measured == "throughput 0.990x"
    assert claims.judge_07(Effort()).status is ClaimStatus.PASS
    found["hetsev"] = (outcome("hetsev", low=150, high=1000, p95_ms=1, metrics=NUMBERS),)
    assert claims.judge_07(Effort()).status is ClaimStatus.FAIL


def test_violations_of_the_fluctuating_run(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    assert claims.judge_08(Effort()).status is ClaimStatus.PASS
    worse = {**NUMBERS, "violation_pct": 1.2}
    found["hetsev"] = (outcome("hetsev", low=1, high=1, p95_ms=1, metrics=worse),)
    told = claims.judge_08(Effort())
    assert told.status is ClaimStatus.NOT_REPRODUCED
    assert told.measured.startswith("1.20 % of requests, 2.00 % in the mean window, at most 8 instances")


def test_costs_by_three_rules(found: dict[str, tuple[RunOutcome, ...]]) -> None:
    told = claims.judge_09(Effort())
    assert told.status is ClaimStatus.PASS
    assert told.measured == "2.20x (best 2.20x, worst 2.20x), SLO kept by both"
    assert "reserved memory 1.00x" in told.note
    missed = {**NUMBERS, "attained_pct": 50.0}
    found["hetsev"] = (outcome("hetsev", low=1, high=1, p95_ms=1, metrics=missed),)
    told = claims.judge_09(Effort())
    assert told.status is ClaimStatus.NOT_REPRODUCED
    assert told.measured.endswith("SLO missed in some run")


def test_a_peak_is_held_for_a_minute() -> None:
    rates = [100.0] * 20 + [1000.0] + [100.0] * 20
    assert max(claims.minutes(rates)) == pytest.approx((1000 + 11 * 100) / 12)
    assert claims.minutes(rates[:3]) == [100]
