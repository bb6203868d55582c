"""A small world for tests: two nodes, six GPUs of two types, two services; each test changes what it is about.

Owns invariants as well: what must hold in any world after every event, whatever happens in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.outcome import About, Better, RunContender, RunOutcome, TuningSetting
from lab.world.arrivals import Steady
from lab.world.run import Run
from lab.world.scenario import Level, Open, Profiling, ScenarioFleet, Traffic, WorldScenario
from lab.world.world import World, outcome_of
from solvers.domain.device import Device, GpuType, Node
from solvers.domain.ids import DeviceId, ModelName, NodeId, PolicyName, ProjectName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.policy import Policy
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import ModelVariant, Project, Service, Slo, WorkloadKind
from solvers.planners import registry
from solvers.planners.base import Planner
from solvers.sim.truth.catalogue import GPUS, MODELS
from solvers.sim.truth.truth import idle_power_w
from tests.builders import gpu_type

FIRST = DeviceId("GPU-n1-0")
PROFILING = Profiling(batches=(1, 4, 16), shares_pct_sm=(20, 40, 60, 100))


def real_type(name: str) -> GpuType:
    """A GPU type whose facts are those of the simulated world's hardware."""
    truth = GPUS[name]
    return replace(
        gpu_type(name), sm_count=truth.sm_count, memory_mib=truth.memory_mib, clocks_mhz_sm=truth.clocks_mhz_sm
    )


def devices(name: str, node: str, count: int) -> tuple[Device, ...]:
    """So many GPUs of a type on a node."""
    truth = GPUS[name]
    return tuple(
        Device(
            id=DeviceId(f"GPU-{node}-{index}"),
            node=NodeId(node),
            gpu_type=real_type(name).name,
            index=index,
            memory_mib=truth.memory_mib,
            sm_count=truth.sm_count,
        )
        for index in range(count)
    )


def model(name: str) -> ModelVariant:
    """A network of the simulated world."""
    truth = MODELS[name]
    return ModelVariant(
        name=ModelName(name),
        family="vision",
        parameters_million=25.0,
        memory_mib_weights=truth.memory_mib_weights,
        memory_mib_per_input=truth.memory_mib_per_input,
        launch_s=truth.launch_s,
    )


def service(name: str, rate_rps: float, limit_ms: float | None = 80.0) -> Service:
    """A service of the model of the same name."""
    return Service(
        project=ProjectName("demo"),
        name=name,
        model=ModelName(name),
        slo=Slo(latency_ms=limit_ms),
        rate_rps_declared=rate_rps,
    )


def traffic(name: str, rate_rps: float, limit_ms: float = 80.0) -> Traffic:
    """The same with steady requests."""
    return Traffic(service=service(name, rate_rps, limit_ms), load=Open(pattern=Steady(rate_rps=rate_rps)))


def scenario(**changes: Any) -> WorldScenario:
    """The small world for two minutes."""
    fleet = ScenarioFleet(
        gpu_types=(real_type("t4"), real_type("v100")),
        nodes=(Node(id=NodeId("n1")), Node(id=NodeId("n2"))),
        devices=(*devices("t4", "n1", 3), *devices("v100", "n2", 3)),
    )
    made = WorldScenario(
        about=About(name="small", title="Small", kind="world", goal="cost_usd", better=Better.LOWER),
        level=Level.REQUEST,
        span_s=120.0,
        fleet=fleet,
        models=tuple(model(name) for name in ("resnet50-trt", "vgg19-trt", "resnet50", "vgg19")),
        projects=(Project(name=ProjectName("demo")),),
        traffic=(traffic("resnet50-trt", 300.0), traffic("vgg19-trt", 100.0)),
        policy=Policy(name=PolicyName("default"), work_units=100, cooldown_s=20.0),
        profiling=PROFILING,
    )
    return replace(made, **changes)


def planners(name: str, settings: tuple[TuningSetting, ...]) -> Planner:
    """Those of the registry, untuned."""
    assert not settings
    return registry.create(name)


def contender(name: str = "greedy", **changes: Any) -> RunContender:
    """A planner alone."""
    return replace(RunContender(label=name, planners=(name,)), **changes)


def replica(ordinal: int = 0, device: DeviceId = FIRST, **changes: Any) -> Assignment:
    """A replica of the first service as a plan would have it."""
    made = Assignment(
        replica=ReplicaId(f"demo/resnet50-trt#{ordinal}"),
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId("demo/resnet50-trt"),
        model=ModelName("resnet50-trt"),
        device=device,
        share_pct_sm=40,
        memory_mib_limit=2000,
        batch=4,
        envelope=Envelope(batch_min=4, batch_max=4, clock_mhz_sm_min=300, clock_mhz_sm_max=300),
        latency_ms_planned=20.0,
        capacity_rps=100.0,
        power_w_planned=10.0,
    )
    return replace(made, **changes)


def run_world(made: WorldScenario, who: RunContender | None = None, seed: int = 1) -> RunOutcome:
    """A run to its end."""
    return World(made).run(who or contender(), seed, planners, lambda part: None)


def checked_run(made: WorldScenario, who: RunContender | None = None, seed: int = 1) -> RunOutcome:
    """The same with all invariants checked after every event and every stretch."""
    who = who or contender()
    run = World(made).begin(who, seed, planners)
    watch = Watch(run)
    run.go(lambda part: None, watch.check)
    assert watch.checks >= 40
    return outcome_of(run, who)


class Watch:
    """Looks at a run and refuses what cannot be."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._generation = 0
        self.checks = 0

    def check(self) -> None:
        """All invariants."""
        self.checks += 1
        state = self._run.state
        assert state.target.generation >= self._generation
        self._generation = state.target.generation
        for cell in state.cells.values():
            assert cell.memory_mib_held <= cell.device.memory_mib
            assert not (cell.gone and cell.processes)
            for process in cell.processes:
                assert process.state in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)
                assert process in state.replicas[process.item.replica]
        for lane in state.lanes.values():
            working = [each for cell in state.cells.values() for each in cell.processes if each.working]
            own = sorted(each.serial for each in working if each.item.workload == lane.id)
            assert own == [each.serial for each in lane.processes]
            if state.changed and not self._run.loads.apart:
                # What a process of a load left behind is counted with the load until that is put together anew.
                continue
            waiting = lane.queued if self._run.loads.apart else lane.waiting + self._run.loads.queued(lane.id)
            asked = lane.completed + lane.dropped + waiting
            assert abs(lane.asked - asked) <= 1e-6 * max(1.0, lane.asked), (lane.id, lane.asked, asked)
        for load in self._run.loads.by_key.values():
            if not load.example.gone:
                least = load.base.gpu.idle_w
                assert load.power_w >= min(least, idle_power_w(load.base.gpu, ())) - 1e-9
        assert self._run.ledger.total.energy_j >= 0.0
