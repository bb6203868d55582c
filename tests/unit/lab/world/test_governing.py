"""What controllers of a simulated world are told of a device."""

from __future__ import annotations

from dataclasses import replace

from lab.world.world import World
from solvers.domain.ids import ReplicaId
from solvers.domain.snapshot import ReplicaState
from tests.simulation.small_world import contender, planners, scenario


def test_who_drains_beside_the_planned_ones_is_told() -> None:
    run = World(scenario(governor="morak")).begin(contender("greedy"), 1, planners)
    run.state.kernel.happen()
    governing = run.governing
    assert governing is not None
    ((device, governed), *_) = governing.governed.items()
    cell = run.state.cells[device]
    told = []
    for state in (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.READY):
        cell.processes[0].state = state
        governing.watch()
        told.append(governing._reading(cell, governed).beside)
    assert told == [False, True, True], "who ended in a period drew power in it"
    governing.period()
    governing.watch()
    assert not governing._reading(cell, governed).beside
    assert governing._reading(cell, governed).coming_part == 0.0
    starting = replace(cell.processes[0].item, replica=ReplicaId("one-more"))
    cell.processes.append(replace(cell.processes[0], item=starting, state=ReplicaState.STARTING))
    assert governing._reading(cell, governed).coming_part > 0.0
