"""One holder at a time, and a token that only rises."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from app.store import targets
from app.store.engine import Database

pytestmark = pytest.mark.integration


def _acquire(database: Database, holder: str, ttl_s: float = 60.0) -> int | None:
    with database.transaction() as session:
        lease = targets.acquire_lease(session, "planner", holder, ttl_s)
    return None if lease is None else lease.token


def _release(database: Database, holder: str) -> bool:
    with database.transaction() as session:
        return targets.release_lease(session, "planner", holder)


def test_the_first_comer_gets_it_and_others_wait(database: Database) -> None:
    assert _acquire(database, "a") == 1
    assert _acquire(database, "b") is None
    with database.reading() as session:
        lease = targets.read_lease(session, "planner")
        assert lease is not None
        assert (lease.holder, lease.token, lease.held) == ("a", 1, True)
        assert targets.read_lease(session, "other") is None


def test_renewing_keeps_the_token_and_moves_the_end(database: Database) -> None:
    assert _acquire(database, "a", 1.0) == 1
    with database.reading() as session:
        before = targets.read_lease(session, "planner")
    assert _acquire(database, "a", 60.0) == 1
    with database.reading() as session:
        after = targets.read_lease(session, "planner")
    assert before is not None
    assert after is not None
    assert after.expires_at > before.expires_at
    assert after.acquired_at == before.acquired_at


def test_every_change_of_holder_raises_the_token(database: Database) -> None:
    tokens = []
    for holder in ("a", "b", "a", "b"):
        tokens.append(_acquire(database, holder))
        assert _release(database, holder)
    assert tokens == [1, 2, 3, 4]


def test_an_expired_lease_goes_to_whoever_comes(database: Database) -> None:
    assert _acquire(database, "a", 0.0) == 1
    assert _acquire(database, "b") == 2
    assert _acquire(database, "a") is None


def test_a_holder_that_was_late_gets_a_new_token(database: Database) -> None:
    assert _acquire(database, "a", 0.0) == 1
    assert _acquire(database, "a") == 2


def test_time_is_the_databases(database: Database) -> None:
    assert _acquire(database, "a", 0.2) == 1
    deadline = time.monotonic() + 30
    while _acquire(database, "b") is None:
        assert time.monotonic() < deadline
    with database.reading() as session:
        lease = targets.read_lease(session, "planner")
        assert lease is not None
        assert (lease.holder, lease.token) == ("b", 2)


def test_a_clock_that_is_set_back_lengthens_no_lease(database: Database) -> None:
    """A rival cuts it to what it asked for, and has it after that; a holder that lives keeps it, with its token."""

    def left_s() -> float:
        with database.reading() as session:
            lease = targets.read_lease(session, "planner")
        assert lease is not None
        return lease.left_s

    def set_back() -> None:
        with database.transaction() as session:
            session.execute(text("UPDATE leases SET expires_at = expires_at + interval '2 hours'"))

    assert _acquire(database, "a") == 1
    set_back()
    assert _acquire(database, "b") is None
    assert 50.0 < left_s() <= 60.0
    assert _acquire(database, "a") == 1
    set_back()
    assert _acquire(database, "b", 0.1) is None
    deadline = time.monotonic() + 30
    while (token := _acquire(database, "b", 0.1)) is None:
        assert time.monotonic() < deadline
    assert token == 2


def test_only_the_holder_releases_and_the_token_survives(database: Database) -> None:
    assert not _release(database, "a")
    assert _acquire(database, "a") == 1
    assert not _release(database, "b")
    assert _release(database, "a")
    with database.reading() as session:
        lease = targets.read_lease(session, "planner")
        assert lease is not None
        assert (lease.holder, lease.token, lease.held) == (None, 1, False)


def test_of_many_rivals_one_leads_and_no_token_is_given_twice(database: Database) -> None:
    def run(name: int) -> list[int]:
        won = []
        for _ in range(15):
            token = _acquire(database, f"h{name}")
            if token is not None:
                won.append(token)
                assert _release(database, f"h{name}")
        return won

    with ThreadPoolExecutor(4) as pool:
        won = [token for tokens in pool.map(run, range(4)) for token in tokens]
    assert won
    assert sorted(won) == list(range(1, len(won) + 1))
