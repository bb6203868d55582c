"""Morak's printed states as whole worlds: what a service with a full queue is told to have had, at both levels.

The cycle decides what is completed, the answer's time what counts against a limit: books, sums and controllers agree.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.claims.morak.rules import Triple, morak_triples
from lab.outcome import RunOutcome
from lab.world.scenario import Level, Rhythm, Saturating, ScenarioFleet, Traffic, WorldScenario
from lab.world.world import World
from solvers.domain.change import Target
from solvers.domain.device import Node
from solvers.domain.ids import GpuTypeName, ModelName, NodeId, ReplicaId, WorkloadId
from solvers.domain.plan import Envelope
from solvers.domain.workload import Slo, SloScope
from solvers.sim.truth.catalogue import GPUS
from tests.builders import gpu_type
from tests.simulation.small_world import contender, devices, model, planners, replica, run_world, scenario, service

SPAN_S = 30.0
TURING = GPUS["rtx-2080ti"]


def state_of(triple: Triple, level: Level, limit_ms: float) -> WorldScenario:
    """A board that holds the printed replicas from the first moment, and is left alone."""
    like = replace(devices("t4", "n1", 1)[0], gpu_type=GpuTypeName(TURING.name), sm_count=TURING.sm_count)
    kind = replace(
        gpu_type("t4"),
        name=GpuTypeName(TURING.name),
        sm_count=TURING.sm_count,
        clocks_mhz_sm=TURING.clocks_mhz_sm,
        memory_mib=TURING.memory_mib,
    )
    board = replace(like, memory_mib=TURING.memory_mib)
    clock = TURING.clock_mhz_sm_max
    items = tuple(
        replica(
            ordinal,
            device=board.id,
            replica=ReplicaId(f"demo/googlenet#{ordinal}"),
            workload=WorkloadId("demo/googlenet"),
            model=ModelName("googlenet"),
            share_pct_sm=triple.share_pct_sm,
            memory_mib_limit=2600,
            batch=triple.batch,
            envelope=Envelope(batch_min=1, batch_max=triple.batch, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
        )
        for ordinal in range(triple.replicas)
    )
    asked = replace(
        service("googlenet", 1000.0), slo=Slo(latency_ms=limit_ms, scope=SloScope.EXECUTION), replicas_max=4
    )
    return scenario(
        span_s=SPAN_S,
        latency_noise=0.0,
        level=level,
        fleet=ScenarioFleet(gpu_types=(kind,), nodes=(Node(id=NodeId("n1")),), devices=(board,)),
        models=(model("googlenet"),),
        traffic=(Traffic(service=asked, load=Saturating()),),
        rhythm=Rhythm(cycle_s=1000.0),
        standing=Target(assignments=items),
    )


def left_alone(made: WorldScenario) -> RunOutcome:
    return run_world(made, contender("keep-target"))


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("triple", morak_triples(), ids=["alone", "four"])
def test_a_world_shows_all_that_is_printed(triple: Triple, level: Level) -> None:
    found = left_alone(state_of(triple, level, 60.0))
    assert found.services[0].completed / SPAN_S == pytest.approx(triple.throughput_rps_stated, rel=0.01)
    assert found.metric("power_w_peak") == pytest.approx(triple.power_w_stated, rel=0.01)
    for factor, over_pct in ((0.99, 100.0), (1.01, 0.0)):
        limited = left_alone(state_of(triple, level, factor * triple.latency_ms_stated))
        assert limited.metric("execution_over_limit_pct") == pytest.approx(over_pct)
        assert limited.metric("violation_pct") == pytest.approx(over_pct)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize(("limit_ms", "shrinks"), [(34.8, True), (36.5, False)])
def test_a_controller_reads_the_time_of_answers(level: Level, limit_ms: float, shrinks: bool) -> None:
    shared = morak_triples()[1]
    # Between the cycle, 34.4 ms, and the answers' 35.2: who reads the cycle finds nothing to mend.
    run = World(state_of(shared, level, limit_ms)).begin(contender("keep-target", governor="morak"), 1, planners)
    least = [shared.batch]
    run.go(
        lambda part: None,
        lambda: least.append(min(each.batch for cell in run.state.cells.values() for each in cell.processes)),
    )
    assert (min(least) < shared.batch) is shrinks
