"""From a plan to node targets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agents.wire import NodeTarget, ReplicaTarget, WorkerTarget, decode, encode
from app.services.planning.rollout import evicted, node_targets, terms_of, worker_target
from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId, Digest, Generation, ModelName, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import Objective
from solvers.domain.snapshot import JobStatus
from solvers.domain.worker import EnvironmentVariable, WorkerCommand
from solvers.domain.workload import ServiceMode, SloScope, TrainingJob, WorkloadKind
from solvers.errors import InvariantError
from tests.unit.app.services.whatif.small_fleet import assignment, snapshot

SNAPSHOT = snapshot()


def plan_of(*assignments: Assignment, settings: tuple[DeviceSetting, ...] = ()) -> Plan:
    return Plan(
        snapshot=digest(SNAPSHOT),
        parent=Generation(6),
        planner="test",
        planner_version="1",
        seed=1,
        assignments=assignments,
        settings=settings,
        unplaced=(),
        objective=Objective(),
    )


def test_every_node_gets_every_device_and_only_its_own_replicas() -> None:
    plan = plan_of(
        assignment("vision/search", "GPU-b0"),
        assignment("vision/labels", "GPU-a0", ordinal=1),
        assignment("vision/labels", "GPU-a0"),
    )
    targets = node_targets(plan, digest(plan), SNAPSHOT, Generation(7))
    assert [target.node for target in targets] == ["a", "b", "empty"]
    held = {
        device.uuid: [replica.replica for replica in device.replicas] for target in targets for device in target.devices
    }
    assert held == {"GPU-a0": ["vision/labels#0", "vision/labels#1"], "GPU-a1": [], "GPU-b0": ["vision/search#0"]}
    assert {target.generation for target in targets} == {7}
    assert {target.plan for target in targets} == {digest(plan)}
    assert targets[2].devices == ()


def test_settings_reach_their_device_and_the_rest_keeps_defaults() -> None:
    setting = DeviceSetting(device=DeviceId("GPU-a1"), mode=DeviceMode.DEDICATED, clock_mhz_sm=585, power_limit_w=60.0)
    plan = plan_of(settings=(setting,))
    devices = node_targets(plan, digest(plan), SNAPSHOT, Generation(1))[0].devices
    assert (devices[0].mode, devices[0].clock_mhz_sm, devices[0].power_limit_w) == ("mps", None, None)
    assert (devices[1].mode, devices[1].clock_mhz_sm, devices[1].power_limit_w) == ("dedicated", 585, 60.0)


def test_replica_carries_its_workloads_terms() -> None:
    plan = plan_of(
        assignment("vision/labels", "GPU-a0"),
        assignment("vision/train", "GPU-a0", WorkloadKind.JOB),
        assignment("vision/embed", "GPU-a0", WorkloadKind.TASK),
    )
    service, training, offline = _by_workload(plan)
    assert (service.latency_ms_limit, service.launch_s, service.project) == (200.0, 0.5, "vision")
    assert not service.latency_execution_only
    assert (service.batch_min, service.batch_max, service.clock_mhz_sm_max) == (1, 8, 1590)
    assert service.iterations_total is None
    assert (training.iterations_total, training.iteration_ms_reference, training.kind) == (1000, 120.0, "job")
    assert training.gpu_type_reference == "t4"
    assert (offline.iterations_total, offline.latency_ms_limit) == (5000, None)


def test_what_nodes_were_told_of_a_workload_whose_document_waits_goes_on() -> None:
    plan = plan_of(
        assignment("vision/labels", "GPU-b0", ordinal=1), assignment("vision/train", "GPU-a0", WorkloadKind.JOB)
    )
    service, training = _told_anew(plan)
    worker = WorkerTarget(command=("serve", "v1"), environment=(), adapter="http")
    held = (
        replace(service, replica="vision/labels#0", batch=1, latency_ms_limit=150.0, launch_s=9.0, worker=worker),
        replace(training, iterations_total=10, iteration_ms_reference=7.0, gpu_type_reference="v100"),
    )
    assert _told_anew(plan, *held) == [
        replace(service, latency_ms_limit=150.0, launch_s=9.0, worker=worker),
        replace(training, iterations_total=10, iteration_ms_reference=7.0, gpu_type_reference="v100"),
    ]
    # A model that nodes were told nothing of launches as its own document says.
    other = replace(held[0], model="another")
    assert _told_anew(plan, other)[0] == replace(service, latency_ms_limit=150.0, worker=worker)


def test_what_a_plan_tells_of_documents_is_known_of_what_waits_for_people_alone() -> None:
    plan = plan_of(assignment("vision/train", "GPU-a0", WorkloadKind.JOB), assignment("vision/labels", "GPU-a0"))
    (training,) = (job for job in SNAPSHOT.jobs if job.id == "vision/train")
    asked = replace(training, mode=ServiceMode.APPROVE)

    def terms(job: TrainingJob) -> dict[str, Digest]:
        return terms_of(replace(SNAPSHOT, jobs=(job,)), plan)

    before = terms(asked)
    assert list(before) == ["vision/train"]
    assert terms(replace(asked, priority=90, memory_mib=asked.memory_mib + 1)) == before
    for changed in ({"iterations_total": 2000}, {"worker": WorkerCommand(command=("train", "v2"))}):
        assert terms(replace(asked, **changed)) != before
    assert terms(replace(asked, mode=ServiceMode.AUTO)) == {}


def _told_anew(plan: Plan, *held: ReplicaTarget) -> list[ReplicaTarget]:
    targets = node_targets(plan, digest(plan), SNAPSHOT, Generation(1), held)
    found = (replica for target in targets for device in target.devices for replica in device.replicas)
    return sorted(found, key=lambda replica: replica.kind, reverse=True)


def test_a_limit_on_execution_alone_says_so() -> None:
    services = tuple(
        replace(service, slo=replace(service.slo, scope=SloScope.EXECUTION))
        if service.id == "vision/labels"
        else service
        for service in SNAPSHOT.services
    )
    plan = plan_of(assignment("vision/labels", "GPU-a0"))
    target = node_targets(plan, digest(plan), replace(SNAPSHOT, services=services), Generation(1))[0]
    assert target.devices[0].replicas[0].latency_execution_only


def _by_workload(plan: Plan) -> list[ReplicaTarget]:
    replicas = node_targets(plan, digest(plan), SNAPSHOT, Generation(1))[0].devices[0].replicas
    order = ["vision/labels", "vision/train", "vision/embed"]
    return sorted(replicas, key=lambda replica: order.index(replica.workload))


def test_agents_can_read_what_is_written() -> None:
    plan = plan_of(assignment("vision/labels", "GPU-a0"), assignment("vision/train", "GPU-a1", WorkloadKind.JOB))
    for target in node_targets(plan, digest(plan), SNAPSHOT, Generation(1)):
        plain = json.loads(json.dumps(encode(target)))
        assert decode(NodeTarget, plain) == target


@pytest.mark.parametrize(
    "wrong",
    [
        assignment("vision/labels", "GPU-gone"),
        assignment("vision/gone", "GPU-a0"),
        assignment("vision/gone", "GPU-a0", WorkloadKind.JOB),
        assignment("vision/gone", "GPU-a0", WorkloadKind.TASK),
        replace(assignment("vision/labels", "GPU-a0"), model=ModelName("gone")),
    ],
)
def test_a_plan_about_another_world_is_our_bug(wrong: Assignment) -> None:
    plan = plan_of(wrong)
    with pytest.raises(InvariantError):
        node_targets(plan, digest(plan), SNAPSHOT, Generation(1))


def test_unfinished_jobs_that_lose_their_place_are_evicted() -> None:
    standing = (
        assignment("vision/labels", "GPU-a0"),
        assignment("vision/train", "GPU-a0", WorkloadKind.JOB),
        assignment("vision/embed", "GPU-a1", WorkloadKind.TASK),
    )
    world = replace(SNAPSHOT, target=Target(generation=Generation(6), assignments=standing))
    assert evicted(plan_of(*standing), world) == ()
    assert evicted(plan_of(), world) == ((WorkloadKind.JOB, "vision", "train"), (WorkloadKind.TASK, "vision", "embed"))
    moved = assignment("vision/train", "GPU-b0", WorkloadKind.JOB)
    finished = replace(world, job_statuses=(JobStatus(workload=WorkloadId("vision/embed"), done=5000),))
    assert evicted(plan_of(moved), finished) == ()


def test_nodes_are_told_where_secrets_are_and_older_agents_nothing_new() -> None:
    plain = EnvironmentVariable(name="BATCH", value="{batch}")
    file = EnvironmentVariable(name="API_KEY", from_file="/run/secrets/key")
    variable = EnvironmentVariable(name="HF_TOKEN", from_environment="TEAM_TOKEN")
    asked = EnvironmentVariable(name="DB_KEY", from_command="kv/vision#db")
    told = worker_target(WorkerCommand(command=("serve",), environment=(variable, plain, asked, file)))
    assert told.environment == (("BATCH", "{batch}"),)
    assert (told.from_files, told.from_environment, told.from_commands) == (
        (("API_KEY", "/run/secrets/key"),),
        (("HF_TOKEN", "TEAM_TOKEN"),),
        (("DB_KEY", "kv/vision#db"),),
    )
    assert decode(WorkerTarget, json.loads(json.dumps(encode(told)))) == told
    before = encode(worker_target(WorkerCommand(command=("serve",), environment=(plain,))))
    assert not {"from_files", "from_environment", "from_commands"} & before.keys()
