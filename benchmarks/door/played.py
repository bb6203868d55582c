"""Cycles one after the other on an exported picture: `python -m benchmarks.door.played PICTURE… [--cycles 6]`.

Each is the cycle of production with its gate and what planners kept of the one before, in this process; what it
promotes stands ready in the next picture, `--every-s` seconds later. Demand stays as it is. `--alone` takes the
policies beside the default one away, `--units` counts other work than the policy does, and `--afresh` plans with so
much work and nothing standing, at last. What jobs do not earn is told beside the cost. No process is started and no
picture read anew: what that takes `python -m benchmarks.door` measures.
"""

from __future__ import annotations

import argparse
import gzip
import time
from dataclasses import dataclass, replace
from pathlib import Path

from agents.wire import mirrored
from lab.world.ports import CountingReporter, LastRecord, StateMemory
from lab.world.targets import next_target
from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder, Ports
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.change import Target
from solvers.domain.codec import from_json
from solvers.domain.ids import CycleId, Generation
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Replica, ReplicaState, Snapshot
from solvers.planners.base import PlanRequest, Thought
from solvers.planners.registry import create, settings_of, think

DEADLINE_S = 600.0
"""So long that the work ends a plan and not the deadline."""


@dataclass(slots=True)
class Course:
    """The world that a cycle sees: one picture, one target, a clock that stands still."""

    picture: Snapshot

    def observe(self) -> Snapshot:
        """The picture as it is."""
        return self.picture

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:  # noqa: ARG002 - a port
        """Raises SupersededError where the plan was made for another target."""
        target = next_target(self.picture.target, plan, self.picture.taken_at_s)
        replicas = (mirrored(Replica, item, id=item.replica, state=ReplicaState.READY) for item in plan.assignments)
        self.picture = replace(self.picture, target=target, replicas=tuple(replicas))
        return target.generation

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        """In this process."""
        return think(create(planner, settings_of(request.snapshot.policy, planner)), request, state, CountingReporter())

    def now_s(self) -> float:
        """Of the picture."""
        return self.picture.taken_at_s

    def elapsed_ms(self) -> float:
        """For timings alone, of processor time."""
        return 1000 * time.process_time()


def ports_of(course: Course) -> Ports:
    """All ports but the reporter's are the course's, or keep what they are told."""
    return Ports(
        observer=course,
        runner=course,
        actuator=course,
        clock=course,
        journal=LastRecord(),
        reporter=CountingReporter(),
        memory=StateMemory(),
    )


def picture_of(path: Path, asked: argparse.Namespace) -> Snapshot:
    """With the policies and the work that are asked for."""
    raw = path.read_bytes()
    picture = from_json(Snapshot, gzip.decompress(raw) if path.suffix == ".gz" else raw)
    units = asked.units or picture.policy.work_units
    policy = replace(picture.policy, work_units=units, deadline_s=DEADLINE_S)
    if not asked.alone:
        return replace(picture, policy=policy)
    return replace(
        picture,
        policy=policy,
        policies=(),
        services=tuple(replace(item, policy=None) for item in picture.services),
        tasks=tuple(replace(item, policy=None) for item in picture.tasks),
        jobs=tuple(replace(item, policy=None) for item in picture.jobs),
    )


def row(name: str, ports: Ports, number: int) -> str:
    """One cycle, and a line of the table."""
    begun_s = time.process_time()
    order = CycleOrder(id=CycleId(f"cycle-{number}"), lane=Lane.ACT, seed=1, software_version="played")
    record = run_cycle(ports, order)
    cpu_s, plan, reasons = (
        time.process_time() - begun_s,
        record.plan,
        record.decision.reasons if record.decision else (),
    )
    if plan is None:
        return f"| {name} | {cpu_s:.2f} | no plan | | | | |"
    held = "promoted" if record.generation is not None else ", ".join(item.value for item in reasons)
    changes = 0 if record.transition is None else len(record.transition.changes)
    bound = "none" if plan.bound_usd_per_h is None else f"{plan.bound_usd_per_h:.3f}"
    told, way = plan.objective, "" if plan.toward is None else f" (toward {plan.toward.objective.cost_usd_per_h:.3f})"
    return (
        f"| {name} | {cpu_s:.2f} | {told.cost_usd_per_h:.3f}{way} | {told.waiting_usd_per_h:.3f} | {bound} | "
        f"{told.unserved:.0f} | {changes} changes, {held} |"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door.played", description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--every-s", type=float, default=61.0)
    parser.add_argument("--units", type=int, help="the policy's own, if left out")
    parser.add_argument("--alone", action="store_true", help="without the policies beside the default one")
    parser.add_argument("--afresh", type=int, metavar="UNITS", help="and with nothing standing, with so much work")
    asked = parser.parse_args()
    create("joint")  # loading it is no part of a cycle
    print(
        "| cycle | CPU s | $/h | jobs do not earn | bound | unserved | what came of it |\n|---|---|---|---|---|---|---|"
    )
    for path in asked.pictures:
        course, name = Course(picture_of(path, asked)), path.name.partition(".")[0]
        ports = ports_of(course)
        for number in range(asked.cycles):
            print(row(f"{name}, {number + 1}", ports, number), flush=True)
            course.picture = replace(course.picture, taken_at_s=course.picture.taken_at_s + asked.every_s)
        if asked.afresh:
            empty = replace(picture_of(path, asked), target=Target(), replicas=())
            policy = replace(empty.policy, work_units=asked.afresh)
            print(row(f"{name}, afresh", ports_of(Course(replace(empty, policy=policy))), 0), flush=True)


if __name__ == "__main__":
    main()
