"""What InSS states where no run is needed: printed errors, worked examples, rules of batches, shares and hand-overs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lab.claims.claim import ClaimEvidence, Effort, found, world_of
from lab.world.nodes import WorldNodes
from lab.world.state import State, TargetByDevice
from lab.world.world import World, state_of
from solvers.domain.change import Target
from solvers.domain.ids import Generation, ReplicaId, ServiceId, WorkloadId
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import WorkloadKind
from solvers.engines.base import Limits, create
from solvers.policies.inss.actor import project
from solvers.policies.inss.batching import BatchQuestion, bisect_batch
from solvers.policies.inss.belief import task_latency_ms
from solvers.policies.inss.placing import exact
from solvers.problems.knapsack import Knapsack

POINTS = 0.02
Row = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""Observed and predicted ms, printed error in percent."""
ROWS: Mapping[str, Row] = {
    "R": ((8.690, 23.285, 43.422, 71.456), (8.905, 23.888, 43.405, 71.396), (2.474, 2.588, 0.041, 0.084)),
    "A & R": ((2.848, 5.674, 8.898, 10.191), (2.894, 5.750, 8.975, 10.487), (1.620, 1.327, 0.868, 2.909)),
    "V & A & R": ((18.196, 62.009, 120.382, 176.308), (18.207, 59.984, 117.064, 170.879), (0.060, 3.265, 2.756, 3.080)),
    "M": ((13.686, 4.241, 3.468, 3.409), (13.185, 4.101, 3.461, 3.395), (3.659, 3.316, 0.214, 0.413)),
    "R1 & M": ((43.016, 11.446, 7.422, 5.483), (41.909, 11.586, 7.136, 5.433), (2.574, 1.228, 3.861, 0.910)),
    "V1 & R1 & M": ((358.270, 91.690, 53.947, 39.411), (355.554, 90.465, 53.071, 38.279), (0.758, 1.336, 1.624, 2.870)),
    "E & M1": ((15.515, 16.170, 16.958, 17.516), (16.108, 16.416, 16.725, 17.114), (3.818, 1.522, 1.372, 2.294)),
}
QUEUES = ((4, 6.0, 400.0, 30.0), (4, 15.0, 400.0, 35.0), (1, 6.0, 100.0, 90.0), (8, 6.0, 400.0, 26.0))
"""W, what runs still needs, rate, latency; batches of 8 that take 20 ms."""
TOY_BEST_RPS = 1150.0


def printed_errors(_effort: Effort) -> ClaimEvidence:
    errors = {
        f"{name} {at}": (100 * abs(believed - seen) / seen, printed)
        for name, row in ROWS.items()
        for at, (seen, believed, printed) in enumerate(zip(*row, strict=True))
    }
    wrong = [
        f"{name}: {told:.3f} for {printed}" for name, (told, printed) in errors.items() if abs(told - printed) > POINTS
    ]
    highest = max(told for told, _ in errors.values())
    wrong += [] if abs(highest - 3.853) < 0.001 else [f"maximum {highest:.3f}"]
    return found(f"{len(errors)} errors, highest {highest:.3f} %", wrong)


def worked_examples(_effort: Effort) -> ClaimEvidence:
    """Eq. 2, traces, and the knapsack toy by every integer engine."""
    wrong = [
        f"W {queue}: {told:g} instead of {wanted:g} ms"
        for queue, running, rate, wanted in (*QUEUES, (20, 6.0, 400.0, 66.0))
        if abs((told := task_latency_ms(8, queue, running, rate, 20.0)) - wanted) > 1e-9
    ]
    traces = {
        "always": (question(lambda _batch: 10.0), 32),
        "never": (question(lambda _batch: 1000.0), None),
        "to 28, from 20": (question(lambda batch: 10.0 if batch <= 28 else 1000.0, rate_rps=2000.0), 28),
        "to 10, from 20": (question(lambda batch: 10.0 if batch <= 10 else 1000.0, rate_rps=2000.0), None),
    }
    answers = {name: bisect_batch(asked) for name, (asked, _) in traces.items()}
    wrong += [f"{name}: {answers[name].batch}" for name, (_, batch) in traces.items() if answers[name].batch != batch]
    probes = max(len(answer.probes) for answer in answers.values())
    wrong += [f"{probes} probes"] if probes > 6 else []
    problem = toy()
    for engine in ("cbc", "cp-sat", "highs"):
        chosen = exact(problem, np.ones(len(problem), dtype=np.bool_), create(engine), Limits())
        capacity = None if chosen is None else problem.capacity_rps(chosen)
        wrong += [] if capacity == TOY_BEST_RPS else [f"knapsack by {engine}: {capacity}"]
    return found(f"5 latencies, {len(traces)} traces of at most {probes} probes, the knapsack toy by 3 engines", wrong)


def scan_batches(question: BatchQuestion) -> int | None:
    """Try every size and take the one with the highest throughput, the smaller of two."""
    sizes = range(question.batch_min, question.batch_max + 1)
    able = [size for size in sizes if question.holds(size) and question.throughput_rps(size) >= question.rate_rps]
    return max(able, key=lambda size: (question.throughput_rps(size), -size), default=None)


def question(latency_ms: Callable[[int], float], rate_rps: float = 0.0) -> BatchQuestion:
    """A replica whose batches take 10 ms, with a limit of 100."""
    return BatchQuestion(
        execution_ms=lambda _batch: 10.0,
        latency_ms=latency_ms,
        fits=lambda _batch: True,
        latency_ms_limit=100.0,
        rate_rps=rate_rps,
    )


def toy() -> Knapsack:
    """Three models with two shares each, GPUs of 8 and 6 GB."""
    columns = ((0, 30, 1.0, 500), (0, 60, 1.0, 800), (1, 30, 1.9, 180), (1, 60, 1.9, 260), (2, 40, 1.5, 90))
    table = np.repeat(np.array([*columns, (2, 60, 1.5, 140)], dtype=np.float64), 2, axis=0)
    return Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=np.tile(np.arange(2, dtype=np.int64), len(table) // 2),
        share_pct=table[:, 1],
        memory_mib=1024 * table[:, 2],
        throughput_rps=table[:, 3],
        served=np.ones(len(table)),
        wanted=np.ones(3, dtype=np.int64),
        share_room_pct=np.full(2, 100.0),
        memory_room_mib=1024 * np.array([8.0, 6.0]),
    )


LAUNCH_S, WATCHED_S, STEP_S = 5.0, 40.0, 0.5
QUEUED = 7.0


def hand_overs(effort: Effort) -> ClaimEvidence:
    bench = world_of("inss-small")
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


def batches_and_shares(effort: Effort) -> ClaimEvidence:
    drawn, wrong, sized, same, monotone = np.random.default_rng(3), list[str](), 0, 0, 0
    for number in range(effort.examples):
        asked, rising = _question(drawn, filling=bool(number % 2))
        answer = bisect_batch(asked)
        if answer.batch is not None:
            sized += 1
            if not asked.holds(answer.batch) or asked.throughput_rps(answer.batch) < asked.rate_rps:
                wrong.append(f"question {number}: batch {answer.batch} breaks a limit")
        if rising:
            monotone += 1
            same += answer.batch == scan_batches(asked)
        wanted = drawn.uniform(0, 60, int(drawn.integers(1, 9)))
        units = int(drawn.integers(len(wanted), 101))
        given = project(list(wanted), units, spread=bool(number % 2))
        if sum(given) > units or min(given) < 1 or (number % 2 and sum(given) != units):
            wrong.append(f"projection {number}: {given} of {units}")
    if same < monotone or not sized:
        wrong.append(f"{monotone - same} of {monotone} differ from the scan, {sized} sized")
    told = f"{effort.examples} questions, {sized} sized; {same} of {monotone} rising ones equal to the scan"
    return found(f"{told}; {effort.examples} projections; {len(wrong)} wrong", wrong)


def _question(drawn: np.random.Generator, *, filling: bool) -> tuple[BatchQuestion, bool]:
    """A random replica, and whether its latency rises with the batch; `filling`: a task waits for its batch to fill."""
    fixed, each, rate = drawn.uniform(1, 20), drawn.uniform(0.2, 6), drawn.uniform(5, 400)
    waiting, memory = 1 if filling else int(drawn.integers(1, 40)), drawn.uniform(50, 4000)
    asked = BatchQuestion(
        execution_ms=lambda batch: fixed + each * batch,
        latency_ms=lambda batch: task_latency_ms(batch, waiting, fixed, rate, fixed + each * batch),
        fits=lambda batch: 100.0 * batch <= memory,
        latency_ms_limit=float(drawn.uniform(10, 250)),
        rate_rps=float(rate),
    )
    latencies = [asked.latency_ms(batch) for batch in range(1, 33)]
    return asked, bool((np.diff(latencies) >= 0).all())
