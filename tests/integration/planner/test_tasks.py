"""Offline tasks from submission to what was learned of them, under OLTunes in a real cycle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from agents.wire import ReplicaReport
from app.services.beliefs.beliefs import Beliefs
from app.services.declared.documents import Documents
from app.services.declared.tasks import Tasks, TaskStatusLine
from app.services.declared.tokens import Deed
from app.services.planning.planning import Leader, Planning
from app.services.planning.plans import Plans
from app.services.planning.snapshots import StoreObserver
from app.store import cycles, targets
from app.store.tasks import TaskListing, TaskState
from solvers.domain.ids import ModelName, ProjectName
from solvers.domain.policy import PlannerSetting
from solvers.domain.workload import OfflineTask, Slo, SloKind
from solvers.planners import registry
from solvers.policies.oltunes.memory import OltunesMemory
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import WindowPace
from tests.integration.planner.world import CLUSTER, World, replica_report
from tests.unit.app.services.whatif.small_fleet import POLICY, service

pytestmark = pytest.mark.integration

STRICT = PlannerSetting(planner="oltunes", name="affinity_strict", value=True)


@pytest.fixture
def tasks(world: World) -> Tasks:
    """A fleet of three GPUs with one service, whose policy plans by OLTunes; high variants share with nobody."""
    world.build(service("labels"))
    world.declare(replace(POLICY, planners=("oltunes", "greedy"), planner_settings=(STRICT,)))
    return Tasks(world.database, CLUSTER, Documents(world.database, CLUSTER, Beliefs(world.database)))


def submit(tasks: Tasks, name: str, **changes: Any) -> None:
    made = OfflineTask(
        project=ProjectName("vision"),
        name=name,
        model=ModelName("resnet50"),
        inputs_total=1_000,
        slo=Slo(kind=SloKind.DEADLINE, deadline_s=900.0),
    )
    tasks.submit(replace(made, **changes), Deed(actor="test"))


def plan(world: World, planning: Planning) -> None:
    with world.database.transaction() as session:
        lease = targets.acquire_lease(session, targets.PLANNER, "planner-1", 60.0)
    assert lease is not None
    planning.run_lanes(Leader(holder="planner-1", fencing=lease.token))


def statuses(tasks: Tasks) -> dict[str, TaskStatusLine]:
    return {item.name: item for item in tasks.page(TaskListing(limit=100), None).items}


def work(world: World, status: TaskStatusLine, done: int, batches: int) -> None:
    """Its replica reports a second of work."""
    assert status.group is not None
    made: ReplicaReport = replace(
        replica_report(f"{status.id}#0", status.group.device),
        kind="task",
        batch=status.group.batch,
        share_pct_sm=status.group.share_pct_sm,
        iterations_done=done,
        executions=float(batches),
        execution_ms_mean=50.0,
    )
    world.report("a" if status.group.device.startswith("GPU-a") else "b", made)


def memory(world: World) -> OltunesMemory:
    spec = registry.create("oltunes").spec
    with world.database.reading() as session:
        stored = cycles.newest_state(session, spec.name, spec.version)
    assert stored is not None
    return OltunesMemory.of(stored.state, "fm_ftrl", WindowPace.first(OltunesParameters()))


def test_tasks_are_grouped_told_of_done_and_learned_from(world: World, planning: Planning, tasks: Tasks) -> None:
    for name, priority in (("one", 50), ("two", 50), ("three", 50)):
        submit(tasks, name, priority=priority)
    submit(tasks, "urgent", class_lambda=0.8)
    plan(world, planning)
    found = statuses(tasks)
    running = [item for item in found.values() if item.state is TaskState.RUNNING]
    waiting = sorted((item for item in found.values() if item.state is TaskState.WAITING), key=lambda item: item.name)
    assert found["urgent"] in running
    assert {len(item.group.tasks) for item in running if item.group is not None} == {1}
    assert len(running) == 2
    assert {item.queue_position for item in waiting} == {1, 2}
    assert all("waits in line" in " ".join(item.why) for item in waiting)
    (chosen,) = (
        Plans(world.database, CLUSTER, StoreObserver(world.database, CLUSTER))
        .explain(_standing(world), None, "vision/urgent")
        .assignments
    )
    assert "score" in chosen.why[0].sentence
    assert "epc score" in chosen.why[0].sentence
    assert any("was looked at and rejected" in each.sentence for each in chosen.alternatives)

    work(world, found["urgent"], 300, 10)
    plan(world, planning)
    work(world, found["urgent"], 300, 10)
    plan(world, planning)
    work(world, found["urgent"], 500, 16)
    assert statuses(tasks)["urgent"].state is TaskState.DONE
    plan(world, planning)
    assert memory(world).lessons.lessons == 1
    after = statuses(tasks)
    assert sum(item.state is TaskState.RUNNING for item in after.values()) == 2
    with world.database.reading() as session:
        row = session.execute(text("SELECT * FROM task_outcomes WHERE name = 'urgent'")).one()
    assert (row.state, row.planner, row.deadline_kept) == ("done", "oltunes", True)
    assert row.task_group == ["vision/urgent"]
    assert row.latency_ms_measured == 50.0


def _standing(world: World) -> str:
    (found,) = world.column("SELECT plan_id FROM cluster_state")
    return str(found)
