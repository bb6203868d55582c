"""From promotion to routes with simulated nodes: while replicas move, merge or end, somebody ready takes the load, and
no device ever holds more than it has.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from agents.devices.fake.host import FakeDevices, FakeOrder
from agents.loop.apply import Applier
from agents.loop.collect import Collector
from agents.wire import OVERLAP, NodeTarget, decode
from app.services.planning.rollout import Author, promote
from app.services.planning.snapshots import StoreObserver
from app.services.seen.routes import RouteTable
from app.store import ingest, nodes, plans, targets
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import Lane
from solvers.domain.codec import digest
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Objective
from tests.integration.planner.world import BOOT, CLUSTER, World, check_history
from tests.integration.store.samples import joining
from tests.unit.app.services.whatif.small_fleet import POLICY, PROJECT, T4, assignment, device, model, node, service

pytestmark = pytest.mark.integration
LABELS = "vision/labels"
STEP_S = 0.5
ROUTES_EVERY_S = 3.0
"""How old the routes of whoever sends the load may be."""


class Clock:
    """Time of the simulated nodes."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Fleet:
    """Two simulated nodes with two T4 each, and users who send load by the routes of a moment ago."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = Clock()
        self.lost = 0
        self.empty_handed = 0
        self._reader = RouteTable(world.database, CLUSTER)
        self._routes: list[str] = []
        self._routes_at_s = 0.0
        world.declare(POLICY, PROJECT, T4, replace(model(), launch_s=6.0), service("labels"))
        self.fakes: dict[str, FakeDevices] = {}
        self.appliers: dict[str, Applier] = {}
        self._collectors: dict[str, Collector] = {}
        for name in ("a", "b"):
            fakes = FakeDevices(FakeOrder(node=name, gpu_types=("T4", "T4")), self.clock)
            self.fakes[name] = fakes
            self.appliers[name] = Applier(name, fakes, self.clock, random.Random(1))
            self._collectors[name] = Collector(name, BOOT, fakes.collect, (self.clock, time.time))
            world.declare(node(name))
            world.declare(*(device(each.uuid, name, T4, each.index) for each in fakes.inventory()))
            with world.database.transaction() as session:
                nodes.join(session, joining(name, BOOT, endpoint=f"http://{name}"))
            self.can(name, OVERLAP)

    def can(self, name: str, *capabilities: str) -> None:
        with self.world.database.transaction() as session:
            for each in self.fakes[name].inventory():
                nodes.note_device(session, each.uuid, driver_version="", capabilities=dict.fromkeys(capabilities, ""))

    def uuid(self, name: str, index: int = 0) -> str:
        return self.fakes[name].inventory()[index].uuid

    def promote(self, *assignments: Assignment) -> None:
        snapshot = StoreObserver(self.world.database, CLUSTER).observe()
        plan = Plan(
            snapshot=digest(snapshot),
            parent=snapshot.target.generation,
            planner="test",
            planner_version="1",
            seed=1,
            assignments=tuple(sorted(assignments, key=lambda item: item.replica)),
            settings=(),
            unplaced=(),
            objective=Objective(),
        )
        with self.world.database.transaction() as session:
            plans.put(session, NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="test"))
        promote(self.world.database, CLUSTER, plan, snapshot, Author(name="test"), Lane.ACT)

    def pass_s(self, seconds: float, *, loaded: bool = True) -> None:
        """Let nodes work, report and take load."""
        for _ in range(round(seconds / STEP_S)):
            for name, applier in self.appliers.items():
                self._work(name, applier)
            self._check_devices()
            if loaded:
                self._send()
            self.clock.now_s += STEP_S

    def held(self) -> set[tuple[str, int]]:
        return {
            (worker.spec.replica, worker.spec.share_pct_sm)
            for fakes in self.fakes.values()
            for worker in fakes.workers()
        }

    def _work(self, name: str, applier: Applier) -> None:
        with self.world.database.reading() as session:
            stored = targets.node_document(session, name)
        if stored is not None:
            applier.accept(decode(NodeTarget, stored.document))
        applier.run_pass()
        report = self._collectors[name].cut(applier.generation_applied)
        with self.world.database.raw() as connection:
            ingest.ingest(connection, [report])

    def _check_devices(self) -> None:
        for fakes in self.fakes.values():
            for each in fakes.inventory():
                held = [worker.spec for worker in fakes.workers() if worker.uuid == each.uuid]
                assert sum(spec.memory_mib_limit for spec in held) <= each.memory_mib

    def _send(self) -> None:
        if self.clock.now_s - self._routes_at_s >= ROUTES_EVERY_S:
            self._routes_at_s = self.clock.now_s
            found = self._reader.every(None).items
            assert all(replica.weight > 0 for item in found for replica in item.replicas)
            self._routes = [f"{(each.endpoint or '')[7:]} {each.replica}" for item in found for each in item.replicas]
        self.empty_handed += not self._routes
        for route in self._routes:
            name, replica = route.split()
            answer = self.fakes[name].offer({replica: 1.0}, STEP_S)
            self.lost += len(answer.unknown) + len(answer.not_ready)


@pytest.fixture
def fleet(world: World) -> Fleet:
    return Fleet(world)


def on(fleet: Fleet, name: str, ordinal: int, share_pct_sm: int, index: int = 0) -> Assignment:
    return assignment(LABELS, fleet.uuid(name, index), ordinal=ordinal, share_pct_sm=share_pct_sm)


def settle(fleet: Fleet, *assignments: Assignment) -> None:
    fleet.promote(*assignments)
    fleet.pass_s(10.0, loaded=False)
    assert {share for _, share in fleet.held()} == {item.share_pct_sm for item in assignments}


def test_a_replica_that_moves_to_another_node_leaves_no_gap(fleet: Fleet) -> None:
    settle(fleet, on(fleet, "a", 0, 40))
    fleet.pass_s(1.0)
    fleet.promote(on(fleet, "b", 0, 60))
    fleet.pass_s(50.0)
    assert (fleet.lost, fleet.empty_handed) == (0, 0)
    assert fleet.held() == {("vision/labels#0", 60)}
    check_history(fleet.world, [1, 2])


def test_several_that_become_one_serve_until_it_is_ready(fleet: Fleet) -> None:
    settle(fleet, on(fleet, "a", 0, 40), on(fleet, "a", 1, 30), on(fleet, "a", 2, 30, 1))
    fleet.pass_s(1.0)
    fleet.promote(on(fleet, "b", 0, 100))
    fleet.pass_s(3.0)
    assert fleet.held() >= {("vision/labels#1", 30), ("vision/labels#2", 30)}
    fleet.pass_s(50.0)
    assert (fleet.lost, fleet.empty_handed) == (0, 0)
    assert fleet.held() == {("vision/labels#0", 100)}


def test_one_that_ends_for_good_loses_nothing_either(fleet: Fleet) -> None:
    settle(fleet, on(fleet, "a", 0, 40), on(fleet, "b", 1, 40))
    fleet.pass_s(1.0)
    fleet.promote(on(fleet, "a", 0, 40))
    fleet.pass_s(20.0)
    assert (fleet.lost, fleet.empty_handed) == (0, 0)
    assert fleet.held() == {("vision/labels#0", 40)}


def test_the_next_promotion_does_not_cut_a_move_short(fleet: Fleet) -> None:
    settle(fleet, on(fleet, "a", 0, 40))
    fleet.pass_s(1.0)
    fleet.promote(on(fleet, "b", 0, 60))
    fleet.pass_s(2.0)
    fleet.promote(on(fleet, "b", 0, 60), on(fleet, "b", 1, 60, 1))
    fleet.pass_s(50.0)
    assert (fleet.lost, fleet.empty_handed) == (0, 0)
    assert fleet.held() == {("vision/labels#0", 60), ("vision/labels#1", 60)}
    check_history(fleet.world, [1, 2, 3])


def test_where_its_share_is_needed_the_old_goes_on_until_the_new_is_ready(fleet: Fleet) -> None:
    settle(fleet, on(fleet, "a", 0, 40))
    fleet.pass_s(1.0)
    fleet.promote(on(fleet, "b", 0, 60), on(fleet, "a", 1, 80))
    fleet.pass_s(50.0)
    assert (fleet.lost, fleet.empty_handed) == (0, 0)
    assert fleet.held() == {("vision/labels#0", 60), ("vision/labels#1", 80)}


def test_an_agent_that_lets_no_shares_overlap_is_told_of_none(fleet: Fleet) -> None:
    settle(fleet, on(fleet, "a", 0, 40))
    fleet.can("a")
    fleet.promote(on(fleet, "b", 0, 60), on(fleet, "a", 1, 80))
    fleet.pass_s(1.0)
    assert ("vision/labels#0", 40) not in fleet.held()
    fleet.pass_s(49.0, loaded=False)
    assert fleet.held() == {("vision/labels#0", 60), ("vision/labels#1", 80)}
