"""The oracle against every plan there is, and against what the joint planner proves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import ReplicaId
from solvers.domain.plan import Assignment, Envelope, Plan, ProposalStatus
from solvers.domain.policy import Term
from solvers.domain.profile import Interference, ProfileOrigin
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import worth_of
from solvers.planners import registry
from solvers.verify.checks import is_fatal, verify
from tests import builders

BATCHES, SHARES = (1, 8), (50, 100)


def picture_of(seed: int, devices: int = 2) -> Snapshot:
    """Two services on a few GPUs of two types; of every other picture it is known how models press on each other."""
    rng = np.random.default_rng(seed)
    cards = [builders.device("a", at, str(rng.choice(["t4", "v100"]))) for at in range(devices)]
    services = [
        builders.service("vision", rate_rps_declared=float(rng.integers(20, 200))),
        builders.service("text", model="bert", rate_rps_declared=float(rng.integers(20, 200)), priority=3),
    ]
    known = None
    if seed % 2:
        known = Interference(
            pressure=float(rng.uniform(0, 1)), exponent=0.5, sensitivity=0.6, origin=ProfileOrigin.MEASURED
        )
    profiles = [
        replace(builders.profile(model, kind, batches=BATCHES, shares=SHARES), interference=known)
        for model in ("bert", "resnet50")
        for kind in sorted({card.gpu_type for card in cards})
    ]
    return builders.snapshot(cards, services, profiles=profiles)


def plan_of(name: str, picture: Snapshot) -> Plan:
    plan = registry.propose(name, builders.request(picture)).plan
    assert plan is not None
    return plan


def all_plans(picture: Snapshot, like: Plan) -> Iterator[Plan]:
    """Every way to put up to two replicas on every device, claiming what the appraisal will bear or nothing."""
    names = [(str(item.id), item.model) for item in picture.services]
    sizes = list(itertools.product(names, SHARES, BATCHES))
    halves = [size for size in sizes if size[1] == SHARES[0]]
    sets = [(), *((one,) for one in sizes), *itertools.combinations_with_replacement(halves, 2)]
    for held in itertools.product(sets, repeat=len(picture.devices)):
        items: list[Assignment] = []
        for device, replicas in zip(picture.devices, held, strict=True):
            clock = builders.gpu_type(device.gpu_type).clock_mhz_sm_max
            for (name, model), share, batch in replicas:
                point = next(
                    point
                    for profile in picture.profiles
                    if (profile.model, profile.gpu_type) == (model, device.gpu_type)
                    for point in profile.points
                    if (point.batch, point.share_pct_sm) == (batch, share)
                )
                made = builders.assignment(
                    f"{name}#{len(items)}",
                    device,
                    model=model,
                    share_pct_sm=share,
                    batch=batch,
                    memory_mib_limit=2048,
                    envelope=Envelope(batch_min=batch, batch_max=batch, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
                    power_w_planned=point.power_w,
                    latency_ms_planned=60.0,
                    capacity_rps=0.0001,
                )
                items.append(replace(made, replica=ReplicaId(f"{name}#{len(items)}")))
        yield replace(like, assignments=tuple(sorted(items, key=lambda item: item.replica)), unplaced=())


def fits(picture: Snapshot, plan: Plan) -> bool:
    """By every rule but those on what is claimed and on who is short."""
    about_claims = {"capacity_short", "slo_broken", "unplaced_missing"}
    found = verify(picture, plan, builders.everything_movable(picture))
    return all(item.code.value in about_claims for item in found if is_fatal((item,)))


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_all_is_better(seed: int) -> None:
    picture = picture_of(seed)
    movable = builders.everything_movable(picture)
    ours = plan_of("oracle", picture)
    key = ours.objective.key()[:3]
    worths = [
        (worth_of(picture, movable, plan.assignments, ours.settings).objective.key()[:3], plan)
        for plan in all_plans(picture, ours)
    ]
    better = [plan for other, plan in worths if other < key and fits(picture, plan)]
    assert not better
    # The same three numbers are among them, so the two count alike.
    assert any(other == pytest.approx(key, abs=1e-4) for other, _ in worths)
    assert len(worths) > 300


@pytest.mark.parametrize("seed", range(3))
def test_it_lies_between_what_the_joint_planner_proves_and_finds(seed: int) -> None:
    """At one clock, with watts for nothing: shares between the measured ones, which joint alone takes, save those."""
    picture = picture_of(10 + seed, devices=3)
    picture = replace(picture, policy=replace(picture.policy, energy_usd_per_kwh=0.0))
    ours, joint = plan_of("oracle", picture), plan_of("joint", picture)
    assert ours.objective.unserved == pytest.approx(joint.objective.unserved, abs=1e-3)
    assert ours.objective.cost_usd_per_h <= joint.objective.cost_usd_per_h + 1e-4
    assert joint.bound_usd_per_h is not None
    assert joint.bound_usd_per_h <= ours.objective.cost_usd_per_h + 1e-4
    for name in ("greedy", "best_single_type", "gpulet", "igniter"):
        assert plan_of(name, picture).objective.key()[:2] >= ours.objective.key()[:2]


def test_optimal_is_said_and_the_verifier_agrees() -> None:
    picture = picture_of(3, devices=3)
    proposal = registry.propose("oracle", builders.request(picture))
    assert proposal.status is ProposalStatus.OPTIMAL
    assert proposal.plan is not None
    assert not is_fatal(verify(picture, proposal.plan, builders.everything_movable(picture)))


def test_ceilings_on_replicas_are_kept() -> None:
    picture = picture_of(1, devices=4)
    services = tuple(replace(item, replicas_max=1, rate_rps_declared=900.0) for item in picture.services)
    plan = plan_of("oracle", replace(picture, services=services))
    names = [item.workload for item in plan.assignments]
    assert sorted(names) == sorted(set(names))
    assert len(plan.unplaced) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"jobs": (builders.job(),)}, "training jobs"),
        ({"policy": builders.policy(objective=(Term.COST,))}, "an objective of another order"),
    ],
)
def test_what_it_does_not_search_is_said(changes: dict[str, Any], said: str) -> None:
    proposal = registry.propose("oracle", builders.request(replace(picture_of(1), **changes)))
    assert (proposal.status, proposal.plan) == (ProposalStatus.NOT_APPLICABLE, None)
    assert proposal.reasons[0].facts[0].value == said


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"devices_max": 1}, "more than 1 devices"),
        ({"fillings_max": 3}, "too many"),
        ({"partial_plans_max": 1}, "too many"),
    ],
)
def test_what_is_too_large_is_said(limits: dict[str, int], said: str) -> None:
    request = builders.request(picture_of(1))
    proposal = registry.create("oracle", limits).propose(request, b"", SilentReporter())
    assert proposal.status is ProposalStatus.NOT_APPLICABLE
    assert said in str(proposal.reasons[0].facts[0].value)
