"""More of everything never serves less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from solvers.domain.snapshot import NodeStatus, Snapshot
from tests.property.test_greedy import plan_of
from tests.property.worlds import worlds

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.no_cover]
"""Worlds are large, and Hypothesis now and then prints one for itself. Counting the same lines over and over makes them
half as slow again; other tests cover them.
"""

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@given(worlds())
@settings(max_examples=60, phases=PHASES)
def test_a_second_fleet_of_the_same_kind_serves_no_less(world: Snapshot) -> None:
    """Greedy choices may be unlucky with one more device, but not with everything twice over and all caps lifted.

    Budgets are caps, too: with a choice of more devices greed may spread over dearer ones and then not afford the last.
    """
    twins = tuple(
        replace(
            device,
            id=f"{device.id}-twin",
            node=f"{device.node}-twin",
            mig=None if device.mig is None else replace(device.mig, parent=f"{device.mig.parent}-twin"),
        )  # type: ignore[arg-type]
        for device in world.devices
    )
    nodes = tuple(replace(node, id=f"{node.id}-twin") for node in world.nodes)  # type: ignore[arg-type]
    statuses = tuple(NodeStatus(node=node.id, age_s=1.0, generation_applied=0) for node in nodes)
    projects = tuple(replace(project, quota_gpus=None) for project in world.projects)
    services = tuple(replace(service, budget_usd_per_h=None) for service in world.services)
    free = replace(world, power_caps=(), jobs=(), tasks=(), projects=projects, services=services)
    richer = replace(
        free,
        devices=tuple(sorted((*free.devices, *twins), key=lambda item: item.id)),
        nodes=tuple(sorted((*free.nodes, *nodes), key=lambda item: item.id)),
        node_statuses=tuple(sorted((*free.node_statuses, *statuses), key=lambda item: item.node)),
    )
    assert plan_of(richer).objective.unserved <= plan_of(free).objective.unserved + 1e-6


@given(worlds())
@settings(max_examples=60, phases=PHASES)
def test_lifting_every_budget_and_quota_serves_no_less(world: Snapshot) -> None:
    single = replace(world, services=world.services[:1], jobs=(), tasks=())
    projects = tuple(replace(project, quota_gpus=None) for project in single.projects)
    services = tuple(replace(service, budget_usd_per_h=None) for service in single.services)
    lifted = replace(single, projects=projects, services=services, power_caps=())
    assert plan_of(lifted).objective.unserved <= plan_of(single).objective.unserved + 1e-6
