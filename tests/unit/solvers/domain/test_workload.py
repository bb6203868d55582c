"""SLO kinds need exactly their own fields; impossible services, jobs and tasks are refused; ids are project/name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from solvers.domain.ids import ServiceId
from solvers.domain.workload import Affinity, LayerCount, Slo, SloKind
from solvers.errors import FieldError
from tests import builders

FIELDS = {
    SloKind.LATENCY: ("latency_ms",),
    SloKind.TOKENS: ("first_token_ms", "inter_token_ms"),
    SloKind.DEADLINE: ("deadline_s",),
    SloKind.THROUGHPUT: ("throughput_rps_min",),
}
FOREIGN = [(kind, field) for kind in FIELDS for other in FIELDS if other is not kind for field in FIELDS[other]]

BAD: dict[str, Callable[[], object]] = {
    "model": lambda: builders.service(model="ResNet 50"),
    "rate_rps_declared": lambda: builders.service(rate_rps_declared=1e10),
    "priority": lambda: builders.service(priority=1001),
    "replicas_max": lambda: builders.service(replicas_max=0, replicas_min=0),
    "alternatives": lambda: builders.service(alternatives=("bert", "bert")),
    "accuracy_pct_min": lambda: builders.service(accuracy_pct_min=101),
    "failure_domains_min": lambda: Affinity(failure_domains_min=0),
    "avoid_services": lambda: Affinity(avoid_services=(ServiceId("a/b"), ServiceId("a/b"))),
    "iterations_total": lambda: builders.job(iterations_total=0),
    "share_pct_sm_min": lambda: builders.job(share_pct_sm_min=0),
    "value_usd_per_h": lambda: builders.job(value_usd_per_h=-1),
    "evictions_max": lambda: builders.job(evictions_max=-1),
    "inputs_total": lambda: builders.task(inputs_total=0),
    "memory_mib_weights": lambda: builders.model(memory_mib_weights=0),
    "launch_s": lambda: builders.model(launch_s=math.inf),
    "layers": lambda: builders.model(layers=(LayerCount(kind="conv", count=1), LayerCount(kind="conv", count=2))),
}


@pytest.mark.parametrize("kind", SloKind)
def test_an_slo_with_exactly_its_own_fields_stands(kind: SloKind) -> None:
    made = Slo(kind=kind, **dict.fromkeys(FIELDS[kind], 5.0))  # type: ignore[arg-type]
    assert all(getattr(made, field) == 5.0 for field in FIELDS[kind])


@pytest.mark.parametrize(("kind", "missing"), [(kind, field) for kind, fields in FIELDS.items() for field in fields])
def test_an_slo_needs_every_field_of_its_kind(kind: SloKind, missing: str) -> None:
    given = {field: 5.0 for field in FIELDS[kind] if field != missing}
    with pytest.raises(FieldError, match=f"an SLO of kind {kind.value} needs {missing}") as caught:
        Slo(kind=kind, **given)  # type: ignore[arg-type]
    assert caught.value.field == missing


@pytest.mark.parametrize(("kind", "foreign"), FOREIGN)
def test_an_slo_has_no_field_of_another_kind(kind: SloKind, foreign: str) -> None:
    with pytest.raises(FieldError, match=f"an SLO of kind {kind.value} has no {foreign}"):
        Slo(kind=kind, **dict.fromkeys((*FIELDS[kind], foreign), 5.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0.0, -1.0, 1e10, math.nan, math.inf])
@pytest.mark.parametrize("kind", SloKind)
def test_an_slo_promises_a_positive_number(kind: SloKind, number: float) -> None:
    with pytest.raises(FieldError) as caught:
        Slo(kind=kind, **dict.fromkeys(FIELDS[kind], number))  # type: ignore[arg-type]
    assert caught.value.field in FIELDS[kind]


@pytest.mark.parametrize("field", sorted(BAD))
def test_impossible_work_is_refused(field: str) -> None:
    with pytest.raises(FieldError) as caught:
        BAD[field]()
    assert caught.value.field == field


@pytest.mark.parametrize("kind", [SloKind.LATENCY, SloKind.TOKENS])
def test_nobody_waits_for_an_offline_task(kind: SloKind) -> None:
    with pytest.raises(FieldError, match="deadline or throughput"):
        builders.task(slo=Slo(kind=kind, **dict.fromkeys(FIELDS[kind], 5.0)))  # type: ignore[arg-type]


def test_bounds_may_meet() -> None:
    assert builders.service(replicas_min=4, replicas_max=4).replicas_min == 4
    assert builders.job(share_pct_sm_min=40, share_pct_sm_max=40).share_pct_sm_max == 40


def test_ids_join_project_and_name() -> None:
    assert builders.service("vision").id == "demo/vision"
    assert builders.job("train").id == "demo/train"
    assert builders.task("batch").id == "demo/batch"
