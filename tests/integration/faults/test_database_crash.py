"""PostgreSQL crashes and comes back while everything works: all processes find it again by themselves, the target has
one history, and what was acknowledged is still there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.faults.bells import Listener
from tests.integration.faults.fleet import DEVICES, busy, seed
from tests.integration.faults.house import Background, House
from tests.integration.faults.invariants import Watch, behind, check_afterwards, meets
from tests.integration.faults.reporters import Reporter
from tests.waiting import spend

pytestmark = pytest.mark.integration

SEED = 5
PAUSE_S = 0.025
NODES = ("node-a", "node-b")


def test_everything_recovers_from_crashes_of_the_database_alone_and_with_the_api(house: House) -> None:
    stream = random.Random(SEED)
    api = house.start_api()
    with house.client() as client:
        seed(client)
    others = [*(house.start_agent(node, DEVICES) for node in NODES), house.start_planner()]
    house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
    with (
        _reporting(house, stream) as reporter,
        Background(Watch(house)),
        Listener(house) as listener,
    ):
        house.await_true("the bell is heard", lambda: listener.knows(house.generation))
        _make_busy(house, "labels")
        spend(stream.uniform(0.0, 1.0))  # a random moment of the change, not a wait for something
        house.postgres.crash()
        house.postgres.start()
        _await_recovery(house, listener, reporter)
        _make_busy(house, "search")
        _await_change(house, listener, "search")
        assert api.alive, house.story()

        dialled = listener.dialled
        _make_busy(house, "labels")
        spend(stream.uniform(0.0, 1.0))  # another one
        api.kill()
        house.postgres.crash()
        house.start_api(wait=False)
        house.postgres.start()
        _await_recovery(house, listener, reporter)
        house.await_true("the listener has dialled again", lambda: listener.dialled > dialled)
    assert all(process.alive for process in others), house.story()
    _check(house, reporter)


@contextmanager
def _reporting(house: House, stream: random.Random) -> Iterator[Reporter]:
    """A node that reports and hardly pauses."""
    reporter = Reporter(house.address, "node-c", house.join, stream, PAUSE_S)
    ending = threading.Event()
    thread = threading.Thread(target=reporter.run, args=(ending,), daemon=True)
    thread.start()
    try:
        yield reporter
    finally:
        ending.set()
        thread.join(30.0)
        reporter.close()
    assert not thread.is_alive()


def _make_busy(house: House, name: str) -> None:
    with house.client() as client:
        busy(client, name)


def _await_recovery(house: House, listener: Listener, reporter: Reporter) -> None:
    """Reports are taken, and the change of demand that the crash cut through becomes a target that agents hold."""
    acknowledged = len(reporter.acknowledged)
    house.await_true("reports are taken", lambda: len(reporter.acknowledged) > acknowledged)
    _await_change(house, listener, "labels")


def _await_change(house: House, listener: Listener, name: str) -> None:
    """The target is for this busy service, agents hold it and the doorbell has told of it."""
    house.await_true(f"the target meets busy {name}", lambda: meets(house, name))
    house.await_true("agents hold it", lambda: not behind(house, *NODES))
    house.await_true("the bell told of it", lambda: listener.knows(house.generation))


def _check(house: House, reporter: Reporter) -> None:
    assert reporter.refused == []
    logged = house.rows("SELECT boot_id, sequence FROM report_log WHERE source = 'node/node-c'")
    assert sorted(tuple(row) for row in logged) == sorted(reporter.acknowledged), f"seed {SEED}"
    check_afterwards(house)
