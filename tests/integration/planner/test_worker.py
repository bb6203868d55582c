"""The planner worker's loops in this process: prompt plans, alarms, hand-over, survival of a lost database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app import bootstrap
from app.bootstrap import build_planner
from app.services.planning.planning import Leader
from app.settings import Settings
from app.store import targets
from app.workers.pace import CycleCause
from app.workers.scheduler import PlannerWorker
from app.workers.solve_pool import PoolLimits, SolvePool
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import NodeId, PolicyName
from solvers.domain.policy import CostBasis, Pool
from solvers.errors import EngineError, TransientError
from solvers.planners.base import PlanRequest, Thought
from tests.integration.planner.world import World, check_history
from tests.unit.app.services.whatif.small_fleet import SWIFT, service
from tests.unit.app.workers.planted import MARK, build_lingering
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., PlannerWorker]
NEVER_S = 10_000.0


@pytest.fixture(autouse=True)
def _swift(world: World) -> None:
    world.policy = SWIFT


class LentPool(SolvePool):
    """The session's child process for a worker, which starts and ends with a pool of its own otherwise."""

    def __init__(self, pool: SolvePool) -> None:
        self._pool = pool

    def warm(self) -> None:
        """It is."""

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        return self._pool.think(planner, request, state)

    def close(self) -> None:
        """Others plan with it."""


@pytest.fixture(autouse=True)
def _lent_pool(pool: SolvePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_pool", lambda *_: LentPool(pool))


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start a worker whose loops sleep for ever, unless told otherwise; the watch always runs."""
    started: list[PlannerWorker] = []
    quiet = Settings(
        database_url=database_url,
        home=tmp_path,
        place_interval_s=NEVER_S,
        tune_interval_s=NEVER_S,
        account_interval_s=NEVER_S,
        lease_ttl_s=9.0,
    )

    def start(**changes: float) -> PlannerWorker:
        worker = build_planner(replace(quiet, **changes))  # type: ignore[arg-type]
        worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.stop()


def generation(world: World) -> int:
    found = world.column("SELECT generation FROM cluster_state")
    return int(str(found[0])) if found else 0


def cycles_closed(world: World) -> int:
    return int(str(world.column("SELECT count(*) FROM cycles WHERE state = 'closed'")[0]))


def settled(world: World) -> int:
    """How many cycles are closed once none runs."""
    wait_until(lambda: world.column("SELECT count(*) FROM cycles WHERE state = 'running'") == [0], "no cycle runs")
    return cycles_closed(world)


def test_changed_documents_and_a_new_node_are_planned_promptly(world: World, start: Start) -> None:
    world.build()
    start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    world.declare(service("labels", rate_rps=150.0))
    wait_until(lambda: generation(world) == 2, "the changed service is planned")
    before = settled(world)
    world.report("a")
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 day' WHERE node_id = 'b' RETURNING 1")
    wait_until(lambda: cycles_closed(world) > before, "a lost node is noticed")
    before = settled(world)
    world.report("b")
    wait_until(lambda: cycles_closed(world) > before, "its return is noticed")
    settled(world)
    assert world.column("SELECT DISTINCT state FROM cycles") == ["closed"]


def test_the_share_of_a_job_that_ended_is_planned_for_promptly(world: World, start: Start) -> None:
    world.build()
    worker = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    leader, before = worker._leader(), settled(world)
    assert leader is not None
    columns = "(kind, project, name, done, executions, executed_ms, begun_at)"
    world.rows(f"INSERT INTO job_progress {columns} VALUES ('job', 'vision', 'train', 9, 1, 1.0, now()) RETURNING 1")
    worker._watch(leader)
    assert cycles_closed(world) == before, "it goes on"
    world.rows("UPDATE job_progress SET finished_at = now() RETURNING 1")
    wait_until(lambda: cycles_closed(world) > before, "its end is noticed")


def test_a_child_that_does_not_start_is_started_by_the_first_plan(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def killed(_: LentPool) -> None:
        raise EngineError("the planner process did not start: exit code -9")

    monkeypatch.setattr(LentPool, "warm", killed)
    world.build()
    start()
    wait_until(lambda: generation(world) == 1, "a first plan")
    told = [(each.levelname, each.exc_info) for each in caplog.records if each.message == "solve_pool.failed"]
    assert told == [("WARNING", None)]


def test_who_waits_to_lead_has_looked_already_and_written_nothing(world: World, start: Start) -> None:
    world.build()
    start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    closed = settled(world)
    second = start()
    completion = second._parts.planning._observer._completion
    assert completion is not None
    wait_until(lambda: completion._kept is not None, "it holds what is believed")
    assert second._leader() is None
    assert cycles_closed(world) == closed


def waits_for(world: World, worker: PlannerWorker, leader: Leader, node: str, before: int) -> None:
    """Nothing is planned before the last node is heard, and then nothing is moved. `before`: cycles until then."""
    for _ in range(3):
        worker._watch(leader)
        worker._place(leader)
    assert settled(world) == before
    world.report(node)
    worker._place(leader)
    assert settled(world) > before
    assert generation(world) == 1


def test_nodes_that_come_back_to_us_one_after_the_other_are_not_lost(world: World, start: Start) -> None:
    world.build()
    worker = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    leader = worker._leader()
    assert leader is not None
    before = settled(world)
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 day' RETURNING 1")
    wait_until(lambda: cycles_closed(world) > before, "it is noticed that nobody is heard")
    before = settled(world)
    world.report("a")
    waits_for(world, worker, leader, "b", before)


def test_who_comes_back_while_a_cycle_begins_leaves_the_others_unlost(world: World, start: Start) -> None:
    world.build()
    worker = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    leader = worker._leader()
    assert leader is not None
    settled(world)
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 day' RETURNING 1")
    nobody = worker._look()
    before = settled(world)
    # The cycle's own picture is taken later than the look that caused it: everything stands on the other node.
    world.report("b")
    worker._cycle(leader, CycleCause.RETRY, nobody)
    assert settled(world) > before
    newest = "SELECT decision -> 'reasons' FROM cycles WHERE state = 'closed' ORDER BY ended_at DESC LIMIT 1"
    assert world.column(newest) == [["stale_data"]]


def test_nodes_that_come_back_after_the_database_was_away_are_not_lost(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away nobody can look, and see that no node is heard."""

    def away(*_: object) -> None:
        raise TransientError("database: connection refused")

    world.build()
    worker = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    with monkeypatch.context() as patched:
        patched.setattr(targets, "acquire_lease", away)
        wait_until(lambda: worker._parts.keeper.unreached_at_s is not None, "it is noticed")
    wait_until(worker._leader, "it leads")
    leader = worker._leader()
    assert leader is not None
    before = settled(world)
    world.report("b")
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 day' WHERE node_id = 'a' RETURNING 1")
    waits_for(world, worker, leader, "a", before)


def test_nothing_new_causes_no_cycle(world: World, start: Start) -> None:
    # The nodes, which say no more, would be lost before a busy machine has planned.
    world.policy = replace(world.policy, device_silent_after_s=3600.0)
    world.build()
    worker = start(tune_interval_s=0.2)
    wait_until(lambda: generation(world) == 1, "the first plan")
    leader = worker._leader()
    assert leader is not None
    # A busy machine may have had no plan in time at first, and tried again.
    wait_until(lambda: worker._memory.failures == 0 and worker._memory.sight is not None, "the cycle has ended")
    before = settled(world)
    for _ in range(3):
        worker._watch(leader)
        worker._tune(leader)
    assert cycles_closed(world) == before


def test_demand_is_judged_by_the_policy_that_decides_on_its_service(world: World, start: Start) -> None:
    edge = replace(SWIFT, name=PolicyName("edge"), pool=Pool(nodes=(NodeId("a"),)), demand_headroom=10.0)
    world.build(replace(service("labels", rate_rps=10.0), policy=edge.name), service("search"))
    world.declare(edge)
    worker = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    wait_until(lambda: worker._memory.failures == 0 and worker._memory.sight is not None, "the cycle has ended")
    leader, closed = worker._leader(), settled(world)
    assert leader is not None
    # More than half of what stands would be too much of it by the margin of the policy `default`.
    world.offer({"vision/labels": 20.0})
    worker._tune(leader)
    assert cycles_closed(world) == closed


def test_demand_beyond_what_stands_raises_an_alarm(world: World, start: Start) -> None:
    world.build()
    start(tune_interval_s=0.2)
    wait_until(lambda: generation(world) == 1, "the first plan")
    world.offer({"vision/labels": 170.0})
    wait_until(lambda: generation(world) == 2, "demand moves the target")
    check_history(world, [1, 2])


def test_a_jump_is_planned_for_by_whoever_watches(world: World, start: Start) -> None:
    world.build()
    start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    world.offer({"vision/labels": 170.0})
    wait_until(lambda: generation(world) == 2, "the jump moves the target")
    check_history(world, [1, 2])


def test_a_rise_is_looked_at_once(world: World, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    world.policy = replace(world.policy, device_silent_after_s=3600.0)
    world.build()
    worker = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    wait_until(lambda: worker._memory.failures == 0 and worker._memory.sight is not None, "the cycle has ended")
    leader = worker._leader()
    assert leader is not None
    settled(world)
    looks: list[str] = []
    monkeypatch.setattr(worker, "_tune", lambda _: looks.append("look"))
    for rate, seen in ((60.0, 0), (20_000.0, 1), (20_000.0, 1), (40_000.0, 2), (40_000.0, 2)):
        world.offer({"vision/search": rate})
        worker._listen(leader)
        assert len(looks) == seen, rate


def test_the_place_loop_plans_again_by_itself(world: World, start: Start) -> None:
    world.build()
    start(place_interval_s=0.3)
    wait_until(lambda: cycles_closed(world) >= 3, "several cycles")
    check_history(world, [1])


def test_a_cooldown_is_sat_out_and_then_acted_on(world: World, start: Start) -> None:
    world.build(service("labels", rate_rps=150.0))
    world.declare(replace(world.policy, cost_basis=CostBasis.SHARE, cooldown_s=3.0))
    start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    world.declare(service("labels", rate_rps=5.0))
    wait_until(lambda: generation(world) == 2, "the cheaper plan waits for the cooldown and comes")
    assert world.column("SELECT count(*) FROM cycles WHERE decision -> 'reasons' ? 'cooldown'") >= [1]


def test_the_second_worker_takes_over_when_the_first_ends(world: World, start: Start) -> None:
    world.build()
    first = start()
    wait_until(lambda: generation(world) == 1, "the first plan")
    second = start()
    assert second._leader() is None
    first.stop()
    wait_until(second._leader, "the second leads")
    world.declare(service("labels", rate_rps=150.0))
    wait_until(lambda: generation(world) == 2, "the second plans")
    check_history(world, [1, 2])
    assert world.column("SELECT count(DISTINCT fencing_token) FROM target_history") == [2]


def test_a_stop_in_the_middle_of_a_cycle_stands_nobody_in(
    world: World, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the joint planner had handed over was promoted as that of one who failed, while the process ended."""
    mark = tmp_path / "found"
    monkeypatch.setenv(MARK, str(mark))
    limits = PoolLimits(grace_s=NEVER_S)
    monkeypatch.setattr(bootstrap, "_pool", lambda *_: SolvePool(build_lingering, SilentReporter(), limits, "fork"))
    world.build()
    world.declare(replace(world.policy, planners=("joint", "greedy"), deadline_s=60.0))
    caplog.set_level(logging.INFO)
    worker = start()
    wait_until(mark.exists, "a plan was handed over")
    worker.stop()
    assert (generation(world), world.column("SELECT state FROM cycles")) == (0, ["aborted"])
    told = {record.getMessage() for record in caplog.records if record.name.startswith("headroom")}
    assert {"loop.ended", "planner.ended"} <= told
    assert not {"planner.failed", "plan.stood_in", "plan.promoted", "loop.failed", "loop.delayed"} & told


def test_lost_connections_cost_time_only(world: World, start: Start) -> None:
    world.build()
    start(tune_interval_s=0.2, place_interval_s=0.3)
    wait_until(lambda: generation(world) == 1, "the first plan")
    for rate in (150.0, 5.0, 120.0):
        before = cycles_closed(world)
        assert world.column(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = 'headroom planner' AND datname = current_database()"
        ) > [0]
        world.declare(service("labels", rate_rps=rate))
        wait_until(lambda before=before: cycles_closed(world) >= before + 2, "cycles go on")
    (last,) = world.column("SELECT max(generation) FROM target_history")
    check_history(world, list(range(1, int(str(last)) + 1)))


def test_housekeeping_runs_at_once_and_accounts(world: World, start: Start) -> None:
    world.build()
    world.rows("UPDATE devices SET billed_from = now() - interval '10 minutes' RETURNING 1")
    world.rows(
        "INSERT INTO cycles (id, lane, state, started_at) VALUES"
        " ('old', 'act', 'closed', now() - interval '1 year'), ('new', 'act', 'closed', now()) RETURNING 1"
    )
    start(account_interval_s=0.3)
    wait_until(lambda: world.column("SELECT count(*) FROM ledger") > [0], "minutes are accounted")
    wait_until(
        lambda: world.column("SELECT id FROM cycles WHERE id IN ('old', 'new')") == ["new"], "old cycles are gone"
    )
