"""A part of a picture: every field has a rule, and what is cut off is what belongs to others."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated

import pytest

from solvers.domain.change import Target
from solvers.domain.ids import DeviceId, JobId, NodeId, ServiceId, WorkloadId
from solvers.domain.part import Along, Cut, FieldRule, rules
from solvers.domain.snapshot import JobStatus, Snapshot
from solvers.domain.value import value
from tests import builders


@value
class Ruled:
    """Has a rule for one of its fields only."""

    first: Annotated[int, FieldRule.WHOLE] = 0
    second: int = 0


@pytest.mark.parametrize("kind", [Snapshot, Target])
def test_no_field_of_a_picture_is_forgotten(kind: type) -> None:
    found = rules(kind)
    assert list(found) == [field.name for field in fields(kind)]
    said = {name for name, rule in found.items() if rule is FieldRule.SAID}
    assert said <= {field.name for field in fields(Cut)}


def test_a_field_without_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Ruled\.second has 0 rules"):
        rules(Ruled)


def test_what_follows_a_rule_has_what_it_is_told_by() -> None:
    samples = {field.name: getattr(whole(), field.name) for field in fields(Snapshot)}
    for name, rule in rules(Snapshot).items():
        if isinstance(rule, Along) and samples[name]:
            assert isinstance(getattr(samples[name][0], rule.attribute), str)


def whole() -> Snapshot:
    picture = builders.snapshot(
        (builders.device("a", 0, "a100"), builders.device("b", 0, "v100")),
        services=(builders.service("near"), builders.service("far")),
        jobs=(builders.job(),),
        demands=(builders.demand("demo/far", 3.0), builders.demand("demo/near", 6.0)),
    )
    statuses = (JobStatus(workload=WorkloadId(picture.jobs[0].id), done=3),)
    return replace(picture, job_statuses=statuses)


def test_a_part_has_its_own_and_nothing_else() -> None:
    picture = whole()
    mine = frozenset({DeviceId("GPU-a-0")})
    cut = Cut(
        devices=mine,
        workloads=frozenset({"demo/near"}),
        assignments=(),
        policy=picture.policy,
        projects=picture.projects,
        power_caps=(),
        offers=(),
    )
    part = picture.part(cut)
    assert {item.id for item in part.devices} == mine
    assert {item.id for item in part.nodes} == {NodeId("a")} == {item.node for item in part.node_statuses}
    assert {item.id for item in part.services} == {ServiceId("demo/near")} == {item.service for item in part.demands}
    assert part.jobs == part.job_statuses == ()
    assert {item.gpu_type for item in part.profiles} == {part.devices[0].gpu_type}
    assert (part.models, part.gpu_types, part.cluster) == (picture.models, picture.gpu_types, picture.cluster)
    # All of it is a part, too, and that is the picture itself.
    works = frozenset(str(item.id) for item in (*picture.services, *picture.jobs))
    every = replace(cut, devices=frozenset(item.id for item in picture.devices), workloads=works)
    assert picture.part(every) == picture


def test_a_job_keeps_its_progress() -> None:
    picture = whole()
    job = JobId(picture.jobs[0].id)
    cut = Cut(
        devices=frozenset(), workloads=frozenset({job}), assignments=(), policy=picture.policy, projects=(),
        power_caps=(), offers=(),
    )  # fmt: skip
    assert [item.done for item in picture.part(cut).job_statuses] == [3]
