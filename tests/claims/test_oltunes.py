"""OLTunes' claims about its scheduler: the rules are tried on chance, and figures are read as the paper states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from lab.claims.catalogue import claims
from lab.claims.claim import ClaimStatus, Effort, Judge, Outcomes
from lab.claims.oltunes import rules, worlds
from lab.outcome import Better, RunOutcome, metric
from solvers.policies.oltunes.queues import WindowPace

PLAIN = {
    "latency_ms_mean": 100.0,
    "latency_ms_p99": 200.0,
    "throughput_inputs_per_s": 1000.0,
    "violation_pct": 10.0,
    "utilisation_pct_mean": 20.0,
    "utilisation_pct_spread": 5.0,
    "epc_score": 60.0,
    "energy_j": 1000.0,
    "accuracy_lost_pct": 3.0,
}
SCHEDULER = [f"AC-OLT-{number:02}" for number in range(8, 14)]
JUDGES: dict[str, Judge] = {claim.id: claim.judge for claim in claims(SCHEDULER)}


def outcome(label: str, numbers: Mapping[str, float]) -> RunOutcome:
    told = tuple(metric(name, number, Better.LOWER) for name, number in numbers.items())
    return RunOutcome(scenario="invented", contender=label, seed=0, metrics=told)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """Numbers by contender, the same in all scenarios; whoever is not named has the plain ones."""
    numbers: dict[str, dict[str, float]] = {}

    def invented(_scenario: str, contenders: tuple[str, ...], _effort: Effort) -> Outcomes:
        return {name: (outcome(name, {**PLAIN, **numbers.get(name, {})}),) for name in contenders}

    monkeypatch.setattr(worlds, "outcomes", invented)
    return numbers


def test_a_window_that_jumps_is_found_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowPace, "after_failure", lambda self, _: replace(self, window_ms=self.window_ms + 5.0))
    seen = rules.scheduler_keeps_rules(Effort(examples=1))
    assert seen.status is ClaimStatus.FAIL
    assert "after a failure" in seen.note


def test_equal_policies_reproduce_nothing_but_sanity(told: dict[str, dict[str, float]]) -> None:
    assert told == {}
    found = {name: judge(Effort(seeds=1)).status for name, judge in JUDGES.items()}
    passed = {name for name, status in found.items() if status is ClaimStatus.PASS}
    assert passed == {"AC-OLT-12", "AC-OLT-13"}
    assert set(found.values()) == {ClaimStatus.PASS, ClaimStatus.NOT_REPRODUCED}


def test_figures_are_reached_where_the_baselines_are_so_much_worse(told: dict[str, dict[str, float]]) -> None:
    for name in ("orion", "mlaas"):
        told[name] = {
            "latency_ms_mean": 150.0,
            "latency_ms_p99": 500.0,
            "throughput_inputs_per_s": 600.0,
            "violation_pct": 130.0,
            "utilisation_pct_mean": 12.0,
            "epc_score": 400.0,
        }
    found = {name: judge(Effort(seeds=1)) for name, judge in JUDGES.items()}
    missed = {name for name, seen in found.items() if seen.status is not ClaimStatus.PASS}
    assert missed == {"AC-OLT-13"}
    assert "p99 within 2.50x" in found["AC-OLT-13"].measured
    told["orion"]["latency_ms_mean"] = 120.0
    short = JUDGES["AC-OLT-08"](Effort(seeds=1))
    assert short.status is ClaimStatus.NOT_REPRODUCED
    assert "against orion: mean latency lower by +16.7 %" in short.measured
    assert "without affinity 1.00x" in short.note


def test_a_misprint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "POWERS", {**rules.POWERS, "task 2 on A": (300.0, 0.2, 0.5, 3.0, 108.0)})
    found = rules.estimated_power(Effort())
    assert found.status is ClaimStatus.FAIL
    assert "task 2 on A: 132" in found.note
    assert "task 2 goes elsewhere than to A" in found.note


def test_another_threshold_of_affinity_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "AFFINITY_MIN", 76.0)
    found = rules.affinities(Effort(examples=1))
    assert found.status is ClaimStatus.FAIL
    assert "high and low 75.00" in found.note
