"""The hand-over to another share, on simulated nodes.

Owns random changes of a replica's share and memory on the fleet of InSS' scenario, and what is watched meanwhile. It
refuses to look into real agents.
"""

from __future__ import annotations

import numpy as np

from app.demo.examples import examples_path
from lab.arena.loading import load
from lab.claims.base import ClaimEvidence, Effort, found
from solvers.domain.change import Target
from solvers.domain.ids import Generation, ReplicaId, ServiceId, WorkloadId
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import WorkloadKind
from solvers.sim.world.nodes import WorldNodes
from solvers.sim.world.state import State, TargetByDevice
from solvers.sim.world.world import World, state_of

LAUNCH_S, WATCHED_S, STEP_S = 5.0, 40.0, 0.5
QUEUED = 7.0


def judge_04(effort: Effort) -> ClaimEvidence:
    """Random changes, watched in steps until they are done."""
    bench = load(examples_path() / "scenarios" / "inss-small.yaml", effort.data)
    if not isinstance(bench, World):
        return found("nothing", ["the scenario is no world"])
    drawn, wrong, shadows, gaps = np.random.default_rng(5), list[str](), 0, 0
    for number in range(effort.examples):
        state = state_of(bench.scenario, bench.scenario.policy)
        nodes = WorldNodes(
            state=state,
            launch_s=lambda _model, _cell: LAUNCH_S,
            memory_mib=lambda _model, _batch: 500.0,
            queue_of=lambda process: process.queue,
            on_change=lambda _cell: None,
        )
        before, after = (_replica(bench, drawn) for _ in range(2))
        if before.share_pct_sm == after.share_pct_sm:
            continue
        cell = state.cells[before.device]
        both = before.memory_mib_limit + after.memory_mib_limit <= cell.device.memory_mib
        both = both and before.share_pct_sm + after.share_pct_sm <= 100
        shadows, gaps = shadows + both, gaps + (not both)
        _tell(state, nodes, before, instantly=True)
        (old,) = cell.processes
        old.queue = QUEUED
        _tell(state, nodes, after, instantly=False)
        said = _watched(state, both)
        wrong += [f"change {number}: {said}"] if said else []
    if not shadows or not gaps:
        wrong.append("too few changes of either kind")
    return found(f"{shadows} changes with a shadow, {gaps} without room for one, {len(wrong)} wrong", wrong)


def _watched(state: State, both: bool) -> str:
    """What went wrong until everything was done; empty: nothing."""
    (cell,) = (each for each in state.cells.values() if each.processes)
    old, lane = cell.processes[0], state.lanes[ServiceId(cell.processes[0].item.workload)]
    kernel, end_s = state.kernel, state.now_s + WATCHED_S
    while kernel.now_s < end_s:
        held = sum(each.item.memory_mib_limit for each in cell.processes)
        serving = [each for each in cell.processes if each.state is ReplicaState.READY]
        if held > cell.device.memory_mib:
            return f"{held} MiB are held"
        if abs(sum(each.queue for each in cell.processes) + lane.waiting - QUEUED) > 1e-9:
            return "a task is lost"
        if both and not serving:
            return "the old process goes before the new one serves"
        until_s = min(end_s, kernel.now_s + STEP_S)
        while kernel.now_s < until_s:
            kernel.move(min(until_s, kernel.next_s()))
            kernel.happen()
    done = [each for each in cell.processes if each.state is ReplicaState.READY]
    return "" if len(cell.processes) == len(done) == 1 and done[0] is not old else "the change is never done"


def _tell(state: State, nodes: WorldNodes, item: Assignment, *, instantly: bool) -> None:
    state.wish = TargetByDevice.of(Target(generation=Generation(state.target.generation + 1), assignments=(item,)))
    for host in state.hosts.values():
        nodes.hear(host, state.wish, instantly=instantly)
    state.kernel.happen()


def _replica(bench: World, drawn: np.random.Generator) -> Assignment:
    """The first service's, on the first device, with a share and memory of chance."""
    device = min(bench.scenario.fleet.devices, key=lambda each: each.id)
    service = bench.scenario.services[0]
    clock = 1000
    return Assignment(
        replica=ReplicaId(f"{service.id}#0"),
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId(service.id),
        model=service.model,
        device=device.id,
        share_pct_sm=int(drawn.integers(1, 16)) * 6,
        memory_mib_limit=int(drawn.integers(1000, device.memory_mib - 1000)),
        batch=4,
        envelope=Envelope(batch_min=4, batch_max=4, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
        latency_ms_planned=20.0,
        capacity_rps=100.0,
        power_w_planned=10.0,
    )
