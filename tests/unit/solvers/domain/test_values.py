"""Impossible values are refused with the field's name; transitions, objectives and streams do what their names say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from solvers.domain.arrays import Streams
from solvers.domain.budget import MonthlyBudget
from solvers.domain.change import Change, ChangeKind, Transition
from solvers.domain.device import PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.ids import ProjectName
from solvers.domain.policy import Objective
from solvers.domain.workload import Affinity, Project, Slo, SloKind
from solvers.errors import FieldError, InputError
from tests import builders

BAD: dict[str, Callable[[], object]] = {
    "latency_ms": lambda: Slo(latency_ms=0.0),
    "deadline_s": lambda: Slo(kind=SloKind.DEADLINE),
    "throughput_rps_min": lambda: Slo(latency_ms=5.0, throughput_rps_min=5.0),
    "percentile": lambda: Slo(latency_ms=5.0, percentile=101),
    "rate_rps_declared": lambda: builders.service(rate_rps_declared=-1.0),
    "replicas_min": lambda: builders.service(replicas_min=5, replicas_max=4),
    "affinity": lambda: builders.service(affinity=Affinity(avoid_services=("demo/vision",))),  # type: ignore[arg-type]
    "gpu_types_allowed": lambda: builders.service(gpu_types_allowed=("t4", "t4")),
    "budget_usd_per_h": lambda: builders.service(budget_usd_per_h=math.nan),
    "class_lambda": lambda: builders.service(class_lambda=1.0),
    "name": lambda: builders.service(name="No Spaces"),
    "share_pct_sm_max": lambda: builders.job(share_pct_sm_min=50, share_pct_sm_max=40),
    "slo": lambda: builders.task(slo=Slo(latency_ms=5.0)),
    "idle_w": lambda: builders.gpu_type("t4", idle_w=70.0),
    "power_limit_w_min": lambda: builders.gpu_type("t4", power_limit_w_min=80.0),
    "clocks_mhz_sm": lambda: builders.gpu_type("t4", clocks_mhz_sm=(900, 600)),
    "limit_w": lambda: PowerCap(scope=PowerScope.NODE, subject="a", limit_w=math.inf),
    "usd_per_h": lambda: PriceRow(kind=PriceKind.SPOT, usd_per_h=-0.1),
    "memory_mib": lambda: builders.device("a", 0, "t4", memory_mib=0),
    "quota_gpus": lambda: Project(name="demo", quota_gpus=-1.0),  # type: ignore[arg-type]
    "latency_ms_p99": lambda: replace(builders.profile().points[0], latency_ms_p99=0.5),
    "points": lambda: replace(builders.profile(), model="bert"),  # type: ignore[arg-type]
    "utilisation_max": lambda: builders.policy(utilisation_max=1.5),
    "planners": lambda: builders.policy(planners=("greedy", "greedy")),
    "interruption_over_s": lambda: builders.policy(interruption_over_s=0.5),
    "age_s": lambda: builders.demand("demo/vision", 1.0, age_s=-1.0),
}
BEYOND: dict[str, Callable[[float], object]] = {
    "limit_w": lambda most: PowerCap(scope=PowerScope.CLUSTER, subject="a", limit_w=most),
    "usd_per_month": lambda most: MonthlyBudget(name="all", usd_per_month=most),
    "quota_gpus": lambda most: Project(name=ProjectName("demo"), quota_gpus=most),
    "quota_budget_usd_per_h": lambda most: Project(name=ProjectName("demo"), quota_budget_usd_per_h=most),
    "budget_usd_per_h": lambda most: builders.service(budget_usd_per_h=most),
}


@pytest.mark.parametrize("field", sorted(BAD))
def test_an_impossible_value_is_refused(field: str) -> None:
    with pytest.raises(FieldError) as caught:
        BAD[field]()
    assert caught.value.field == field
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("field", sorted(BEYOND))
def test_an_amount_beyond_any_fleet_is_refused_and_one_that_means_no_limit_is_not(field: str) -> None:
    BEYOND[field](1e9)
    with pytest.raises(FieldError, match=f"{field} must lie between 0 and ") as caught:
        BEYOND[field](1e308)
    assert caught.value.field == field


def test_a_replica_with_several_changes_starts_once() -> None:
    kinds = (ChangeKind.SHRINK_SHARE, ChangeKind.GROW_MEMORY, ChangeKind.SET_BATCH)
    changes = tuple(Change(kind=kind, subject="demo/vision#0") for kind in kinds)
    transition = Transition(changes=(*changes, Change(kind=ChangeKind.STOP, subject="demo/vision#1")))
    assert (transition.process_starts, transition.process_stops) == (1, 1)


def test_objectives_compare_in_order_and_without_dust() -> None:
    assert Objective(unserved=1.0).key() > Objective(cost_usd_per_h=99.0).key()
    assert Objective(cost_usd_per_h=0.1 + 0.2).key() == Objective(cost_usd_per_h=0.3).key()


def test_streams_depend_on_seed_and_purpose_alone() -> None:
    def draw(seed: int, purpose: str) -> float:
        return float(Streams(seed).stream(purpose).random())

    assert draw(1, "moves") == draw(1, "moves")
    assert len({draw(1, "moves"), draw(2, "moves"), draw(1, "starts")}) == 3
