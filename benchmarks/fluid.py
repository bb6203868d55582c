"""How far the fluid mode is from single requests: the same worlds at both levels, over a grid of them.

Owns the grid: one to three replicas of a service on V100s of their own, alone or beside a busy neighbour, at 40 to
130 % of what full batches (of 2, 4 or 16) carry there, steady or in bursts, with a limit of 1.2, 2.5 or 6 of them,
hopeless requests dropped. Nobody plans: what stands, stands, so that a load means the same in every world. Violations
(late or dropped) and completions are compared as parts of what was asked, and as parts of each other where at least a
hundredth is violated. `python -m benchmarks.fluid` prints a row for each load and each world beyond five points; it
fails when more than one world in ten is. `--seeds N` takes the mean of so many seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median

from app import library
from lab.outcome import About, Better, RunContender
from lab.world.arrivals import ArrivalPattern, Bursts, Steady
from lab.world.device import DeviceLoad, Tenant, settle
from lab.world.scenario import (
    Level,
    Open,
    Profiling,
    Rhythm,
    Routing,
    ScenarioFleet,
    Traffic,
    WorldScenario,
)
from lab.world.world import World
from solvers.domain.change import Target
from solvers.domain.device import Device, Node
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, NodeId, PolicyName, ProjectName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.policy import Policy
from solvers.domain.workload import Project, Service, Slo, WorkloadKind
from solvers.planners import registry
from solvers.sim.truth.catalogue import GPUS

LOADS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
BATCHES, LIMITS = (2, 4, 16), (1.2, 2.5, 6.0)
"""Of a full batch's time."""
BESIDE_BATCH, BESIDE_LOAD, BESIDE_LIMIT_MS = 8, 0.6, 1000.0
SHARE_PCT = 50
SPAN_S, WARMUP_S = 200.0, 20.0
MOST, VIOLATED_LEAST = 0.05, 0.01
BEYOND_MOST = 0.1
GPU = GPUS["v100"]
TYPE = GpuTypeName(GPU.name)
SERVED, BESIDE = "resnet50-trt", "vgg19-trt"
LIKE = {SERVED: "resnet50", BESIDE: "vgg19"}
"""The library's networks without the engine that runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A world of the grid."""

    load: float
    replicas: int
    beside: bool
    bursts: bool
    batch: int
    limit: float

    @property
    def told(self) -> str:
        """In words."""
        company = "beside a neighbour" if self.beside else "alone"
        pattern = "in bursts" if self.bursts else "steady"
        return (
            f"{100 * self.load:.0f} %, {self.replicas} {company}, {pattern}, limit {self.limit} batches of {self.batch}"
        )


@dataclass(frozen=True, slots=True)
class Off:
    """Violations and completions of the served network: parts of what was asked, at both levels."""

    violated: tuple[float, float]
    completed: tuple[float, float]

    @property
    def violations(self) -> float:
        """How far apart."""
        return abs(self.violated[0] - self.violated[1])

    @property
    def completions(self) -> float:
        """How far apart."""
        return abs(self.completed[0] - self.completed[1])

    @property
    def relative(self) -> float | None:
        """How far apart violations are as a part of what they are one by one; None where they are few."""
        return self.violations / self.violated[0] if self.violated[0] >= VIOLATED_LEAST else None


def cases() -> Iterator[Case]:
    """The whole grid."""
    for load, replicas, beside, bursts in product(LOADS, (1, 2, 3), (False, True), (False, True)):
        for batch, limit in product(BATCHES, LIMITS):
            yield Case(load=load, replicas=replicas, beside=beside, bursts=bursts, batch=batch, limit=limit)


def full_ms(batch: int, beside: bool) -> float:
    """Milliseconds of a full batch of the served network when it is always busy."""
    tenants = [Tenant(model=SERVED, share_pct_sm=SHARE_PCT, batch=batch, rate_rps=1e9)]
    if beside:
        tenants.append(Tenant(model=BESIDE, share_pct_sm=SHARE_PCT, batch=BESIDE_BATCH, rate_rps=_beside_rps()))
    load = DeviceLoad(gpu=GPU, clock_mhz_sm=GPU.clock_mhz_sm_max, power_limit_w=GPU.tdp_w, tenants=tuple(tenants))
    return settle(load).exec_ms[0][-1]


def _beside_rps() -> float:
    one = Tenant(model=BESIDE, share_pct_sm=SHARE_PCT, batch=BESIDE_BATCH, rate_rps=1e9)
    load = DeviceLoad(gpu=GPU, clock_mhz_sm=GPU.clock_mhz_sm_max, power_limit_w=GPU.tdp_w, tenants=(one,))
    return BESIDE_LOAD * 1000.0 * BESIDE_BATCH / settle(load).exec_ms[0][-1]


def world(case: Case) -> WorldScenario:
    """The case at request level."""
    facts, mine_ms = library.facts(), full_ms(case.batch, case.beside)
    node = Node(id=NodeId("n1"))
    devices = tuple(
        Device(
            id=DeviceId(f"GPU-{index}"),
            node=node.id,
            gpu_type=TYPE,
            index=index,
            memory_mib=GPU.memory_mib,
            sm_count=GPU.sm_count,
        )
        for index in range(case.replicas)
    )
    carried_rps = case.replicas * 1000.0 * case.batch / mine_ms
    batches = {SERVED: case.batch, BESIDE: BESIDE_BATCH} if case.beside else {SERVED: case.batch}
    asked = {
        SERVED: _traffic(SERVED, case.load * carried_rps, case.limit * mine_ms, case.bursts),
        BESIDE: _traffic(BESIDE, case.replicas * _beside_rps(), BESIDE_LIMIT_MS, False),
    }
    return WorldScenario(
        about=About(name="levels", title="Levels", kind="world", goal="violation_pct", better=Better.LOWER),
        level=Level.REQUEST,
        span_s=SPAN_S,
        warmup_s=WARMUP_S,
        fleet=ScenarioFleet(gpu_types=(facts.gpu_types[TYPE],), nodes=(node,), devices=devices),
        models=tuple(replace(facts.models[ModelName(LIKE[name])], name=ModelName(name)) for name in batches),
        projects=(Project(name=ProjectName("demo")),),
        traffic=tuple(asked[name] for name in batches),
        policy=Policy(name=PolicyName("none"), work_units=1),
        rhythm=Rhythm(cycle_s=10.0 * SPAN_S),
        profiling=Profiling(batches=BATCHES, shares_pct_sm=(SHARE_PCT,)),
        standing=Target(
            assignments=tuple(_standing(name, batch, device) for device in devices for name, batch in batches.items())
        ),
    )


def _traffic(name: str, rate_rps: float, limit_ms: float, bursts: bool) -> Traffic:
    service = Service(
        project=ProjectName("demo"),
        name=name,
        model=ModelName(name),
        slo=Slo(latency_ms=limit_ms),
        rate_rps_declared=rate_rps,
    )
    pattern: ArrivalPattern = Steady(rate_rps=rate_rps)
    if bursts:
        # Two thirds of the time calm: the mean is the rate.
        pattern = Bursts(
            rate_rps_calm=0.7 * rate_rps, rate_rps_burst=1.6 * rate_rps, calm_s_mean=20.0, burst_s_mean=10.0
        )
    return Traffic(service=service, load=Open(pattern=pattern), routing=Routing.WEIGHTED_RANDOM)


def _standing(name: str, batch: int, device: Device) -> Assignment:
    return Assignment(
        replica=ReplicaId(f"demo/{name}#{device.index}"),
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId(f"demo/{name}"),
        model=ModelName(name),
        device=device.id,
        share_pct_sm=SHARE_PCT,
        memory_mib_limit=GPU.memory_mib // 3,
        batch=batch,
        envelope=Envelope(
            batch_min=batch,
            batch_max=batch,
            clock_mhz_sm_min=GPU.clock_mhz_sm_max,
            clock_mhz_sm_max=GPU.clock_mhz_sm_max,
        ),
        latency_ms_planned=20.0,
        capacity_rps=100.0,
        power_w_planned=10.0,
    )


def parts(scenario: WorldScenario, seed: int) -> tuple[float, float]:
    """Violated and completed parts of what was asked of the served network."""
    left_alone = RunContender(label="none", planners=("keep-target",))
    found = World(scenario).run(left_alone, seed, lambda name, _: registry.create(name), lambda _: None)
    served = next(each for each in found.services if each.service.endswith(SERVED))
    return (served.late + served.dropped) / served.asked, served.completed / served.asked


def compared(case: Case, seeds: int) -> Off:
    """Both levels of a case; the same seeds, so that bursts fall at the same times."""
    made = world(case)
    single = [parts(made, seed) for seed in range(seeds)]
    fluid = [parts(replace(made, level=Level.FLUID), seed) for seed in range(seeds)]
    violated, completed = (tuple(fmean(each[part] for each in run) for run in (single, fluid)) for part in (0, 1))
    return Off((violated[0], violated[1]), (completed[0], completed[1]))


def main() -> int:
    """Print the grid; 1 when too much of it is apart."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fluid", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    begun, found = time.process_time(), {case: compared(case, seeds) for case in cases()}
    print("                points: violations         completions          beyond    relative: violations; completions")
    print("                 mean     worst           mean     worst          five    median, within five in a hundred")
    for load in LOADS:
        _row(f"{100 * load:3.0f} %", [off for case, off in found.items() if case.load == load])
    _row("all", list(found.values()))
    for name in ("replicas", "beside", "bursts", "batch", "limit"):
        for value in sorted({getattr(case, name) for case in found}):
            _row(f"{name} {value}", [off for case, off in found.items() if getattr(case, name) == value])
    beyond = {case: off for case, off in found.items() if _beyond(off)}
    for case, off in beyond.items():
        print(
            f"beyond: {case.told}: violated {100 * off.violated[0]:.1f} and {100 * off.violated[1]:.1f}, "
            f"completed {100 * off.completed[0]:.1f} and {100 * off.completed[1]:.1f} %"
        )
    print(f"{time.process_time() - begun:.0f} s")
    return 0 if len(beyond) <= BEYOND_MOST * len(found) else 1


def _beyond(off: Off) -> bool:
    return max(off.violations, off.completions) > MOST


def _row(name: str, rows: list[Off]) -> None:
    violations, completions = [100 * row.violations for row in rows], [100 * row.completions for row in rows]
    relative = [row.relative for row in rows if row.relative is not None]
    within = sum(each <= MOST for each in relative)
    told = f"{100 * median(relative):5.1f} %, {within} of {len(relative)}; " if relative else "-; "
    told += f"{sum(row.completions <= MOST * row.completed[0] for row in rows)} of {len(rows)}"
    print(
        f"{name:15} {fmean(violations):9.2f} {max(violations):9.2f} {fmean(completions):14.2f} {max(completions):9.2f}"
        f"   {sum(map(_beyond, rows)):4} of {len(rows):4}   {told}"
    )


if __name__ == "__main__":
    sys.exit(main())
