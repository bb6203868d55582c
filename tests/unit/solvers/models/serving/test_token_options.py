"""Options of LLM services, and what their standing replicas are shown to do: whole GPUs of their own only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.device import Device
from solvers.domain.evidence import Reason, ReasonCode
from solvers.domain.ids import ModelName
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service
from solvers.models.options import Beliefs
from solvers.models.worth import worth_of
from solvers.problems.choice import Options
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import needs_of
from tests import builders, chats

A100 = builders.device("c", 0, "a100")
STANDING = chats.assignment("demo/chat#0", A100)


def world(service: Service | None = None, device: Device = A100, **changes: Any) -> Snapshot:
    """One device of a GPU type that is profiled for the model."""
    asked = chats.service() if service is None else service
    given = {"token_profiles": (chats.profile("a100"),), "models": (chats.model(),), **changes}
    return builders.snapshot([device], [asked], profiles=(), **given)


def options_of(picture: Snapshot) -> tuple[Options, dict[int, Reason]]:
    (need,) = needs_of(picture, builders.everything_movable(picture))
    return Beliefs.of(picture, open_fleet(picture, {}).classes).options(need)


def test_options_are_numbers_of_sequences_on_the_whole_gpu() -> None:
    options, refusals = options_of(world())
    assert refusals == {}
    assert set(options.share_pct.tolist()) == {100}
    assert options.batch.tolist()[-1] > 100
    assert (options.latency_ms <= 1500.0).all()
    assert (options.memory_mib <= 81920 - 512).all()
    assert (options.gpus == 1.0).all()
    # Nobody read the power, so all the device may draw counts.
    assert set(options.power_w.tolist()) == {350.0}


@pytest.mark.parametrize(
    ("picture", "code", "fact"),
    [
        (world(token_profiles=()), ReasonCode.NO_PROFILE, None),
        (world(token_profiles=(chats.profile("t4"),)), ReasonCode.NO_PROFILE, None),
        (world(device=builders.mig_slice("c", 1, "a100", 4)), ReasonCode.NO_PROFILE, None),
        (world(chats.service(tokens=None)), ReasonCode.NO_PROFILE, "tokens"),
        (world(chats.service(slo=chats.slo(inter_token_ms=5.0))), ReasonCode.SLO_UNREACHABLE, "inter_token_ms_best"),
        (
            world(token_profiles=(chats.profile("a100", memory_mib_weights=90_000.0),)),
            ReasonCode.NO_MEMORY_LEFT,
            "memory_mib_needed",
        ),
    ],
)
def test_why_there_are_none(picture: Snapshot, code: ReasonCode, fact: str | None) -> None:
    options, refusals = options_of(picture)
    (reason,) = refusals.values()
    assert len(options) == 0
    assert reason.code is code
    assert fact is None or fact in {item.name for item in reason.facts}


def judged(standing: Assignment, picture: Snapshot | None = None, settings: tuple[DeviceSetting, ...] = ()) -> float:
    """How much of the rate is served by a standing replica that claims all of it."""
    standing = replace(standing, capacity_rps=4.0)
    known = picture or world(policy=builders.policy(cost_basis=CostBasis.SHARE))
    found = worth_of(known, builders.everything_movable(known), (standing,), settings)
    short = found.shortages[0].rate_rps_short if found.shortages else 0.0
    assert found.objective.slo_risk in (0.0, 100.0)
    assert (found.objective.slo_risk > 0) == (short == 4.0)
    return 4.0 - short


def test_a_standing_replica_serves_what_its_sequences_can() -> None:
    few = replace(STANDING, batch=4, envelope=replace(STANDING.envelope, batch_max=4))
    assert judged(STANDING) == 4.0
    assert 0.0 < judged(few) < 2.0


@pytest.mark.parametrize(
    "broken",
    [
        replace(STANDING, share_pct_sm=90),
        replace(STANDING, memory_mib_limit=STANDING.memory_mib_limit - 64),
        replace(STANDING, model=ModelName("resnet50")),
        replace(STANDING, batch=0),
        replace(STANDING, envelope=replace(STANDING.envelope, batch_max=64)),
        replace(STANDING, envelope=replace(STANDING.envelope, clock_mhz_sm_min=1110)),
    ],
)
def test_what_is_not_as_planned_is_shown_to_serve_nothing(broken: Assignment) -> None:
    assert judged(broken) == 0.0


def test_neither_is_one_at_a_lowered_clock_or_of_an_unknown_model() -> None:
    lowered = (DeviceSetting(device=A100.id, clock_mhz_sm=1110),)
    slow = replace(STANDING, envelope=replace(STANDING.envelope, clock_mhz_sm_min=1110, clock_mhz_sm_max=1110))
    assert judged(slow, settings=lowered) == 0.0
    assert judged(STANDING, world(token_profiles=())) == 0.0
    assert judged(STANDING, world(token_profiles=(chats.profile("a100", sequences_max=16),))) == 0.0
