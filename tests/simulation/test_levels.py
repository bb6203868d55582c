"""The fluid mode beside the request level, whole worlds of them: violations and completions within five in a hundred.

Both plan once for a declared rate and then get a part of it, steady or in bursts; at a spread of loads the fluid mode
is told apart by parts of what was asked. Replicas are chosen at random by weight, as the fluid splits rates; a router
that looks at queues does better than any fluid, which is stated too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.outcome import RunOutcome
from lab.world.arrivals import ArrivalPattern, Bursts, Steady
from lab.world.scenario import Level, Open, Rhythm, Routing, Traffic, WorldScenario
from solvers.domain.ids import PolicyName
from solvers.domain.policy import Policy
from tests.simulation.small_world import run_world, scenario, service

TIGHT = Policy(
    name=PolicyName("tight"), work_units=100, utilisation_max=0.95, demand_headroom=1.0, demand_noise_sigmas=0.0
)


def world(part: float, *, bursts: bool, routing: Routing = Routing.WEIGHTED_RANDOM) -> WorldScenario:
    def asked(rate_rps: float) -> ArrivalPattern:
        if not bursts:
            return Steady(rate_rps=rate_rps * part)
        return Bursts(
            rate_rps_calm=0.7 * part * rate_rps,
            rate_rps_burst=1.6 * part * rate_rps,
            calm_s_mean=20.0,
            burst_s_mean=10.0,
        )

    return scenario(
        span_s=150.0,
        warmup_s=10.0,
        policy=TIGHT,
        rhythm=Rhythm(cycle_s=1000.0),
        traffic=tuple(
            Traffic(service=service(name, rate_rps, limit_ms), load=Open(pattern=asked(rate_rps)), routing=routing)
            for name, rate_rps, limit_ms in (("resnet50-trt", 900.0, 60.0), ("vgg19-trt", 150.0, 100.0))
        ),
    )


def parts(outcome: RunOutcome) -> list[tuple[float, float]]:
    """Of what was asked: violated and completed, service by service."""
    return [((each.late + each.dropped) / each.asked, each.completed / each.asked) for each in outcome.services]


@pytest.mark.parametrize("bursts", [False, True])
@pytest.mark.parametrize("part", [0.5, 0.8, 1.0, 1.4, 2.5])
def test_violations_and_completions_agree(part: float, bursts: bool) -> None:
    made = world(part, bursts=bursts)
    single, fluid = run_world(made), run_world(replace(made, level=Level.FLUID))
    for one, other in zip(parts(single), parts(fluid), strict=True):
        assert one == pytest.approx(other, abs=0.05)
    energy, energy_fluid = single.metric("energy_kwh"), fluid.metric("energy_kwh")
    assert energy == pytest.approx(energy_fluid, rel=0.05)
    for one_service, other_service in zip(single.services, fluid.services, strict=True):
        assert one_service.latency_ms_p99 == pytest.approx(other_service.latency_ms_p99, rel=0.35)


@pytest.mark.parametrize("part", [0.8, 2.5])
def test_who_drops_nothing_is_late_alike(part: float) -> None:
    made = world(part, bursts=False)
    # Shorter than it takes to fill the half minute of queue that the fluid has.
    made = replace(made, span_s=50.0, traffic=tuple(replace(each, drop=False) for each in made.traffic))
    single, fluid = run_world(made), run_world(replace(made, level=Level.FLUID))
    for one, other in zip(parts(single), parts(fluid), strict=True):
        assert one == pytest.approx(other, abs=0.05)


def test_the_loads_reach_from_calm_to_drowned() -> None:
    calm, drowned = (parts(run_world(world(part, bursts=False)))[0][0] for part in (0.5, 2.5))
    assert calm < 0.01
    assert drowned > 0.1


def test_a_router_that_looks_at_queues_beats_the_fluid() -> None:
    seen, blind = (
        run_world(world(1.0, bursts=True, routing=routing))
        for routing in (Routing.LEAST_OUTSTANDING, Routing.WEIGHTED_RANDOM)
    )
    assert parts(seen)[0][0] <= parts(blind)[0][0]
