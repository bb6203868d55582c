"""One run of a simulated world: time, stretch by stretch, from event to event.

Within a stretch come loads, settling, serving, work, books, in this order; the world plans its own events: cycles,
reports, the end of the warm-up. Planners are asked through the production cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from lab.outcome import JobOutcome, ProgressListener, RunEvent
from lab.world.device import iterations_done
from lab.world.fluid import Fluid
from lab.world.governing import FleetGoverning
from lab.world.ledger import Count, Flow, Ledger, Sums
from lab.world.loads import Load, WorldLoads
from lab.world.nodes import WorldNodes
from lab.world.ports import CountingReporter, LastRecord, WorldObserver
from lab.world.requests import Requests, Span
from lab.world.scenario import WorldScenario
from lab.world.state import Priority, Process, State, TargetByDevice, Work, swapped_mib
from solvers.cycle.alarm import demand_alarms
from solvers.cycle.cycle import run_cycle
from solvers.cycle.gate import fatal_words
from solvers.cycle.ports import CycleOrder, Ports
from solvers.cycle.record import CycleRecord, HoldReason
from solvers.cycle.record import Lane as CycleLane
from solvers.domain.arrays import Streams
from solvers.domain.ids import CycleId, JobId, ServiceId, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import WorkloadKind

# --- Training jobs and offline tasks: what they get done in a stretch, and that they end
#
# A job goes on by its iterations under the settled state, a task by full batches; whoever is done ends its processes
# at the end of the stretch, and is done at the moment within it at which its amount was reached.


@dataclass(frozen=True, slots=True)
class StretchProgress:
    """Of a stretch: iterations of training, and memory that went between devices and hosts."""

    iterations: float = 0.0
    swapped_mib: float = 0.0


def progress_works(state: State, nodes: WorldNodes, loads: WorldLoads, span: Span) -> StretchProgress:
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
    return JobOutcome(
        job=JobId(work.id),
        waited_s=None if work.begun_s is None else work.begun_s - work.at_s,
        took_s=None if work.ended_s is None else work.ended_s - work.at_s,
        done_part=min(1.0, work.done / work.total),
        evictions=work.evictions,
    )


# --- The run

_QUIET = frozenset({HoldReason.NOTHING_TO_CHANGE, HoldReason.COOLDOWN, HoldReason.SMALL_GAIN, HoldReason.CHURN_BUDGET})
"""Holds that say nothing new."""


@dataclass(slots=True)
class Run:
    scenario: WorldScenario
    state: State
    loads: WorldLoads
    nodes: WorldNodes
    observer: WorldObserver
    ledger: Ledger
    serving: Requests | Fluid
    governing: FleetGoverning | None
    seed: int
    ports: Ports | None = None
    journal: LastRecord = field(default_factory=LastRecord)
    counting: CountingReporter = field(default_factory=CountingReporter)
    deeds: list[RunEvent] = field(default_factory=list)
    promotions: int = 0
    cycles_due: int = 0
    planned_rps: dict[ServiceId, float] = field(default_factory=dict)
    """What the last cycle planned for."""
    planned_works: set[WorkloadId] = field(default_factory=set)
    """Jobs and tasks that were open then."""
    periods: int = 0
    index: int = 0
    before: Count = field(default_factory=Count)
    """What had happened by the end of the warm-up."""

    # -- events -------------------------------------------------------------------------------------------------------

    def plan_events(self) -> None:
        rhythm, kernel = self.scenario.rhythm, self.state.kernel
        cycles = self._every(rhythm.cycle_s)
        looks = set(self._every(rhythm.look_s or rhythm.cycle_s)) - set(cycles)
        for due_s in sorted({*cycles, *looks}):
            kernel.at(max(0.0, due_s - rhythm.report_delay_s), Priority.REPORT, self.observer.report)
            kernel.at(due_s, Priority.CYCLE, self._look if due_s in looks else self._cycle)
        self.cycles_due = len(cycles)
        for second in self._every(rhythm.count_s or self.scenario.span_s)[1:]:
            kernel.at(max(0.0, second - rhythm.report_delay_s), Priority.REPORT, self._count)
        if self.governing is not None:
            kernel.at(rhythm.governor_s, Priority.GOVERN, self._govern)
        if self.scenario.warmup_s > 0.0:
            kernel.at(self.scenario.warmup_s, Priority.FAULT, self._warm)
        for work in self.state.works.values():
            if work.at_s < self.scenario.span_s:
                # A moment at which the world is cut.
                kernel.at(work.at_s, Priority.WORK, lambda: None)

    def _every(self, step_s: float) -> list[float]:
        return [number * step_s for number in range(ceil(self.scenario.span_s / step_s))]

    def _warm(self) -> None:
        self.ledger.forget(lane.book for lane in self.state.lanes.values())
        self.before = self.count()

    def _govern(self) -> None:
        assert self.governing is not None
        self.governing.period()
        self.periods += 1
        due_s = (self.periods + 1) * self.scenario.rhythm.governor_s
        if due_s < self.scenario.span_s:
            self.state.kernel.at(max(due_s, self.state.now_s), Priority.GOVERN, self._govern)

    def _count(self) -> None:
        """Gateways do, and have what jumped looked at."""
        if self.observer.count():
            self.observer.report()
            kernel = self.state.kernel
            kernel.at(kernel.now_s + self.scenario.rhythm.report_delay_s, Priority.CYCLE, self._look)

    def _look(self) -> None:
        """A cycle before its time, where demand calls for one, or a job came or ended."""
        demands, target = self.observer.coming.demands, self.state.target
        alarms = demand_alarms(demands, target, lambda _: self.scenario.policy, self.planned_rps)
        if alarms or self.planned_works != {each.id for each in self.state.open_works}:
            self._cycle()
        else:
            self.observer.observe()

    def _cycle(self) -> None:
        assert self.ports is not None, "a run needs ports before its first cycle"
        if self.state.planner_down:
            # Nobody looks at this report any more.
            self.observer.observe()
            return
        number = self.journal.closed
        order = CycleOrder(
            id=CycleId(f"cycle-{number}"),
            lane=CycleLane.ACT,
            seed=self.seed,
            software_version="simulated",
            by_pursuit=self.scenario.about.by_pursuit,
        )
        record = run_cycle(self.ports, order)
        self.planned_rps = {item.service: item.rate_rps_upper for item in record.snapshot.demands}
        self.planned_works = {each.id for each in self.state.open_works}
        decision = record.decision
        if decision is not None and not decision.promote and not set(decision.reasons) <= _QUIET:
            reasons = ", ".join(reason.value for reason in decision.reasons)
            errors = "; ".join(f"{item.planner}: {item.error}" for item in record.attempts if item.error)
            self.tell("hold", f"{reasons}{': ' + errors if errors else ''}")

    def spread(self, wish: TargetByDevice, record: CycleRecord) -> None:
        """A new target: nodes act a little later, or at once where the world begins warm."""
        self.promotions += 1
        plan, before = record.plan, self.state.wish
        self.state.wish = wish
        for device in {**dict.fromkeys(before.by_device), **dict.fromkeys(wish.by_device)}:
            self.state.touch(self.state.cells[device])
        self.tell("promotion", _told(record, plan))
        for until_s in sorted({leave.until_s for by in wish.leaving.values() for leave in by.values()}):
            self.state.kernel.at(until_s, Priority.APPLY, lambda: self._part(wish))
        instantly = self.scenario.warm_start and self.journal.closed == 0
        if instantly:
            self._hear(wish, instantly=True)
        else:
            self.state.kernel.at(
                self.state.now_s + self.scenario.rhythm.apply_delay_s, Priority.APPLY, lambda: self._hear(wish)
            )

    def _part(self, wish: TargetByDevice) -> None:
        """The time of some that went on beside a target is over."""
        for device in wish.leaving:
            self.nodes.reconcile(self.state.cells[device])

    def _hear(self, wish: TargetByDevice, *, instantly: bool = False) -> None:
        for host in self.state.hosts.values():
            self.nodes.hear(host, wish, instantly=instantly)

    def tell(self, kind: str, text: str) -> None:
        self.deeds.append(RunEvent(at_s=self.state.now_s, kind=kind, text=text[:500]))

    def count(self) -> Count:
        return Count(
            starts=self.nodes.starts,
            stops=self.nodes.stops,
            promotions=self.promotions,
            cycles=self.journal.closed,
            unsound_plans=self.counting.counts.get("plan.refuted", 0),
            planner_failures=self.counting.counts.get("planner.failed", 0),
        )

    # -- time ---------------------------------------------------------------------------------------------------------

    def go(self, progress: ProgressListener, watch: Callable[[], None] | None = None) -> None:
        """To the end. `watch` is asked to look after every stretch, and after the events that follow it."""
        kernel, span_s = self.state.kernel, self.scenario.span_s
        step_s, window = self.scenario.rhythm.stretch_s, 1
        told = 0
        kernel.happen()
        while kernel.now_s < span_s:
            window_ends_s = window * step_s
            until_s = min(kernel.next_s(), window_ends_s, span_s)
            until_s = min(until_s, self.serving.next_edge_s(kernel.now_s))
            self._stretch(kernel.now_s, until_s)
            kernel.move(until_s)
            if watch is not None:
                watch()
            if until_s >= window_ends_s or until_s >= span_s:
                self.ledger.close_window(until_s, (lane.book for lane in self.state.lanes.values()))
                window += 1
            kernel.happen()
            if watch is not None:
                watch()
            if int(100 * until_s / span_s) > told:
                told = int(100 * until_s / span_s)
                progress(told / 100.0)

    def _stretch(self, from_s: float, until_s: float) -> None:
        span = Span(
            from_s=from_s,
            until_s=until_s,
            index=self.index,
            streams=Streams(self.seed),
            sigma=self.scenario.latency_noise,
        )
        self.index += 1
        self.loads.refresh()
        flows = self.serving.serve(span)
        for lane in self.state.lanes.values():
            flow = flows.get(lane.id, _NO_FLOW)
            lane.book.take(flow)
            lane.asked += flow.asked
            lane.completed += flow.completed
            lane.dropped += flow.dropped
            lane.asked_until.append((until_s, lane.asked))
        self._account(span, progress_works(self.state, self.nodes, self.loads, span))

    def _account(self, span: Span, works: StretchProgress) -> None:
        seconds = span.seconds
        sums = Sums(seconds=seconds, iterations=works.iterations, swapped_mib=works.swapped_mib)
        if self.ledger.fleet_memory_mib:
            sums.memory_mib_s = seconds * sum(cell.memory_mib_held for cell in self.state.cells.values())
        gpus = power_w = 0.0
        drawn = [0.0] * len(self.scenario.fleet.power_caps)
        for load in self.loads.by_key.values():
            count, watts = len(load.cells), load.power_w
            for domain in load.example.domains:
                drawn[domain] += count * watts
            if load.example.cap_w is not None:
                sums.caps_s += count * seconds
                sums.caps_over_s += count * seconds * (watts > load.example.cap_w + 1e-6)
            if load.rented:
                self._account_load(sums, load, seconds)
                gpus += count * load.example.gpu_part
                power_w += count * watts
        for cap, watts in zip(self.scenario.fleet.power_caps, drawn, strict=True):
            if watts > 0.0:
                sums.caps_s += seconds
                sums.caps_over_s += seconds * (watts > cap.limit_w + 1e-6)
        sums.energy_usd = sums.energy_j / 3600.0 * self.observer.policy.usd_per_wh(span.from_s)
        self.serving.account(sums, span)
        self.ledger.take(sums, gpus, power_w)
        if self.governing is not None:
            self.governing.watch()

    def _account_load(self, sums: Sums, load: Load, seconds: float) -> None:
        count, cell = len(load.cells), load.example
        sums.gpu_s += count * cell.gpu_part * seconds
        sums.device_s += count * seconds
        sums.device_usd += count * cell.usd_per_h * seconds / 3600.0
        sums.energy_j += count * load.power_w * seconds
        sums.busy_gpu_s += count * cell.gpu_part * load.busy_part * seconds
        sums.kernels_gpu_s += count * cell.gpu_part * load.kernels_part * seconds
        sums.capacity_requests += count * load.capacity_rps * seconds
        ready = sum(seat.weight > 0.0 for seat in load.seats)
        sums.replica_s += count * ready * seconds


_NO_FLOW = Flow()


def _told(record: CycleRecord, plan: Plan | None) -> str:
    changes: dict[str, int] = {}
    for change in record.transition.changes if record.transition is not None else ():
        changes[change.kind.value] = changes.get(change.kind.value, 0) + 1
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(changes.items()))
    cost = f"{plan.objective.cost_usd_per_h:.4g} $/h" if plan is not None else ""
    by = plan.planner if plan is not None else "-"
    warnings = fatal_words(record.findings)
    return f"{by}: {cost}; {listed}{'; ' + warnings if warnings else ''}"
