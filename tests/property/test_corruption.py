"""A corrupted plan is always caught, and for the right reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.evidence import FindingCode, Severity
from solvers.domain.plan import Assignment, Plan
from solvers.planners.registry import propose
from solvers.verify.checks import is_fatal, verify
from tests import builders
from tests.property.corruptions import CORRUPTIONS, SERVICES, Corruption, base_world

WORLD = base_world()
MOVABLE = movable_workloads(WORLD, Lane.ACT)


def valid_plan() -> Plan:
    plan = propose("greedy", builders.request(WORLD, MOVABLE)).plan
    assert plan is not None
    return plan


PLAN = valid_plan()
REPLICAS = [item for item in PLAN.assignments if item.workload in SERVICES]
ONLY_TOLD = {FindingCode.ENVELOPE_UNKEPT}
"""What operators choose, and are told of: never fatal."""
CASES = [(code, corrupt) for code in FindingCode for corrupt in CORRUPTIONS.get(code, ())]


def test_the_plan_is_valid_before_it_is_corrupted() -> None:
    assert not is_fatal(verify(WORLD, PLAN, MOVABLE))
    assert {item.workload for item in REPLICAS} == set(SERVICES)


def test_every_code_has_a_corruption() -> None:
    assert set(CORRUPTIONS) == set(FindingCode) - ONLY_TOLD


@pytest.mark.parametrize(
    ("code", "corrupt"), CASES, ids=[f"{code.value}-{index}" for index, (code, _) in enumerate(CASES)]
)
@pytest.mark.parametrize("item", REPLICAS, ids=[item.replica for item in REPLICAS])
def test_a_corrupted_plan_is_caught(code: FindingCode, corrupt: Corruption, item: Assignment) -> None:
    world, plan = corrupt(WORLD, PLAN, item)
    found = {finding.code for finding in verify(world, plan, MOVABLE) if finding.severity is Severity.FATAL}
    assert code in found


@given(st.data())
@settings(max_examples=100)
def test_two_corruptions_do_not_hide_each_other(data: st.DataObject) -> None:
    world, plan = WORLD, PLAN
    for _ in range(2):
        _, corrupt = data.draw(st.sampled_from(CASES))
        item = data.draw(st.sampled_from(REPLICAS))
        standing = next((each for each in plan.assignments if each.replica == item.replica), None)
        if standing is not None:
            world, plan = corrupt(world, plan, standing)
    # One corruption may undo the other.
    assert (world, plan) == (WORLD, PLAN) or is_fatal(verify(world, plan, MOVABLE))
