"""Batches first, a new placement only where that fails; leftover share; gpulet's places with other batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.arrays import Flags
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import ReplicaTelemetry
from solvers.domain.workload import Service
from solvers.planners import registry
from solvers.planners.draft import Draft, Score
from solvers.planners.seating import Settled
from solvers.planners.tuning import Scalar
from solvers.policies.inss import batching
from solvers.policies.inss.batching import in_passes
from solvers.policies.inss.belief import InssBelief, Member
from solvers.policies.inss.placing import KnapsackColumns
from solvers.problems.choice import Option
from solvers.problems.fleet import Places
from solvers.verify.checks import is_fatal, verify
from tests import builders

DEVICES = tuple(builders.device("a", index, "t4") for index in range(2))


def room(rate_rps: float = 20.0) -> Snapshot:
    services = [builders.service(name, rate_rps_declared=rate_rps, replicas_max=4) for name in ("one", "two")]
    return builders.snapshot(DEVICES, services)


def plan_of(picture: Snapshot, name: str = "inss", settings: dict[str, Scalar] | None = None) -> tuple[Plan, set[str]]:
    planner = registry.create(name, settings)
    proposal = planner.propose(builders.request(picture), b"", SilentReporter())
    assert proposal.plan is not None
    assert not is_fatal(verify(picture, proposal.plan, builders.everything_movable(picture)))
    return proposal.plan, {fact.name for reason in proposal.reasons for fact in reason.facts}


def standing(picture: Snapshot, plan: Plan, rate_rps: float) -> Snapshot:
    target = replace(picture.target, assignments=plan.assignments, settings=plan.settings)
    return replace(room(rate_rps), target=target)


def shares(plan: Plan) -> dict[str, tuple[str, int]]:
    return {item.replica: (item.device, item.share_pct_sm) for item in plan.assignments}


@pytest.mark.parametrize("name", ["inss", "inss_ni"])
def test_while_batches_suffice_nobody_moves(name: str) -> None:
    first, facts = plan_of(room(), name)
    assert "columns" in facts
    second, facts = plan_of(standing(room(), first, 22.0), name)
    assert "probes" in facts
    assert "columns" not in facts
    assert shares(second) == shares(first)


def test_what_batches_cannot_do_places_everybody_afresh() -> None:
    first, _ = plan_of(room(), settings={"placing": "greedy", "leftover": "reserve"})
    second, facts = plan_of(standing(room(), first, 5000.0))
    assert "columns" in facts
    assert shares(second) != shares(first)


def test_whom_the_books_refuse_is_struck_and_everything_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = plan_of(room(), settings={"leftover": "reserve"})
    (before,) = (item for item in first.assignments if item.workload.endswith("/one"))
    honest, refused = Draft.put, list[int]()

    def put(
        draft: Draft, settled: Settled, option: Option, score: Score, among: Places | None = None
    ) -> ReasonCode | None:
        at = draft.fleet.index[before.device]
        if among is not None and list(among) == [at] and settled.need.workload == before.workload:
            refused.append(at)
            return ReasonCode.NEIGHBOURS_PRESSURE
        return honest(draft, settled, option, score, among)

    monkeypatch.setattr(Draft, "put", put)
    proposal = registry.create("inss", {"leftover": "reserve"}).propose(builders.request(room()), b"", SilentReporter())
    assert proposal.plan is not None
    (after,) = (item for item in proposal.plan.assignments if item.workload == before.workload)
    (rounds,) = (fact.value for reason in proposal.reasons for fact in reason.facts if fact.name == "rounds")
    assert refused
    assert after.device != before.device
    assert rounds == 1 + len(refused)
    assert sorted(item.workload for item in proposal.plan.assignments) == sorted(i.workload for i in first.assignments)


def test_nobody_moves_for_a_placement_that_serves_no_more() -> None:
    first, _ = plan_of(room(20000.0))
    second, facts = plan_of(standing(room(20000.0), first, 20000.0))
    assert "columns" in facts
    assert shares(second) == shares(first)


def test_batches_follow_the_rate_and_need_no_new_process() -> None:
    first, _ = plan_of(room(20.0))
    second, facts = plan_of(standing(room(20.0), first, 150.0))
    assert "columns" not in facts
    assert [item.memory_mib_limit for item in second.assignments] == [
        item.memory_mib_limit for item in first.assignments
    ]
    assert {item.batch for item in second.assignments} != {item.batch for item in first.assignments}


def test_leftover_share_is_given_away_or_kept() -> None:
    spread, _ = plan_of(room(), settings={"placing": "greedy"})
    kept, _ = plan_of(room(), settings={"placing": "greedy", "leftover": "reserve"})
    assert sum(item.share_pct_sm for item in kept.assignments) < sum(item.share_pct_sm for item in spread.assignments)
    assert {item.workload for item in kept.assignments} == {item.workload for item in spread.assignments}


@pytest.mark.parametrize("leftover", ["distribute", "reserve"])
def test_who_is_short_by_what_plans_must_prove_gets_what_is_left(leftover: str) -> None:
    """One replica would serve it by InSS' own count, which keeps nothing back for waiting."""
    devices = tuple(builders.device("a", index, "t4") for index in range(4))
    service = builders.service("one", rate_rps_declared=480.0, slo=builders.slo(80.0), replicas_max=4)
    plan, facts = plan_of(builders.snapshot(devices, [service]), settings={"leftover": leftover})
    assert "columns" in facts
    assert plan.unplaced == ()
    assert len({item.device for item in plan.assignments}) == len(plan.assignments) < len(devices)


def mixed(*more: Service) -> Snapshot:
    """Two services on a T4 and an A100. By InSS' own count the T4 would serve the second, by the careful one it not."""
    devices = builders.device("a", 0, "t4"), builders.device("b", 0, "a100")
    services = [
        builders.service(name, rate_rps_declared=rate_rps, slo=builders.slo(limit_ms), replicas_max=1)
        for name, rate_rps, limit_ms in (("one", 520.0, 80.0), ("two", 480.0, 60.0))
    ]
    return builders.snapshot(devices, [*services, *more])


def test_where_it_believes_in_less_than_plans_must_prove_it_chooses_again() -> None:
    """The A100 serves both."""
    plan, _ = plan_of(mixed())
    assert plan.objective.unserved == 0.0
    assert {item.device.startswith("GPU-b") for item in plan.assignments} == {True}


def test_where_somebody_is_short_whatever_it_chooses_its_first_choice_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = mixed(builders.service("zed", rate_rps_declared=3000.0, slo=builders.slo(60.0), replicas_max=1))
    plan, _ = plan_of(picture)
    assert plan.objective.unserved > 0.0
    monkeypatch.setattr(KnapsackColumns, "scant", lambda *_: np.zeros(0, dtype=np.int64))
    first, _ = plan_of(picture)
    assert shares(plan) == shares(first)


def test_gpulets_places_stay_with_other_batches() -> None:
    plain, _ = plan_of(room(200.0), "gpulet")
    mine, facts = plan_of(room(200.0), "bda_gpulet")
    assert "timeout_ms" in facts
    assert shares(mine) == shares(plain)


def test_replicas_of_a_service_divide_its_rate() -> None:
    """On two whole GPUs each serves a half, which is more than any could serve of all of it."""
    service = builders.service("one", rate_rps_declared=1000.0, replicas_max=2, slo=builders.slo(400.0))
    stands = [
        builders.assignment(f"demo/one#{at}", device, share_pct_sm=100, batch=32, memory_mib_limit=4000)
        for at, device in enumerate(DEVICES)
    ]
    picture = builders.snapshot(DEVICES, [service], target=builders.target(stands))
    proposal = registry.create("inss").propose(builders.request(picture), b"", SilentReporter())
    sized = [reason for reason in proposal.reasons if any(fact.name == "probes" for fact in reason.facts)]
    assert [reason.code for reason in sized] == [ReasonCode.KEPT_STANDING] * 2


def test_a_placement_that_serves_no_more_is_not_made_though_nothing_speaks_for_staying() -> None:
    """Both GPUs are alike, so that the same placement with both exchanged is as good."""
    services = [builders.service(name, rate_rps_declared=20000.0, replicas_max=1) for name in ("one", "two")]
    hopeless, settings = builders.snapshot(DEVICES, services), {"stay_part": 0.0}
    first, _ = plan_of(hopeless, settings=settings)
    other = {DEVICES[0].id: DEVICES[1].id, DEVICES[1].id: DEVICES[0].id}
    turned = tuple(replace(item, device=other[item.device]) for item in first.assignments)
    setting = tuple(
        sorted((replace(item, device=other[item.device]) for item in first.settings), key=lambda i: i.device)
    )
    picture = replace(hopeless, target=replace(hopeless.target, assignments=turned, settings=setting))
    second, _ = plan_of(picture, settings=settings)
    assert {item.replica: item.device for item in second.assignments} == {item.replica: item.device for item in turned}


def test_leftover_is_divided_among_all_on_a_gpu() -> None:
    services = [builders.service(name, rate_rps_declared=20.0, slo=builders.slo(400.0)) for name in ("one", "two")]
    picture = builders.snapshot(DEVICES[:1], services)
    kept, _ = plan_of(picture, settings={"placing": "greedy", "leftover": "reserve"})
    given, _ = plan_of(picture, settings={"placing": "greedy"})
    before, after = ({item.workload: item.share_pct_sm for item in plan.assignments} for plan in (kept, given))
    assert set(before) == {"demo/one", "demo/two"}
    assert sum(before.values()) <= 80
    assert all(after[name] > before[name] for name in before)
    assert sum(after.values()) >= 90


def queued(picture: Snapshot, queue_length: float) -> Snapshot:
    """Every standing replica reports so many requests that wait."""
    readings = (
        ReplicaTelemetry(
            replica=item.replica,
            rate_rps=20.0,
            latency_ms_p50=None,
            latency_ms_p99=None,
            queue_length=queue_length,
            batch_mean=1.0,
            violation_fraction=0.0,
            age_s=1.0,
        )
        for item in sorted(picture.target.assignments, key=lambda item: item.replica)
    )
    return replace(picture, replica_telemetry=tuple(readings))


def test_a_queue_that_nothing_serves_in_time_takes_no_replica_away() -> None:
    first, _ = plan_of(room(20.0))
    stands = standing(room(20.0), first, 20.0)
    calm, _ = plan_of(stands)
    lost, facts = plan_of(queued(stands, 1e6))
    assert "columns" in facts
    assert shares(lost) == shares(calm)
    assert [item.batch for item in lost.assignments] == [item.batch for item in calm.assignments]


def test_whom_a_queue_makes_late_wherever_it_is_is_still_given_what_others_spare() -> None:
    """What waits is hopeless on every share; the placement that serves more once it is dropped counts."""
    first, _ = plan_of(room(), settings={"placing": "greedy", "leftover": "reserve"})
    crowded = standing(room(), first, 5000.0)
    calm, _ = plan_of(crowded)
    behind, facts = plan_of(queued(crowded, 1e6))
    assert "columns" in facts
    assert shares(calm) != shares(first)
    assert shares(behind) == shares(calm)


def test_what_an_earlier_one_gives_back_the_second_pass_hands_on() -> None:
    wanted, batches, passes = {"tight": 8, "loose": 2}, {"tight": 2, "loose": 8}, list[str]()

    def size_one(name: str) -> None:
        passes.append(name)
        others = sum(batch for other, batch in batches.items() if other != name)
        batches[name] = min(wanted[name], 10 - others)

    in_passes(["tight", "loose"], size_one, lambda: list(batches.values()))
    assert batches == wanted
    assert passes == ["tight", "loose"] * 2
    in_passes(["tight"], size_one, lambda: list(batches.values()))
    assert passes == ["tight", "loose"] * 2 + ["tight"]


def test_who_has_the_tighter_limit_is_sized_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = plan_of(room())
    loose = builders.service("one", rate_rps_declared=20.0, replicas_max=4, slo=builders.slo(500.0))
    stands = standing(room(), first, 20.0)
    honest, order = batching.size, list[str]()

    def size(belief: InssBelief, at: int, together: list[Member], *others: Any) -> batching.Sized:
        order.append(together[at][0].workload)
        return honest(belief, at, together, *others)

    monkeypatch.setattr(batching, "size", size)
    plan_of(replace(stands, services=(loose, stands.services[1])))
    assert order[:2] == ["demo/two", "demo/one"]


def test_who_is_late_beside_who_was_chosen_is_struck_and_all_are_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    struck = list[int]()

    def broken(listed: KnapsackColumns, chosen: Flags, _belief: InssBelief) -> list[int]:
        late = [] if struck else [int(np.flatnonzero(chosen)[0])]
        assert not chosen[struck].any()
        struck.extend(late)
        return late

    monkeypatch.setattr(KnapsackColumns, "broken", broken)
    proposal = registry.create("inss").propose(builders.request(room()), b"", SilentReporter())
    (rounds,) = (fact.value for reason in proposal.reasons for fact in reason.facts if fact.name == "rounds")
    assert rounds == 2.0
    assert len(struck) == 1
