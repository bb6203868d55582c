"""Planning where nobody measured: from the built-in library on, and better with the first measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app import kinds, library
from app.clock import SystemClock
from app.services.beliefs.beliefs import Belief, Beliefs
from app.services.beliefs.completion import Completion
from app.services.declared.fleet import Fleet
from app.services.planning.planning import Leader, Planning, PlanningParts
from app.services.planning.snapshots import StoreObserver
from app.store import plans, profiles, targets
from app.workers.solve_pool import SolvePool
from solvers.cycle.record import CycleRecord
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.plan import Assignment, Plan
from solvers.domain.profile import ProfileOrigin, ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Slo
from solvers.errors import InputError
from tests.integration.planner.world import CLUSTER, World
from tests.unit.app.services.whatif.small_fleet import POLICY, PROJECT, device, node, profile, service

pytestmark = pytest.mark.integration


@pytest.fixture
def bare(world: World) -> World:
    """A cluster after its first start and the joining of two hosts: no model, GPU type or profile of ours."""
    Fleet(world.database, CLUSTER).prepare()
    types = library.facts().gpu_types
    world.declare(PROJECT, POLICY, node("a"), node("b"))
    world.declare(device("GPU-a0", "a", types["t4"]), device("GPU-a1", "a", types["t4"], 1))
    world.declare(device("GPU-b0", "b", types["a100"]))
    world.declare(replace(service("labels", rate_rps=40.0), slo=Slo(latency_ms=400.0)))
    for name in ("a", "b"):
        world.join(name)
        world.report(name)
    return world


@pytest.fixture
def planning(bare: World, pool: SolvePool) -> Planning:
    parts = PlanningParts(
        database=bare.database,
        runner=pool,
        clock=SystemClock(),
        reporter=SilentReporter(),
        cluster=CLUSTER,
        software_version="test",
        beliefs=Beliefs(bare.database),
    )
    return Planning(parts)


def lead(world: World) -> Leader:
    with world.database.transaction() as session:
        lease = targets.acquire_lease(session, targets.PLANNER, "planner-1", 60.0)
    assert lease is not None
    return Leader(holder="planner-1", fencing=lease.token)


def planned(world: World, record: CycleRecord) -> Plan:
    assert record.plan_digest is not None
    with world.database.reading() as session:
        return plans.load(session, record.plan_digest)


def picture(world: World) -> Snapshot:
    completion = Completion(Beliefs(world.database))
    return StoreObserver(world.database, CLUSTER, completion).observe()


def facts_of(item: Assignment) -> dict[str, float | str]:
    return {fact.name: fact.value for fact in item.reasons[0].facts}


def measured(count: int = 16) -> list[ProfilePoint]:
    """Scattered measurements of a fast replica."""
    cells = [(2**power, share) for power in range(6) for share in range(10 + 5 * (power % 2), 101, 15)]
    return [
        ProfilePoint(
            model=ModelName("resnet50"),
            gpu_type=GpuTypeName("t4"),
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=1590,
            latency_ms_mean=1.0 + 0.4 * batch * 100 / share,
        )
        for batch, share in cells[:: len(cells) // count][:count]
    ]


def test_a_service_is_planned_with_nothing_measured(bare: World, planning: Planning) -> None:
    (record,) = planning.run_lanes(lead(bare))
    assert record.decision is not None
    assert record.decision.promote
    assert [finding for finding in record.findings if finding.severity == "fatal"] == []
    plan = planned(bare, record)
    assert plan.unplaced == ()
    (item,) = plan.assignments
    assert item.workload == "vision/labels"
    assert item.latency_ms_planned is not None
    assert 0 < item.latency_ms_planned <= 400
    assert facts_of(item)["profile_origin"] in ("public", "scaled")
    assert "resnet50" in str(facts_of(item)["profile_source"])
    with bare.database.reading() as session:
        assert targets.generation(session, CLUSTER) == 1


def test_every_pair_in_the_fleet_is_believed_carefully(bare: World) -> None:
    found = {item.gpu_type: item for item in picture(bare).profiles}
    assert set(found) == {"t4", "a100"}
    for item in found.values():
        assert len(item.points) == 60
        assert {point.origin for point in item.points} <= {ProfileOrigin.PUBLIC, ProfileOrigin.SCALED}
        assert all(point.memory_mib and point.latency_ms_p99 for point in item.points)
    bold = replace(POLICY, caution_std=0.0)
    bare.declare(bold)
    easy = {item.gpu_type: item for item in picture(bare).profiles}
    for name, item in found.items():
        pairs = list(zip(easy[name].points, item.points, strict=True))
        assert all(before.latency_ms_mean < after.latency_ms_mean for before, after in pairs)


def test_measurements_replace_what_was_believed_and_teach_the_rest(bare: World) -> None:
    before = {(point.batch, point.share_pct_sm): point for point in of_t4(picture(bare))}
    points = measured()
    with bare.database.transaction() as session:
        profiles.put_points(session, points)
    after = {(point.batch, point.share_pct_sm): point for point in of_t4(picture(bare))}
    for point in points:
        kept = after[point.batch, point.share_pct_sm]
        assert (kept.origin, kept.latency_ms_mean) == (ProfileOrigin.MEASURED, point.latency_ms_mean)
        assert kept.memory_mib
    rest = [key for key in before if after[key].origin is ProfileOrigin.FITTED]
    assert len(rest) > 30
    for key in rest:
        truth = 1.0 + 0.4 * key[0] * 100 / key[1]
        assert abs(after[key].latency_ms_mean - truth) < abs(before[key].latency_ms_mean - truth)
        assert after[key].latency_ms_mean == pytest.approx(truth, rel=0.25)


def of_t4(snapshot: Snapshot) -> tuple[ProfilePoint, ...]:
    return next(item.points for item in snapshot.profiles if item.gpu_type == "t4")


def test_a_measured_grid_gets_nothing_added(bare: World) -> None:
    grid = profile(library.facts().gpu_types["t4"])
    with bare.database.transaction() as session:
        profiles.put_points(session, grid.points)
    assert of_t4(picture(bare)) == tuple(
        sorted(grid.points, key=lambda point: (point.clock_mhz_sm, point.share_pct_sm, point.batch))
    )


def test_a_replayed_plan_is_the_same(bare: World, planning: Planning, pool: SolvePool) -> None:
    (record,) = planning.run_lanes(lead(bare))
    assert bare.replays(pool, record.id)


def test_built_in_documents_come_once_and_leave_others_alone(world: World) -> None:
    own = replace(library.facts().models["resnet50"], launch_s=77.0)
    world.declare(own)
    fleet = Fleet(world.database, CLUSTER)
    fleet.prepare()
    names = set(world.column("SELECT name FROM gpu_types"))
    assert len(names) >= 25
    assert names == set(library.facts().gpu_types)
    assert world.column("SELECT spec->>'launch_s' FROM models WHERE name = 'resnet50'") == ["77"]
    assert world.column("SELECT count(*) FROM events WHERE name = 'library.loaded'") == [1]
    world.delete(kinds.GPU_TYPE, "k80")
    fleet.prepare()
    assert set(world.column("SELECT name FROM gpu_types")) == names - {"k80"}
    assert world.column("SELECT count(*) FROM events WHERE name = 'library.loaded'") == [1]


def test_the_picture_leaves_out_what_nothing_is_about(bare: World) -> None:
    found = picture(bare)
    assert {item.name for item in found.gpu_types} == {"t4", "a100"}
    assert {item.name for item in found.models} == {"resnet50"}


def test_a_belief_is_made_once_until_something_changes(bare: World) -> None:
    beliefs = Beliefs(bare.database)
    first = beliefs.belief()
    assert beliefs.belief() is first
    points = measured()
    with bare.database.transaction() as session:
        profiles.put_points(session, points)
    second = beliefs.belief()
    assert second is not first
    assert second.evidence.points_of("resnet50", "t4") == len(points)
    with bare.database.transaction() as session:
        profiles.put_points(session, [replace(points[0], latency_ms_mean=99.0)])
    assert beliefs.belief() is not second


class Broken(Beliefs):
    """A belief that cannot be made."""

    def belief(self) -> Belief:
        raise InputError("the numbers make no sense")


def test_a_belief_that_fails_does_not_stop_planning(bare: World) -> None:
    completion = Completion(Broken(bare.database))
    found = StoreObserver(bare.database, CLUSTER, completion).observe()
    assert found.profiles == ()
    assert len(found.devices) == 3
