"""Peers' problems that go the whole way: snapshot, planner, verifier."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.instances.igniter import igniter_snapshot
from benchmarks.instances.openb import FOLDER, asked_share_pct, openb_snapshot
from benchmarks.instances.parvagpu import Files, parvagpu_snapshot
from benchmarks.peers.record import Record, timed
from benchmarks.sources.rows import table
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.registry import create
from solvers.verify.checks import verify

FGD_RESULTS = ("fgd-openb-results", "allocation.csv")
FGD_POLICY = "06-FGD"
PARVAGPU_GPUS = {1: 2.0, 2: 3.0, 3: 5.0, 4: 7.0}
A100S = 20
SECONDS = 20.0
ENOUGH_S = 1.0


def igniter_records(data: Path) -> Iterator[Record]:
    """Three services, up to three V100s."""
    snapshot = igniter_snapshot(data)
    plan, seconds = timed(lambda: planned(snapshot, ENOUGH_S))
    yield Record(
        case="iGniter's example, 3 services on V100s",
        unit="GPUs",
        peer=1.0,
        same_inputs=True,
        yardstick=None,
        yardstick_is="",
        ours=float(len({item.device for item in plan.assignments})),
        bound=1.0,
        unserved=len(plan.unplaced),
        seconds=seconds,
        note=complaints(snapshot, plan),
    )


def parvagpu_records(data: Path, numbers: tuple[int, ...], files: Files | None = None) -> Iterator[Record]:
    """Its scenarios on whole A100s under MPS; its own answers are in MIG instances."""
    for number in numbers:
        snapshot = parvagpu_snapshot(data, number, A100S, files)
        plan, seconds = timed(partial(planned, snapshot, ENOUGH_S))
        yield Record(
            case=f"ParvaGPU S{number}, {len(snapshot.services)} services, under MPS",
            unit="GPUs",
            peer=PARVAGPU_GPUS.get(number) if files is None else None,
            same_inputs=True,
            yardstick=None,
            yardstick_is="",
            ours=float(len({item.device for item in plan.assignments})),
            bound=None,
            unserved=len(plan.unplaced),
            seconds=seconds,
            note=complaints(snapshot, plan),
        )


def openb_records(data: Path) -> Iterator[Record]:
    """All pods of the default list at once; how much of all GPUs is allocated."""
    rows = [
        row
        for row in table(data, *FGD_RESULTS)
        if row["policy"] == FGD_POLICY and row["workload"] == "openb_pod_list_default"
    ]
    published = [float(row["alloc_pct_at_100"]) for row in rows]
    snapshot = openb_snapshot(data)
    plan, seconds = timed(lambda: planned(snapshot, SECONDS))
    asked = sum(1 for row in table(data, FOLDER, "openb_pod_list_default.csv") if int(row["num_gpu"]))
    yield Record(
        case=f"openb, {len(snapshot.devices):,} GPUs, {asked:,} pods at once, percent of all GPUs given out",
        unit="% (more is better)",
        peer=sum(published) / len(published) if published else None,
        same_inputs=False,
        yardstick=None,
        yardstick_is="",
        # What was asked for counts, not what a replica may be given beyond it.
        ours=sum(asked_share_pct(item.model) for item in plan.assignments) / len(snapshot.devices),
        bound=None,
        unserved=len(plan.unplaced),
        seconds=seconds,
        note=complaints(snapshot, plan) + "; FGD places arrivals one by one and minds CPUs and host memory",
    )


def everything(snapshot: Snapshot) -> tuple[WorkloadId, ...]:
    """All workloads may move."""
    return tuple(WorkloadId(service.id) for service in snapshot.services)


def planned(snapshot: Snapshot, deadline_s: float, planner: str = "joint") -> Plan:
    """A plan from nothing."""
    request = PlanRequest(snapshot=snapshot, movable=everything(snapshot), budget=Budget(deadline_s=deadline_s), seed=1)
    chosen = create(planner)
    proposal = chosen.propose(request, chosen.first_state(), SilentReporter())
    if proposal.plan is None:
        raise RuntimeError(f"{planner} has no plan for {snapshot.cluster}: {proposal.status}")
    return proposal.plan


def complaints(snapshot: Snapshot, plan: Plan) -> str:
    """What the verifier found, in one line."""
    found = sorted({item.code for item in verify(snapshot, plan)})
    return "verified" if not found else "verifier: " + ", ".join(found)
