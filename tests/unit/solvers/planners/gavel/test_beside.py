"""Packed training beside what is planned jointly."""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners import registry
from solvers.planners.gavel.beside import Both, with_loose_jobs
from solvers.planners.gavel.remembering import Memory, Place, Speed
from solvers.planners.memory import kept
from solvers.verify.checks import verify
from tests import builders

BESIDE = Place(kind="v100", beside="resnet50")
GAINS = Memory(speeds=(Speed(model=ModelName("resnet50"), place=BESIDE, part=0.8),))


def picture() -> Snapshot:
    """A service and three jobs worth a device of their own, for two GPUs."""
    devices = (builders.device("b", 0, "v100"), builders.device("b", 1, "v100"))
    jobs = tuple(
        builders.job(f"train-{number}", value_usd_per_h=5.0, share_pct_sm_min=50, memory_mib=9000)
        for number in range(3)
    )
    service = builders.service("vision", affinity=builders.DEDICATED)
    return builders.snapshot(devices, (service,), jobs=jobs, nodes=(builders.node("b"),))


def plan_of(name: str, state: bytes) -> Plan:
    plan = registry.create(name).propose(builders.request(picture()), state, SilentReporter()).plan
    assert plan is not None
    return plan


def test_jobs_are_packed_and_services_are_the_joint_planners() -> None:
    joint, packed = plan_of("joint", b""), plan_of("joint_packed", kept(Both(jobs=GAINS)))

    def of(plan: Plan, kind: WorkloadKind) -> list[tuple[str, str, int]]:
        return [(item.replica, item.device, item.share_pct_sm) for item in plan.assignments if item.kind is kind]

    assert of(packed, WorkloadKind.SERVICE) == of(joint, WorkloadKind.SERVICE)
    assert len(of(packed, WorkloadKind.JOB)) == 2
    assert len(of(joint, WorkloadKind.JOB)) <= 2
    asked = builders.request(picture())
    assert not [finding for finding in verify(picture(), packed, asked.movable) if finding.severity.value == "fatal"]


def test_only_jobs_apart_from_services_are_dealt_anew() -> None:
    plan = plan_of("joint", b"")
    loose = with_loose_jobs(builders.request(picture()), plan)
    assert set(loose.movable) == {WorkloadId(job.id) for job in picture().jobs}
    pinned = with_loose_jobs(replace(builders.request(picture()), movable=(WorkloadId("demo/vision"),)), plan)
    assert not pinned.movable
