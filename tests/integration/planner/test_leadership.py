"""Who leads: take-over after a death, hand-over at an end, and no two at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from app.clock import SystemClock
from app.store.engine import Database
from app.workers.scheduler import LeaseKeeper
from tests.integration.planner.world import World
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

Make = Callable[[str], LeaseKeeper]


TTL_S = 6.0
"""Renewed every third of it, which a busy machine manages."""


class HeldClock(SystemClock):
    """A monotonic clock that a test can push on."""

    def __init__(self) -> None:
        self.pushed_ms = 0.0

    def elapsed_ms(self) -> float:
        return super().elapsed_ms() + self.pushed_ms


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def make(database: Database, clock: HeldClock) -> Iterator[Make]:
    made: list[LeaseKeeper] = []

    def make(holder: str, ttl_s: float = TTL_S) -> LeaseKeeper:
        keeper = LeaseKeeper(database, clock, holder, ttl_s)
        made.append(keeper)
        return keeper

    yield make
    for keeper in made:
        keeper.stop()


def test_one_leads_and_hands_over_when_it_ends(make: Make) -> None:
    first, second = make("first"), make("second")
    first.start()
    wait_until(first.token, "the first leads")
    second.start()
    token = first.token()
    assert token is not None
    assert second.token() is None
    first.stop()
    assert first.token() is None
    wait_until(second.token, "the second leads")
    taken = second.token()
    assert taken is not None
    assert taken > token


def test_a_lease_is_renewed_under_the_same_token(make: Make, world: World) -> None:
    keeper = make("first")
    keeper.start()
    wait_until(keeper.token, "it leads")
    token = keeper.token()
    (until,) = world.column("SELECT expires_at FROM leases")
    wait_until(lambda: world.column("SELECT expires_at FROM leases") > [until], "it is renewed")
    assert keeper.token() == token


def test_a_dead_leader_is_replaced_when_its_lease_ends(make: Make, world: World, database: Database) -> None:
    dead = make("dead", 1.5)
    dead._renew()  # once, and never again: as a killed process would
    token = dead.token()
    assert token is not None
    second = make("second")
    second.start()
    wait_until(second.token, "the second leads")
    ((holder, taken),) = world.rows("SELECT holder, token FROM leases")
    assert holder == "second"
    assert taken > token


def test_who_waits_looks_again_when_the_lease_ends_and_says_when_it_leads(make: Make, world: World) -> None:
    first, second = make("first", 60.0), make("second", 60.0)
    led: list[str] = []
    first.when_acquired, second.when_acquired = (lambda: led.append("first")), (lambda: led.append("second"))
    assert first._renew() == first._renew() == 60.0
    for left_s in (50.0, 3.0):
        with world.database.raw() as connection:
            connection.execute(
                "UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => %s)", (left_s,)
            )
        assert left_s - 3.0 < second._renew() <= left_s
    assert led == ["first"]
    with world.database.raw() as connection:
        connection.execute("UPDATE leases SET expires_at = clock_timestamp()")
    second._renew()
    assert led == ["first", "second"]


def test_trust_in_a_lease_ends_with_the_local_clock(make: Make, clock: HeldClock) -> None:
    keeper = make("paused")
    keeper._renew()
    assert keeper.token() is not None
    clock.pushed_ms = 1000.0 * TTL_S + 1.0  # the process was stopped and wakes after its lease has ended
    assert keeper.token() is None
    keeper._renew()
    assert keeper.token() is not None


def test_an_unreachable_database_ends_leadership_but_not_the_keeper(make: Make, world: World, clock: HeldClock) -> None:
    keeper = make("first")
    keeper.start()
    wait_until(keeper.token, "it leads")
    with world.database.raw() as connection:
        connection.execute("ALTER TABLE leases RENAME TO leases_gone")
    clock.pushed_ms = 1000.0 * TTL_S + 1.0
    wait_until(lambda: keeper.token() is None, "it no longer leads")
    with world.database.raw() as connection:
        connection.execute("ALTER TABLE leases_gone RENAME TO leases")
    wait_until(keeper.token, "it leads again")
