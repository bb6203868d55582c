"""How SLO kinds, demand and finished work are read."""

from __future__ import annotations

import math
import random

import pytest

from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName, PolicyName, WorkloadId
from solvers.domain.policy import Policy
from solvers.domain.snapshot import JobStatus, Snapshot
from solvers.domain.telemetry import DEMAND_BIN_S
from solvers.domain.workload import Service, Slo, SloKind, SloScope, WorkloadKind
from solvers.problems.needs import Need, needs_of, sized_for_rps
from tests import builders, chats


def need_of(service: Service, **changes: object) -> Need:
    picture = builders.lab([service], **changes)
    (need,) = needs_of(picture, builders.everything_movable(picture))
    return need


@pytest.mark.parametrize(
    ("slo", "limit_ms", "end_to_end", "rate_rps"),
    [
        (Slo(latency_ms=80.0), 80.0, True, 100.0),
        (Slo(latency_ms=80.0, scope=SloScope.EXECUTION), 80.0, False, 100.0),
        (Slo(kind=SloKind.DEADLINE, deadline_s=2.0), 2000.0, True, 100.0),
        (Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=250.0), None, True, 250.0),
        (Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=50.0), None, True, 100.0),
    ],
)
def test_slo_kinds(slo: Slo, limit_ms: float | None, end_to_end: bool, rate_rps: float) -> None:
    need = need_of(builders.service(slo=slo))
    assert (need.limit_ms, need.end_to_end, need.rate_rps) == (limit_ms, end_to_end, rate_rps)
    assert need.refusal is None


def test_tokens_bound_the_first_one_and_carry_what_is_known() -> None:
    service = chats.service(model=ModelName("resnet50"))
    known = (chats.profile("a100", "resnet50"), chats.profile("a100"), chats.profile("t4", "resnet50"))
    need = need_of(service, token_profiles=known)
    assert (need.limit_ms, need.end_to_end, need.percentile, need.refusal) == (1500.0, False, 95.0, None)
    assert need.tokens is not None
    assert (need.tokens.inter_token_ms, need.tokens.lengths) == (250.0, chats.LENGTHS)
    assert need.tokens.profile(ModelName("resnet50"), GpuTypeName("t4")) == known[2]
    assert need.tokens.profile(ModelName("resnet50"), GpuTypeName("l4")) is None
    assert len(need.tokens.profiles) == 2


def test_tokens_are_refused_where_nobody_said_how_long_requests_are() -> None:
    need = need_of(builders.service(slo=Slo(kind=SloKind.TOKENS, first_token_ms=500.0, inter_token_ms=50.0)))
    assert need.refusal is not None
    assert need.refusal.code is ReasonCode.NO_PROFILE
    assert need.tokens is None


def test_a_model_outside_the_catalogue_is_refused() -> None:
    need = need_of(builders.service(), models=())
    assert need.refusal is not None
    assert (need.refusal.code, need.refusal.subject) == (ReasonCode.NO_PROFILE, "resnet50")


def test_the_upper_demand_counts_with_headroom() -> None:
    demands = (builders.demand("demo/vision", 200.0, rate_rps_mean=150.0),)
    need = need_of(builders.service(), demands=demands, policy=builders.policy(demand_headroom=1.2))
    assert need.rate_rps == pytest.approx(240.0)


def test_declared_demand_stands_in_for_observed() -> None:
    need = need_of(builders.service(rate_rps_declared=70.0), policy=builders.policy(demand_headroom=1.2))
    assert need.rate_rps == pytest.approx(84.0)


def test_of_headroom_and_noise_the_larger_one_counts() -> None:
    policy = builders.policy(demand_headroom=1.2, demand_noise_sigmas=3.0)
    assert sized_for_rps(100.0, policy) == pytest.approx(120.0)
    assert sized_for_rps(2.5, policy) == pytest.approx(2.5 + 3.0 * math.sqrt(2.5 / DEMAND_BIN_S))


@pytest.mark.parametrize(("rate_rps", "most"), [(1.0, 3.1), (5.0, 1.87), (20.0, 1.47), (100.0, 1.32), (1000.0, 1.24)])
def test_what_is_sized_for_holds_the_noise_of_the_next_ten_minutes_and_no_more(rate_rps: float, most: float) -> None:
    """Sized by the busiest bin of ten minutes: what it is of the true rate, and how often the next ten exceed it."""
    policy, stream = Policy(name=PolicyName("default")), random.Random(1)
    bins = round(policy.demand_lookback_s / DEMAND_BIN_S)
    mean = rate_rps * DEMAND_BIN_S
    drawn = [[max(0.0, stream.gauss(mean, math.sqrt(mean))) / DEMAND_BIN_S for _ in range(bins)] for _ in range(1000)]
    busiest_rps = list(map(max, drawn))
    sized_rps = [sized_for_rps(busiest, policy) for busiest in busiest_rps]
    assert sum(sized_rps) / len(sized_rps) <= most * rate_rps
    assert sum(later > sized for sized, later in zip(sized_rps, busiest_rps[1:], strict=False)) <= 1


def finite(**changes: object) -> Snapshot:
    return builders.lab(jobs=(builders.job(),), tasks=(builders.task(rate_rps=40.0),), **changes)


def test_only_unfinished_movable_work_is_needed() -> None:
    picture = finite(job_statuses=(JobStatus(workload=WorkloadId("demo/train"), done=10_000),))
    assert [need.workload for need in needs_of(picture, builders.everything_movable(picture))] == ["demo/batch"]
    assert needs_of(picture, ()) == ()
    half = finite(job_statuses=(JobStatus(workload=WorkloadId("demo/train"), done=9_999),))
    assert {need.kind for need in needs_of(half, builders.everything_movable(half))} == {
        WorkloadKind.JOB,
        WorkloadKind.TASK,
    }


def test_a_task_needs_its_floor_or_its_inputs_over_its_deadline() -> None:
    deadline = builders.task("late", slo=Slo(kind=SloKind.DEADLINE, deadline_s=100.0), inputs_total=3_000)
    picture = builders.lab(tasks=(builders.task(rate_rps=40.0), deadline))
    rates = {need.workload: need.rate_rps for need in needs_of(picture, builders.everything_movable(picture))}
    assert rates == {"demo/batch": 40.0, "demo/late": 30.0}


def test_services_come_first_then_priority_then_name() -> None:
    services = [builders.service("b"), builders.service("a"), builders.service("z", priority=900)]
    picture = builders.lab(services, jobs=(builders.job(priority=1000, model=ModelName("resnet50")),))
    ordered = [need.workload for need in needs_of(picture, builders.everything_movable(picture))]
    assert ordered == ["demo/z", "demo/a", "demo/b", "demo/train"]
