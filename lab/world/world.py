"""The simulated world as a bench: a scenario that any contender can be run in, with the production cycle.

Everything random follows from the seed: the same scenario, contender and seed give the same outcome to the last bit.
Planners' budgets are therefore counted work, never time; where the policy counts none, `WORK_UNITS` stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

from lab.outcome import About, Planners, ProgressListener, RunContender, RunOutcome, check_outcome
from lab.world.fluid import Fluid
from lab.world.governing import FleetGoverning
from lab.world.ledger import Ledger, ServiceBook, clipped
from lab.world.loads import WorldLoads
from lab.world.nodes import WorldNodes
from lab.world.ports import InProcessRunner, StateMemory, WorldActuator, WorldClock, WorldObserver
from lab.world.profiling import known_truth, profiles_of
from lab.world.requests import Requests
from lab.world.run import Run, job_outcome
from lab.world.scenario import FaultKind, JobEntry, Level, ScenarioFault, WorldScenario
from lab.world.state import Kernel, Priority, ServiceLane, State, TargetByDevice, Work, WorldDevice, WorldNode, may_swap
from lab.world.truth import mig_truth
from solvers.control import controllers
from solvers.cycle.ports import Ports
from solvers.domain.codec import from_plain, to_plain
from solvers.domain.device import Device, Node, PowerCap, PowerScope
from solvers.domain.ids import DeviceId, Generation, NodeId
from solvers.domain.ownership import device_owners
from solvers.domain.policy import Policy
from solvers.domain.workload import WorkloadKind
from solvers.errors import FieldError, InputError
from solvers.sim.truth.replay import Replay
from solvers.sim.truth.truth import GpuTruth, launch_s, memory_mib

# --- What goes wrong in a simulated world, and what ends it
#
# A fault begins and ends as an event; several may hold at once. A node or device that comes back holds nothing and
# sets about what it is told now.


@dataclass(slots=True)
class Faults:
    """Lets faults happen. `tell` hears of each, `freeze` of every node that falls silent."""

    state: State
    nodes: WorldNodes
    tell: Callable[[str, str], None]
    freeze: Callable[[WorldNode], None]

    def plan(self, faults: tuple[ScenarioFault, ...], until_s: float) -> None:
        """Plan all of them. Raises InputError for one whose subject cannot have it."""
        for fault in faults:
            if (
                fault.kind in (FaultKind.NODE_LOST, FaultKind.NODE_SILENT)
                and NodeId(fault.subject) not in self.state.hosts
            ):
                raise InputError(f"{fault.kind.value}: {fault.subject} is no node")
            if fault.at_s < until_s:
                self.state.kernel.at(fault.at_s, Priority.FAULT, partial(self._begin, fault))

    def _begin(self, fault: ScenarioFault) -> None:
        self.tell("fault", f"{fault.kind.value} {fault.subject} for {fault.lasts_s:g} s")
        self._turn(fault, 1)
        self.state.kernel.at(self.state.now_s + fault.lasts_s, Priority.FAULT, lambda: self._turn(fault, -1))

    def _turn(self, fault: ScenarioFault, sign: int) -> None:
        """Begin (+1) or end (-1) it."""
        match fault.kind:
            case FaultKind.PLANNER_DOWN:
                self.state.planner_down += sign
            case FaultKind.NODE_LOST | FaultKind.NODE_SILENT:
                self._node(self.state.hosts[NodeId(fault.subject)], fault.kind, sign)
            case FaultKind.REPLICA_CRASH:
                if sign > 0:
                    self._crash(self._cells(fault))
            case _:
                for cell in self._cells(fault):
                    self._device(cell, fault, sign)

    def _node(self, host: WorldNode, kind: FaultKind, sign: int) -> None:
        if sign > 0:
            self.freeze(host)
        if kind is FaultKind.NODE_SILENT:
            host.silent += sign
        else:
            host.lost += sign
        for cell in host.cells:
            if host.lost:
                self._empty(cell)
            self.state.touch(cell)
        if host.reachable:
            self.nodes.hear(host, self.state.wish)

    def _device(self, cell: WorldDevice, fault: ScenarioFault, sign: int) -> None:
        match fault.kind:
            case FaultKind.DEVICE_LOST:
                cell.lost += sign
                if cell.gone:
                    self._empty(cell)
                else:
                    self.nodes.reconcile(cell)
            case FaultKind.SLOW_DEVICE:
                cell.slow = round(cell.slow * fault.factor**sign, 9)
            case _:
                cell.limit_factor = round(cell.limit_factor * fault.factor**sign, 9)
        self.state.touch(cell)

    def _crash(self, cells: list[WorldDevice]) -> None:
        working = [each for cell in cells for each in cell.processes if each.working]
        if working:
            victim = min(working, key=lambda each: (each.item.replica, each.serial))
            self.nodes.end(victim)
            self.nodes.reconcile(victim.cell)

    def _empty(self, cell: WorldDevice) -> None:
        for process in tuple(cell.processes):
            self.nodes.end(process)

    def _cells(self, fault: ScenarioFault) -> list[WorldDevice]:
        host = self.state.hosts.get(NodeId(fault.subject))
        return host.cells if host is not None else [self.state.cells[DeviceId(fault.subject)]]


WORK_UNITS = 500
DEADLINE_S = 600.0
"""The longest that a policy may say: counted work ends a planner's search on any machine, not time."""


@dataclass(frozen=True, slots=True)
class World:
    scenario: WorldScenario
    jobs_of: Callable[[int], tuple[JobEntry, ...]] | None = None
    """By the seed of a run; None: the scenario's."""

    @property
    def about(self) -> About:
        return self.scenario.about

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:
        """Run it to its end. Raises EngineError for an unknown planner, InputError for what cannot be simulated."""
        run = self.begin(contender, seed, planners)
        run.go(progress)
        return outcome_of(run, contender)

    def begin(self, contender: RunContender, seed: int, planners: Planners) -> Run:
        changes = self.scenario.policy_changes
        scenario = replace(
            self.scenario,
            jobs=self.scenario.jobs if self.jobs_of is None else self.jobs_of(seed),
            policies=tuple(map(_counted, self.scenario.policies)),
            policy_changes=tuple(replace(each, policies=tuple(map(_counted, each.policies))) for each in changes),
        )
        # An unknown planner shall end the run here, not be a failed attempt in every cycle of it.
        planners(contender.planners[0], contender.settings)
        policy = policy_of(scenario.policy, contender)
        state = state_of(scenario, policy)
        loads = WorldLoads(state, apart=scenario.level is Level.REQUEST)
        governing = _governing(contender.governor or scenario.governor, scenario, state, loads)
        nodes = WorldNodes(
            state=state,
            launch_s=lambda model, cell: launch_s(model, cell.truth) * scenario.launch_scale,
            memory_mib=memory_mib,
            queue_of=loads.queue_of,
            on_change=(lambda _cell: None) if governing is None else governing.take,
        )
        moves = any(map(may_swap, state.works.values()))
        memory_mib_all = sum(cell.device.memory_mib for cell in state.cells.values()) if moves else 0
        observer = WorldObserver(scenario, state, loads, policy, profiles_of(scenario, seed))
        run = Run(
            scenario=scenario,
            state=state,
            loads=loads,
            nodes=nodes,
            observer=observer,
            ledger=Ledger(
                fleet_gpus=sum(cell.gpu_part for cell in state.cells.values()), fleet_memory_mib=float(memory_mib_all)
            ),
            serving=(Fluid if scenario.level is Level.FLUID else Requests).of(scenario, state, loads, seed),
            governing=governing,
            seed=seed,
        )
        run.ports = Ports(
            observer=observer,
            runner=InProcessRunner(
                planners, contender.planners[0], contender.settings, run.counting, policy.planner_settings
            ),
            actuator=WorldActuator(state, run.spread),
            clock=WorldClock(state),
            journal=run.journal,
            reporter=run.counting,
            memory=StateMemory(),
        )
        self._stand(run)
        Faults(state, nodes, run.tell, observer.freeze).plan(scenario.faults, scenario.span_s)
        run.plan_events()
        return run

    def _stand(self, run: Run) -> None:
        standing = self.scenario.standing
        if not standing.assignments and not standing.settings:
            return
        target = replace(
            standing,
            generation=Generation(1),
            assignments=tuple(sorted(standing.assignments, key=lambda each: each.replica)),
            settings=tuple(sorted(standing.settings, key=lambda each: each.device)),
        )
        run.state.wish = TargetByDevice.of(target)
        for host in run.state.hosts.values():
            run.nodes.hear(host, run.state.wish, instantly=True)


def _governing(name: str | None, scenario: WorldScenario, state: State, loads: WorldLoads) -> FleetGoverning | None:
    """The controllers of this name, and those that policies with pools name on their devices. Raises InputError for an
    unknown one.
    """
    if name is None:
        return None
    changes = (pools for change in scenario.policy_changes for pools in change.policies)
    for each in (name, *(policy.governor for policy in (*scenario.policies, *changes))):
        if each not in controllers.names():
            raise InputError(f"no controller is called {each}; there are {', '.join(controllers.names())}")
    nodes = {node.id: node for node in scenario.fleet.nodes}

    def governor_of(device: DeviceId) -> str:
        pools = scenario.policies_at(state.now_s)
        owner = device_owners(pools, nodes, scenario.fleet.devices).get(device) if pools else None
        return name if owner is None else next(policy.governor for policy in pools if policy.name == owner)

    return FleetGoverning(state, loads, governor_of)


def _counted(policy: Policy) -> Policy:
    """Whoever plans counts work, so that the same seed gives the same bytes on every machine."""
    return replace(policy, work_units=policy.work_units or WORK_UNITS, deadline_s=max(policy.deadline_s, DEADLINE_S))


def policy_of(policy: Policy, contender: RunContender) -> Policy:
    """The scenario's policy with what the contender overrides. Raises FieldError for a field that there is not."""
    plain = to_plain(policy)
    if not isinstance(plain, dict):
        raise FieldError("policy", "a policy has fields")
    known = {each.name for each in fields(policy)}
    for setting in contender.policy:
        if setting.name not in known:
            raise FieldError("policy", f"a policy has no field {setting.name}")
        plain[setting.name] = json.loads(setting.value)
    return replace(_counted(from_plain(Policy, plain)), planners=contender.planners)


def state_of(scenario: WorldScenario, policy: Policy) -> State:
    """Everything that stands, empty. Raises InputError for hardware that no simulated world has."""
    hosts = {node.id: WorldNode(node) for node in sorted(scenario.fleet.nodes, key=lambda each: each.id)}
    types = {each.name: each for each in scenario.fleet.gpu_types}
    cells = {}
    for device in sorted(scenario.fleet.devices, key=lambda each: each.id):
        gpu_type, host = types[device.gpu_type], hosts[device.node]
        cell = WorldDevice(
            device=device,
            gpu_type=gpu_type,
            truth=truth_of(device, scenario.replay),
            host=host,
            usd_per_h=policy.usd_per_h(device, gpu_type, host.node),
            gpu_part=gpu_type.part_of(device),
            cap_w=min(
                (
                    cap.limit_w
                    for cap in scenario.fleet.power_caps
                    if cap.scope is PowerScope.DEVICE and cap.subject == device.id
                ),
                default=None,
            ),
            domains=_domains(scenario.fleet.power_caps, device, host.node),
            limit_settable=scenario.boards_hold_caps,
        )
        host.cells.append(cell)
        cells[device.id] = cell
    works = [Work(each.job, WorkloadKind.JOB, each.at_s, float(each.job.iterations_total)) for each in scenario.jobs]
    works += [Work(each.task, WorkloadKind.TASK, each.at_s, float(each.task.inputs_total)) for each in scenario.tasks]
    state = State(
        kernel=Kernel(),
        hosts=hosts,
        cells=cells,
        lanes={
            service.id: ServiceLane(scenario.traffic_of(service.id), ServiceBook.of(service))
            for service in scenario.services
        },
        works={each.id: each for each in sorted(works, key=lambda each: each.id)},
    )
    for cell in cells.values():
        state.touch(cell)
    return state


def truth_of(device: Device, replay: Replay | None = None) -> GpuTruth:
    """How a device behaves: a whole GPU, or its slice of one. Raises InputError for unknown hardware."""
    whole = known_truth(device.gpu_type, replay)
    return whole if device.mig is None else mig_truth(whole, device.sm_count, device.memory_mib)


def _domains(caps: tuple[PowerCap, ...], device: Device, node: Node) -> tuple[int, ...]:
    """Numbers of the power caps, but for those of devices, that count a device."""
    subjects: dict[PowerScope, str] = {PowerScope.NODE: device.node, PowerScope.RACK: node.rack}
    return tuple(
        number
        for number, cap in enumerate(caps)
        if cap.scope is PowerScope.CLUSTER or subjects.get(cap.scope) == cap.subject
    )


def outcome_of(run: Run, contender: RunContender) -> RunOutcome:
    scenario, state = run.scenario, run.state
    span_s = scenario.span_s - scenario.warmup_s
    services = tuple(lane.book.outcome(span_s) for lane in state.lanes.values())
    jobs = tuple(job_outcome(work) for work in state.works.values() if work.at_s < scenario.span_s)
    usages = clipped((*run.nodes.usages, *run.nodes.standing_usages()), scenario.warmup_s)
    outcome = RunOutcome(
        scenario=scenario.about.name,
        contender=contender.label,
        seed=run.seed,
        metrics=run.ledger.metrics(services, jobs, usages, run.count().since(run.before)),
        services=services,
        jobs=jobs,
        windows=tuple(run.ledger.windows),
        deeds=tuple(run.deeds),
    )
    check_outcome(outcome)
    return outcome
