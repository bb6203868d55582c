"""Policies with pools in a simulated world: switched and moved under way, no request lost, nothing forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from lab.outcome import RunOutcome
from lab.world.ports import StateMemory
from lab.world.run import Run
from lab.world.scenario import PolicyChange, Traffic, WorldScenario
from lab.world.world import World, outcome_of
from solvers.domain.codec import canonical_json
from solvers.domain.ids import NodeId, PolicyName
from solvers.domain.ownership import device_owners
from solvers.domain.policy import Policy, Pool
from solvers.errors import FieldError, InputError
from tests.simulation.small_world import Watch, contender, planners, scenario, traffic

MORAK, JOINT = ("morak", "greedy"), ("joint", "greedy")


def pool(name: str, node: str, chain: tuple[str, ...], governor: str = "morak") -> Policy:
    return Policy(
        name=PolicyName(name),
        planners=chain,
        pool=Pool(nodes=(NodeId(node),)),
        governor=governor,
        cooldown_s=20.0,
        work_units=20,
    )


def planned_by(name: str, made: Traffic) -> Traffic:
    return replace(made, service=replace(made.service, policy=PolicyName(name)))


def world(first: tuple[Policy, ...], *changes: tuple[float, tuple[Policy, ...]]) -> WorldScenario:
    """A pool of three T4 on the left, one of three V100 on the right, a service for each."""
    return scenario(
        traffic=(planned_by("left", traffic("resnet50-trt", 40.0)), planned_by("right", traffic("vgg19-trt", 15.0))),
        policies=first,
        policy_changes=tuple(PolicyChange(at_s=at_s, policies=policies) for at_s, policies in changes),
        governor="morak",
        span_s=75.0,
    )


@dataclass(slots=True)
class Noting(StateMemory):
    """Notes when which state was handed out."""

    run: Run | None = None
    handed: list[tuple[float, str, bytes | None]] = field(default_factory=list)

    def recall(self, planner: str) -> bytes | None:
        found = self.kept.get(planner)
        assert self.run is not None
        self.handed.append((self.run.state.now_s, planner, found))
        return found


def run_noting(made: WorldScenario) -> tuple[RunOutcome, Noting, Run]:
    """A run with all invariants, and every device's replicas on their own policy's devices once things are calm."""
    run = World(made).begin(contender(), 3, planners)
    assert run.ports is not None
    memory = Noting(run=run)
    run.ports = replace(run.ports, memory=memory)
    run.go(lambda part: None, Watch(run).check)
    return outcome_of(run, contender()), memory, run


def untouched(outcome: RunOutcome) -> bool:
    """Whether every request was answered in time."""
    return all(each.late == each.dropped == 0.0 and each.asked > 800 for each in outcome.services)


def at_home(run: Run) -> bool:
    fleet = run.scenario.fleet
    owners = device_owners(
        run.scenario.policies_at(run.state.now_s), {node.id: node for node in fleet.nodes}, fleet.devices
    )
    names = {"demo/resnet50-trt": "left", "demo/vgg19-trt": "right"}
    return all(owners[item.device] == names[item.workload] for item in run.state.target.assignments)


def test_chains_and_controllers_change_hands_at_half_time_and_back() -> None:
    first = (pool("left", "n1", MORAK), pool("right", "n2", JOINT, "dfs"))
    second = (pool("left", "n1", JOINT, "clipper_l"), pool("right", "n2", MORAK, "batchdvfs"))
    outcome, memory, run = run_noting(world(first, (30.0, second), (60.0, first)))
    assert untouched(outcome)
    assert at_home(run)
    assert set(memory.kept) == {f"{side}/{planner}" for side in ("left", "right") for planner in ("morak", "joint")}
    mine = [(at_s, state) for at_s, planner, state in memory.handed if planner == "left/morak"]
    before = [state for at_s, state in mine if at_s < 30.0]
    after = [state for at_s, state in mine if at_s >= 60.0]
    assert before[0] is None
    assert not [at_s for at_s, _ in mine if 30.0 <= at_s < 60.0]
    assert after[0] is not None
    promoted = [deed.at_s for deed in outcome.deeds if deed.kind == "promotion"]
    assert promoted[0] == 0.0
    assert any(30.0 <= at_s < 60.0 for at_s in promoted)
    assert {deed.kind for deed in outcome.deeds} == {"promotion"}


def test_pools_change_sides_without_a_lost_request() -> None:
    chain = ("igniter", "greedy")
    first = (pool("left", "n1", chain), pool("right", "n2", chain))
    made = world(first, (30.0, (pool("left", "n2", chain), pool("right", "n1", chain))))
    outcome, _, run = run_noting(made)
    assert untouched(outcome)
    assert at_home(run)
    again = World(made).run(contender(), 3, planners, lambda part: None)
    assert canonical_json(again) == canonical_json(outcome)


def test_devices_are_governed_by_their_own_policy() -> None:
    made = world((pool("left", "n1", MORAK, "dfs"), pool("right", "n2", MORAK, "clipper_p")))
    _, _, run = run_noting(made)
    assert run.governing is not None
    found = {(str(device).split("-")[1], each.name) for device, each in run.governing.governed.items()}
    assert found == {("n1", "dfs"), ("n2", "clipper_p")}


def test_what_cannot_be_is_refused() -> None:
    bare = replace(pool("left", "n1", MORAK), pool=None)
    with pytest.raises(FieldError, match="needs a pool"):
        scenario(policies=(bare,))
    with pytest.raises(FieldError, match="no pool of its own"):
        scenario(policies=(pool("default", "n1", MORAK),))
    early = PolicyChange(at_s=60.0, policies=()), PolicyChange(at_s=30.0, policies=())
    with pytest.raises(FieldError, match="rise in time"):
        scenario(policy_changes=early)
    unknown = scenario(policies=(pool("left", "n1", MORAK, "nobody"),), governor="morak")
    with pytest.raises(InputError, match="no controller is called nobody"):
        World(unknown).begin(contender(), 1, planners)
