"""The planner is killed with SIGKILL at every moment of a cycle; the next one finds a consistent state and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.services.planning.planning import Leader, Planning
from app.store import targets
from tests import nursery
from tests.integration.planner import dying_planner
from tests.integration.planner.dying_planner import MOMENTS, PROMOTED
from tests.integration.planner.processes import alive, children_of
from tests.integration.planner.world import World, check_history
from tests.unit.app.services.whatif.small_fleet import SWIFT, service
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
AFTER_PROMOTION = (PROMOTED, "record")
Launch = Callable[[], nursery.Running]


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    """Of a planner process."""
    return {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")} | {
        "HEADROOM_DATABASE_URL": database_url,
        "HEADROOM_HOME": str(tmp_path),
        "HEADROOM_LEASE_TTL_S": "60",
        "HEADROOM_PLACE_INTERVAL_S": "1",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="module")
def dying() -> Iterator[subprocess.Popen[str]]:
    """Makes planners that die."""
    program = Path(str(dying_planner.__file__))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(program)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


@pytest.fixture
def launch(environment: dict[str, str], tmp_path: Path) -> Iterator[Launch]:
    """Start a planner process."""
    started: list[nursery.Running] = []

    def launch() -> nursery.Running:
        with (tmp_path / "planner.log").open("wb") as log:
            started.append(nursery.start((sys.executable, "-m", "app", "planner"), environment, log))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait()


def build(world: World, planning: Planning) -> int:
    """A world at generation 1 whose demand has grown since; the token of the lease, which is free."""
    world.policy = SWIFT
    world.build()
    with world.database.transaction() as session:
        lease = targets.acquire_lease(session, targets.PLANNER, "first", 60.0)
    assert lease is not None
    planning.run_lanes(Leader(holder="first", fencing=lease.token))
    check_history(world, [1])
    with world.database.transaction() as session:
        assert targets.release_lease(session, targets.PLANNER, "first")
    world.declare(service("labels", rate_rps=150.0))
    return lease.token


def expire_lease(world: World) -> None:
    """As if the time of a holder that was killed had run out."""
    assert world.column("UPDATE leases SET expires_at = now() RETURNING 1") == [1]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_next_planner_goes_on(
    world: World, planning: Planning, dying: subprocess.Popen[str], environment: dict[str, str], moment: str
) -> None:
    token_first = build(world, planning)
    assert dying.stdin
    assert dying.stdout
    print(json.dumps([moment, environment]), file=dying.stdin, flush=True)
    assert int(dying.stdout.readline()) == -signal.SIGKILL
    (dead,) = world.rows("SELECT id, step, fencing_token FROM cycles WHERE state = 'running'")
    assert dead[2] == token_first + 1
    (standing,) = world.column("SELECT generation FROM cluster_state")
    assert standing == (2 if moment in AFTER_PROMOTION else 1)
    check_history(world, [1, 2] if standing == 2 else [1])

    expire_lease(world)
    with world.database.transaction() as session:
        lease = targets.acquire_lease(session, targets.PLANNER, "next", 60.0)
    assert lease is not None
    planning.run_lanes(Leader(holder="next", fencing=lease.token))
    assert world.column(f"SELECT count(*) FROM cycles WHERE state = 'closed' AND fencing_token > {dead[2]}") == [1]
    assert world.column("SELECT generation FROM cluster_state") == [2]
    check_history(world, [1, 2])
    aborted = world.rows("SELECT id, step, fencing_token, generation FROM cycles WHERE state = 'aborted'")
    assert aborted == [(*dead, 2 if standing == 2 else None)]
    assert world.column("SELECT count(*) FROM plans WHERE state = 'proposed'") == [0]
    assert world.column("SELECT token FROM leases") > [dead[2]]


def test_a_killed_planner_leaves_no_child(world: World, planning: Planning, launch: Launch) -> None:
    build(world, planning)
    planner = launch()
    wait_until(lambda: world.column("SELECT generation FROM cluster_state") == [2], "it plans", 60.0)
    children = children_of(planner.pid)
    assert children
    planner.kill()
    planner.wait()
    wait_until(lambda: not any(alive(child) for child in children), "its children are gone")


def test_a_terminated_planner_ends_in_order(world: World, planning: Planning, launch: Launch) -> None:
    token_first = build(world, planning)
    planner = launch()
    wait_until(lambda: world.column("SELECT generation FROM cluster_state") == [2], "it plans", 60.0)
    planner.terminate()
    assert planner.wait(60.0) == 0
    assert world.rows("SELECT holder, token FROM leases") == [(None, token_first + 1)]
    states = set(world.column("SELECT DISTINCT state FROM cycles"))
    assert states <= {"closed", "aborted"}  # the one that it was in the midst of
