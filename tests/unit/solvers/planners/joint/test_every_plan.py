"""Plans of small pictures against every plan there is, put up replica by replica and read by the verifier."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.ids import ReplicaId
from solvers.domain.plan import Assignment, Envelope, Plan
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


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_no_plan_of_all_is_better_and_that_is_proven(seed: int) -> None:
    picture = picture_of(seed)
    movable = builders.everything_movable(picture)
    found = registry.propose("joint", builders.request(picture)).plan
    assert found is not None
    worths = [
        (worth_of(picture, movable, plan.assignments, found.settings).objective.key()[:3], number, plan)
        for number, plan in enumerate(all_plans(picture, found))
    ]
    assert len(worths) > 300
    best = next(key for key, _, plan in sorted(worths, key=lambda each: each[:2]) if fits(picture, plan))
    assert found.objective.key()[:3] == pytest.approx(best, abs=1e-4)
    assert found.bound_usd_per_h == pytest.approx(best[2], abs=1e-4)
