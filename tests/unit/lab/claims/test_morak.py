"""Morak's claims: what is exact or a property is judged here, and what the statistical ones count is as it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.claims.base import ClaimClass, ClaimStatus, Effort
from lab.claims.morak import claims, properties
from lab.claims.morak.governed import GovernedLimits
from lab.claims.morak.runs import BASELINES, NETWORKS, BoardCut, ContenderTally, Contest, board, boards, knee_pct, tally
from solvers.control.governor import TABLE
from solvers.control.records import ReplicaWish, Zone
from solvers.sim.outcome import Better, Metric, RunContender, RunOutcome

LIMITS = GovernedLimits(power_w_cap=150.0, latency_ms=100.0)
SMALL = Effort(seeds=1, examples=12)
BY_ID = {claim.id: claim for claim in claims.CLAIMS}


def contest(controller: str, cut: BoardCut) -> Contest:
    return Contest(controller=controller, cut=cut, limits=LIMITS)


def test_every_claim_of_the_catalogue_is_there_once() -> None:
    assert list(BY_ID) == [f"AC-MOR-{number:02d}" for number in range(1, 8)]
    assert [BY_ID[name].kind.value for name in BY_ID] == ["E", "E", "P", "P", "S", "S", "S"]


@pytest.mark.parametrize("name", ["AC-MOR-02", "AC-MOR-03", "AC-MOR-04"])
def test_exact_and_property_claims_pass(name: str) -> None:
    evidence = BY_ID[name].judge(SMALL)
    assert (evidence.status, evidence.note if BY_ID[name].kind is ClaimClass.PROPERTY else "") == (ClaimStatus.PASS, "")


def test_both_triples_are_met_and_the_note_tells_that_they_were_fitted() -> None:
    evidence = BY_ID["AC-MOR-01"].judge(SMALL)
    assert evidence.status is ClaimStatus.PASS
    assert "changes recomputed: True" in evidence.measured
    assert "predicts nothing" in evidence.note


@pytest.mark.parametrize("field", ["throughput_rps", "latency_ms", "power_w"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_triple_off_by_more_than_one_in_a_hundred_is_not_met(
    field: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    triples = list(claims.morak_triples())
    triples[place] = replace(triples[place], **{field: 1.02 * getattr(triples[place], field)})
    monkeypatch.setattr(claims, "morak_triples", lambda: tuple(triples))
    assert BY_ID["AC-MOR-01"].judge(SMALL).status is ClaimStatus.NOT_REPRODUCED


def test_a_broken_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**TABLE, (Zone.HIGH, Zone.LOW): (ReplicaWish.CLOCK_UP,)}
    monkeypatch.setattr("solvers.control.governor.TABLE", wrong)
    assert properties.table_is_total().broken > 0
    assert BY_ID["AC-MOR-03"].judge(SMALL).status is ClaimStatus.FAIL


def test_boards_are_cut_by_knees_and_baselines_know_none() -> None:
    gpu = board()
    sizes = {name: knee_pct(gpu, name) for name in NETWORKS}
    assert (sizes["mobilenet"], sizes["googlenet"], sizes["resnet101"]) == (20, 30, 30)
    for cut in (BoardCut.SAME, BoardCut.MIXED):
        cuts = boards(contest("morak", cut))
        assert len(cuts) == 4
        assert all(sum(part.share_pct_sm for part in parts) <= 100 for parts in cuts)
        assert all(part.share_pct_sm == sizes[part.model] for parts in cuts for part in parts)
    assert [{part.model for part in parts} for parts in boards(contest("morak", BoardCut.SAME))] == [
        {n} for n in NETWORKS
    ]
    assert all(len(parts) == 3 for parts in boards(contest("morak", BoardCut.MIXED)))
    whole = boards(contest("dfs", BoardCut.WHOLE))
    assert [[(part.model, part.share_pct_sm) for part in parts] for parts in whole] == [[(n, 100)] for n in NETWORKS]


def test_a_tally_counts_what_it_says() -> None:
    found = tally(contest("morak", BoardCut.SAME), 1, periods=120)
    assert found == tally(contest("morak", BoardCut.SAME), 1, periods=120)
    assert found.total_rps == pytest.approx(sum(found.rate_rps.values()))
    assert found.kept_rps <= found.total_rps
    drawn_w = sum(found.energy_j[name] * found.rate_rps[name] for name in NETWORKS)
    assert drawn_w == pytest.approx(4 * found.power_w)
    shared = tally(contest("morak", BoardCut.MIXED), 1, periods=120)
    assert sum(shared.energy_j[n] * shared.rate_rps[n] for n in NETWORKS) == pytest.approx(4 * shared.power_w)
    assert found.hot_part + found.late_part >= 1.0 - found.kept_part


def test_switched_off_knobs_do_not_move() -> None:
    fixed = replace(contest("morak", BoardCut.SAME), batch_fixed=8)
    assert {part.batch_min == part.batch_max == 8 for parts in boards(fixed) for part in parts} == {True}
    slow = tally(replace(contest("morak", BoardCut.SAME), clock_fixed=600), 1, periods=60)
    fast = tally(replace(contest("morak", BoardCut.SAME), clock_fixed=board().clock_mhz_sm_max), 1, periods=60)
    assert slow.total_rps < fast.total_rps


def one(total: float) -> ContenderTally:
    even = dict.fromkeys(NETWORKS, total / 4)
    return ContenderTally(
        rate_rps=even,
        energy_j=dict.fromkeys(NETWORKS, 100.0 / total),
        latency_ms=dict.fromkeys(NETWORKS, 50.0),
        power_w=140.0,
        kept_part=1.0,
        hot_part=0.2,
        late_part=0.2,
        repartitions=0,
        kept_rps=total,
    )


def worlds_of(ours: float, over_pct: float) -> Callable[..., dict[str, tuple[RunOutcome, ...]]]:
    """Runs in which Morak serves so much and is so long above the cap; everybody else serves 100 and is above it."""

    def run(name: str, rate_rps: float, above_pct: float) -> RunOutcome:
        numbers = {
            "throughput_rps": rate_rps,
            "energy_j_per_request": 100.0 / rate_rps,
            "power_over_cap_pct": above_pct,
        }
        metrics = tuple(Metric(name=each, value=number, better=Better.LOWER) for each, number in numbers.items())
        return RunOutcome(
            scenario="world", contender=RunContender(label=name, planners=(name,)), seed=0, metrics=metrics
        )

    def outcomes(_scenario: str, names: tuple[str, ...], _effort: Effort) -> dict[str, tuple[RunOutcome, ...]]:
        return {name: (run(name, ours, over_pct) if name == "morak" else run(name, 100.0, 50.0),) for name in names}

    return outcomes


def test_a_cap_that_morak_breaks_in_the_world_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "mean_tally", lambda *_: replace(one(100.0), kept_part=1.0, late_part=0.1))
    monkeypatch.setattr(claims, "outcomes", worlds_of(100.0, 2.0))
    evidence = BY_ID["AC-MOR-06"].judge(SMALL)
    assert (evidence.status, evidence.note) == (
        ClaimStatus.NOT_REPRODUCED,
        "in the world 2.0 % of the time above the cap",
    )


@pytest.mark.parametrize(("ours", "status"), [(240.0, ClaimStatus.PASS), (160.0, ClaimStatus.NOT_REPRODUCED)])
@pytest.mark.parametrize("name", ["AC-MOR-05", "AC-MOR-07"])
def test_figures_pass_only_when_they_are_reached(
    name: str, ours: float, status: ClaimStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        claims, "mean_tally", lambda asked, *_: one(ours if asked.controller not in BASELINES else 100.0)
    )
    monkeypatch.setattr(claims, "outcomes", worlds_of(ours, 0.0))
    assert BY_ID[name].judge(SMALL).status is status


@pytest.mark.parametrize(
    ("kept", "late", "status"),
    [
        (0.995, 0.1, ClaimStatus.PASS),
        (0.98, 0.1, ClaimStatus.NOT_REPRODUCED),
        (0.995, 0.0, ClaimStatus.NOT_REPRODUCED),
    ],
)
def test_limits_must_be_kept_by_morak_and_broken_by_baselines(
    kept: float, late: float, status: ClaimStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "mean_tally", lambda *_: replace(one(100.0), kept_part=kept, late_part=late))
    monkeypatch.setattr(claims, "outcomes", worlds_of(100.0, 0.0))
    assert BY_ID["AC-MOR-06"].judge(SMALL).status is status
