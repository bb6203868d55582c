"""HetSev's claims: judged with little effort, and found wrong when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.claims.base import ClaimEvidence, ClaimStatus, Effort
from lab.claims.hetsev import claims, rules
from lab.claims.hetsev.claims import CLAIMS
from lab.claims.hetsev.rules import Farm
from solvers.domain.workload import AntiAffinity
from solvers.policies.hetsev.parameters import HetsevParameters
from solvers.policies.hetsev.planner import HetSev

LITTLE = Effort(seeds=1, examples=10)
JUDGES: dict[str, Callable[[Effort], ClaimEvidence]] = {item.id: item.judge for item in CLAIMS}


@pytest.mark.parametrize("name", ["AC-HET-01", "AC-HET-02", "AC-HET-04", "AC-HET-05"])
def test_what_can_be_recomputed_passes(name: str) -> None:
    told = JUDGES[name](LITTLE)
    assert told.status is ClaimStatus.PASS, told
    assert told.note == ""


def test_a_wrong_optimum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**claims.CASES, "a": replace(claims.CASES["a"], change=(0, 5), objective=0.48)}
    monkeypatch.setattr(claims, "CASES", wrong)
    told = claims.judge_01(LITTLE)
    assert told.status is ClaimStatus.FAIL
    assert told.note.startswith("a by cbc: [-1, 8]")


def test_a_wrong_price_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "T4_PRICE", 0.025)
    told = claims.judge_02(LITTLE)
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
    told = rules.judge_03(LITTLE)
    assert told.status is ClaimStatus.FAIL
    assert "shrank within the cool-down" in told.note


@pytest.mark.usefixtures("shorter")
def test_rules_hold_on_random_loads() -> None:
    told = rules.judge_03(LITTLE)
    assert told.status is ClaimStatus.PASS, told
    assert told.measured.startswith("40 plans: 0 broken rules; at most ")


def test_a_queue_that_starves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "GAP_MAX", 3)
    assert rules.judge_04(LITTLE).status is ClaimStatus.FAIL
