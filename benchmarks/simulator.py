"""How fast worlds are simulated: single requests per second of one core, and what an hour of many devices costs.

Owns the loads it is measured on. The request kernel: one service, four replicas with batches of up to 16, at 90 % of
what batches carry, with drops and noise; drawing the arrivals is counted too. Whole worlds, with planning by `greedy`
in the production cycle every quarter of an hour: two busy services request by request, and in fluid mode 40 services
that follow the day on 1,000 and on 33,024 devices of four types. Devices alone: every one with two tenants and a
training job of its own, at new rates in every minute. `python -m benchmarks.simulator` fails below a million requests
per second, and when an hour of 1,000 devices takes a minute; `--quick` leaves the largest fleet out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from app import library
from lab.outcome import About, Better, RunContender, RunOutcome
from lab.world.arrivals import Daily, Source, Steady, arrival_times_s
from lab.world.device import DeviceLoad, Tenant, Trainee, settle
from lab.world.queues import Loop, ReplicaServer, Stretch, compiled_loop, serve_arrivals, serve_requests
from lab.world.scenario import Level, Open, Rhythm, Routing, ScenarioFleet, Traffic, WorldScenario
from lab.world.world import World
from solvers.domain.device import Device, Node
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, NodeId, PolicyName, ProjectName
from solvers.domain.policy import Policy
from solvers.domain.workload import Project, Service, Slo
from solvers.planners import registry
from solvers.sim.serving.serving import serve
from solvers.sim.truth.catalogue import GPUS

SERVERS = tuple(ReplicaServer(exec_ms=tuple(2.0 + 0.8 * size for size in range(1, 17))) for _ in range(4))
RATE_RPS = 0.9 * 4 * 16 / 14.8e-3
LEAST_PER_S = 1e6
MOST_S = 60.0
DEVICES, MINUTES = 100, 10
TYPES = tuple(GpuTypeName(name) for name in ("t4", "v100", "a100", "l4"))
MODELS = tuple(ModelName(name) for name in ("resnet50", "vgg19", "bert-base"))
FLEETS = (1_000, 33_024)


def speed(router: Routing, span_s: float, loop: Loop) -> float:
    """Requests per second of CPU time, the best of three."""
    best_s = np.inf
    count = 0
    for _ in range(3):
        begun = time.process_time()
        times = arrival_times_s(Steady(rate_rps=RATE_RPS), Source(name="bench", seed=1), 0.0, span_s)
        stretch = Stretch(
            from_s=0.0,
            until_s=span_s,
            arrivals_s=times,
            servers=SERVERS,
            router=router,
            limit_ms=100.0,
            noise_sigma=0.03,
        )
        serve_requests(stretch, np.random.default_rng(1), loop)
        best_s, count = min(best_s, time.process_time() - begun), len(times)
    return count / best_s


def fluid_s() -> float:
    """CPU seconds for an hour of 1,000 devices in stretches of a minute, from a smaller run."""
    draw, gpu = np.random.default_rng(1), GPUS["a100"]
    job = Trainee(model="bert-base", share_pct_sm=20, iteration_ms_reference=100.0, gpu_reference=gpu)
    begun = time.process_time()
    for _ in range(DEVICES * MINUTES):
        tenants = (
            Tenant(model="resnet50", share_pct_sm=40, batch=16, rate_rps=float(draw.uniform(100, 1000))),
            Tenant(model="yolov5s", share_pct_sm=40, batch=8, rate_rps=float(draw.uniform(50, 300))),
        )
        load = DeviceLoad(
            gpu=gpu, clock_mhz_sm=gpu.clock_mhz_sm_max, power_limit_w=gpu.tdp_w, tenants=tenants, trainees=(job,)
        )
        for tenant, table, limit_ms in zip(tenants, settle(load).exec_ms, (50.0, 100.0), strict=True):
            serve(0.0, tenant.rate_rps * 60.0, 60.0, table, limit_ms)
    return (time.process_time() - begun) * 1000 * 60 / (DEVICES * MINUTES)


def world(devices: int, services: int, rate_rps: float) -> WorldScenario:
    """An hour of a fluid world; `rate_rps` is that of all services together."""
    facts, each = library.facts(), devices // len(TYPES)
    fleet = ScenarioFleet(
        gpu_types=tuple(facts.gpu_types[name] for name in TYPES),
        nodes=tuple(Node(id=NodeId(f"{name}-{node}")) for name in TYPES for node in range((each + 7) // 8)),
        devices=tuple(
            Device(
                id=DeviceId(f"GPU-{name}-{index:05d}"),
                node=NodeId(f"{name}-{index // 8}"),
                gpu_type=name,
                index=index % 8,
                memory_mib=facts.gpu_types[name].memory_mib,
                sm_count=facts.gpu_types[name].sm_count,
            )
            for name in TYPES
            for index in range(each)
        ),
    )
    return WorldScenario(
        about=About(name="speed", title="Speed", kind="world", goal="cost_usd", better=Better.LOWER),
        level=Level.FLUID,
        span_s=3600.0,
        fleet=fleet,
        models=tuple(facts.models[name] for name in MODELS),
        projects=(Project(name=ProjectName("demo")),),
        traffic=tuple(_traffic(index, rate_rps / services) for index in range(services)),
        policy=Policy(name=PolicyName("default"), work_units=200),
        rhythm=Rhythm(cycle_s=900.0),
    )


def _traffic(index: int, rate_rps: float) -> Traffic:
    mean_rps = rate_rps * (0.5 + (7 * index) % 11 / 11)
    service = Service(
        project=ProjectName("demo"),
        name=f"s{index:03d}",
        model=MODELS[index % len(MODELS)],
        slo=Slo(latency_ms=150.0),
        rate_rps_declared=mean_rps,
        replicas_max=1024,
    )
    return Traffic(service=service, load=Open(pattern=Daily(rate_rps_mean=mean_rps, swing=0.4)))


def world_s(scenario: WorldScenario) -> tuple[float, RunOutcome]:
    """CPU seconds of a whole run."""
    begun = time.process_time()
    greedy = RunContender(label="greedy", planners=("greedy",))
    outcome = World(scenario).run(greedy, 1, lambda name, _: registry.create(name), lambda _: None)
    return time.process_time() - begun, outcome


def requests_per_s() -> float:
    """Requests per second of CPU time of a whole world with busy services, planning included."""
    busy = replace(world(100, 2, 40_000.0), level=Level.REQUEST, span_s=120.0)
    took_s, outcome = world_s(busy)
    return sum(each.asked for each in outcome.services) / took_s


def _routers(loop: Loop) -> float:
    """Print a row per router; the slowest."""
    slowest = np.inf
    for router in Routing:
        speed(router, 1.0, loop)
        compiled, plain = speed(router, 300.0, loop), speed(router, 10.0, serve_arrivals)
        slowest = min(slowest, compiled)
        name = router.name.lower().replace("_", " ")
        print(
            f"{name:18} {compiled / 1e6:6.2f} M requests/s compiled, {plain / 1e6:.3f} M plain: {compiled / plain:.0f}x"
        )
    return float(slowest)


def _best(measure: Callable[[], float], times: int) -> float:
    return min(measure() for _ in range(times))


def main() -> int:
    """Print one row per router and one for each world; 1 when a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller fleet alone")
    quick = parser.parse_args().quick
    loop = compiled_loop()
    if loop is None:
        print("numba is not installed: install the extra `arena`", file=sys.stderr)
        return 1
    slowest = _routers(loop)
    print(f"{'busy world':18} {requests_per_s() / 1e6:6.2f} M requests/s, planning included")
    print(f"{'devices alone':18} {_best(fluid_s, 3):6.1f} s for an hour of 1,000 devices, new rates every minute")
    took: dict[int, float] = {}
    for devices in FLEETS[: 1 if quick else 2]:
        took[devices], outcome = world_s(world(devices, 40, 175.0 * min(devices, 2_000)))
        used = outcome.metric("gpus_mean")
        print(
            f"{'fluid world':18} {took[devices]:6.1f} s for an hour of {devices:,} devices ({used:.0f} in use), "
            f"planning included: {3600 / took[devices]:.0f}x as fast as time"
        )
    return 0 if slowest >= LEAST_PER_S and took[FLEETS[0]] < MOST_S else 1


if __name__ == "__main__":
    sys.exit(main())
