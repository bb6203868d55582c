"""Training jobs and offline tasks of a simulated world: what they get done in a stretch, and that they end.

Owns progress. A job goes on by its iterations under the settled state, a task by full batches; whoever is done ends its
processes at the end of the stretch, and is done at the moment within it at which its amount was reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from solvers.domain.ids import JobId
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import WorkloadKind
from solvers.sim.outcome import JobOutcome
from solvers.sim.truth.device import iterations_done
from solvers.sim.world.loads import Load, WorldLoads
from solvers.sim.world.memory import swapped_mib
from solvers.sim.world.nodes import WorldNodes
from solvers.sim.world.requests import Span
from solvers.sim.world.state import Process, State, Work


@dataclass(frozen=True, slots=True)
class StretchProgress:
    """Of a stretch: iterations of training, and memory that went between devices and hosts."""

    iterations: float = 0.0
    swapped_mib: float = 0.0


def progress_works(state: State, nodes: WorldNodes, loads: WorldLoads, span: Span) -> StretchProgress:
    """Let all works go on."""
    if not state.works:
        return StretchProgress()
    gains: dict[int, float] = {}
    working: list[Process] = []
    for load in loads.by_key.values():
        if any(seat.kind is not WorkloadKind.SERVICE for seat in load.seats):
            _gains(load, span.seconds, gains, working)
    iterations, swapped = 0.0, nodes.memory.taken()
    for process in working:
        work = state.works[process.item.workload]
        if work.ended_s is not None or process.state is not ReplicaState.READY:
            continue
        left, gain = work.total - work.done, gains[process.serial]
        if process.pause_s > 0.0:
            paused_s = min(process.pause_s, span.seconds)
            process.pause_s -= paused_s
            gain *= 1.0 - paused_s / span.seconds
        part = min(1.0, left / gain) if gain > 0.0 else 1.0
        work.done += gain * part
        swapped += 2.0 * gain * part * swapped_mib(work.item, process.item.memory_mib_limit)
        iterations += gain * part if work.kind is WorkloadKind.JOB else 0.0
        if gain >= left:
            work.done = work.total
            work.ended_s = span.from_s + part * span.seconds
    for process in working:
        if state.works[process.item.workload].ended_s is not None and process.state is not ReplicaState.FAILED:
            nodes.end(process)
    return StretchProgress(iterations, swapped)


def _gains(load: Load, seconds: float, gains: dict[int, float], working: list[Process]) -> None:
    """What every process that works on a job or task gets done."""
    state, tenants = load.state, len(load.base.tenants)
    if state is None:
        return
    iterations = iterations_done(state, seconds)
    for cell in load.cells.values():
        for place, process in enumerate(cell.actors):
            if process.item.kind is WorkloadKind.JOB:
                gains[process.serial] = iterations[place - tenants]
            elif process.item.kind is WorkloadKind.TASK:
                table = state.exec_ms[place]
                gains[process.serial] = 1000.0 * seconds / table[-1] * len(table)
            else:
                continue
            working.append(process)


def job_outcome(work: Work) -> JobOutcome:
    """What became of it."""
    return JobOutcome(
        job=JobId(work.id),
        waited_s=None if work.begun_s is None else work.begun_s - work.at_s,
        took_s=None if work.ended_s is None else work.ended_s - work.at_s,
        done_part=min(1.0, work.done / work.total),
        evictions=work.evictions,
    )
