"""Whatever is made easier, the answer is not worse: the plan before competes with what planners find after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.services.whatif.changes import Changes, NodesAdded, apply_changes
from app.services.whatif.made import Wish, planned, planned_beside
from app.services.whatif.outcome import outcome_of
from solvers.cycle.attempts import Asking
from solvers.cycle.record import Lane
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Proposal
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import unlike_older
from solvers.errors import EngineError
from solvers.planners.base import PlanRequest
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests.property.worlds import TYPES, worlds, worlds_with_target

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
EXAMPLES = settings(max_examples=25, phases=PHASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WISH = Wish(lane=Lane.SHADOW, planner="greedy", work_units=100)
LOOSER = 1.7
DUST = 1e-6
Easier = Callable[[Snapshot], Snapshot]


def more_gpus(picture: Snapshot) -> Snapshot:
    """And as much more power as they draw when nothing runs on them: else caps may forbid what ran before."""
    idle_w = 3 * picture.gpu_types[-1].idle_w
    caps = tuple(replace(cap, limit_w=cap.limit_w + idle_w) for cap in picture.power_caps)
    picture = replace(picture, power_caps=caps)
    wish = NodesAdded(gpu_type=picture.gpu_types[-1].name, gpus=3, gpus_per_node=2)
    return apply_changes(picture, Changes(nodes_added=(wish,)))


def longer_promises(picture: Snapshot) -> Snapshot:
    """Of those that may be put like that."""

    def eased(limit: float | None) -> float | None:
        return None if limit is None else LOOSER * limit

    services = tuple(
        replace(
            item,
            slo=replace(
                item.slo,
                latency_ms=eased(item.slo.latency_ms),
                deadline_s=eased(item.slo.deadline_s),
                first_token_ms=eased(item.slo.first_token_ms),
                inter_token_ms=eased(item.slo.inter_token_ms),
            ),
        )
        for item in picture.services
        if not any(unlike_older(item))
    )
    return apply_changes(picture, Changes(services=services))


def smaller_rates(picture: Snapshot) -> Snapshot:
    return apply_changes(picture, Changes(rate_factor=0.6))


def no_limits(picture: Snapshot) -> Snapshot:
    services = tuple(replace(item, budget_usd_per_h=None) for item in picture.services)
    projects = tuple(replace(item, quota_gpus=None) for item in picture.projects)
    return replace(picture, services=services, projects=projects, power_caps=())


EASIER = st.sampled_from((more_gpus, longer_promises, smaller_rates, no_limits))


def lazy(planner: str, request: PlanRequest) -> Proposal:
    """A planner that has hardly any time the second time it is asked: it leaves everybody out."""
    nobody = replace(request, snapshot=replace(request.snapshot, services=(), tasks=(), jobs=()), movable=())
    return propose(planner, nobody)


def broken(planner: str, request: PlanRequest) -> Proposal:
    raise EngineError(f"{planner} ended {len(request.movable)} workloads too early")


def asking(ask: Callable[[str, PlanRequest], Proposal]) -> Asking:
    return Asking(propose=ask, verify=verify, reporter=SilentReporter())


def key(objective: Objective, picture: Snapshot) -> tuple[float, ...]:
    """Unserved, risk and cost: what is before changes and balance in these pictures."""
    return objective.key(picture.policy.terms[:3])


@given(st.one_of(worlds(), worlds_with_target()), EASIER, st.sampled_from((propose, broken, lazy)))
@EXAMPLES
def test_what_is_easier_is_not_worse(
    world: Snapshot, easier: Easier, then: Callable[[str, PlanRequest], Proposal]
) -> None:
    before = planned(world, WISH, asking(propose))
    if not before.chosen.sound:
        return
    after = planned_beside(before.plan, easier(world), WISH, asking(then))
    assert after.chosen.sound
    now, was = key(after.plan.objective, world), key(before.plan.objective, world)
    assert now <= tuple(number + DUST * max(1.0, abs(number)) for number in was)
    told = outcome_of(after)
    assert told.as_before or then is propose or (then is broken and told.stood_in)
    assert told.attempts[0].planner == "greedy"
    assert set(TYPES) >= {str(item.gpu_type) for item in told.gpus}
