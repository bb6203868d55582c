"""A key does its work once; repeats get the answer, rivals wait or are told, other bodies are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import text

from app.clock import SystemClock
from app.errors import InProgressError, KeyReusedError
from app.settings import Settings
from app.store import events, idempotency
from app.store.engine import Database
from app.store.events import Event
from app.store.idempotency import Request, StoredAnswer
from app.store.pages import PageOrder
from app.workers.scheduler import Housekeeping
from solvers.errors import TransientError

pytestmark = pytest.mark.integration

REQUEST = Request(token_id="t1", key="k1", method="POST", path="/v1/plans", body=b'{"a": 1}')
ANSWER = StoredAnswer(status=201, headers={"ETag": '"7"'}, body=b"\x00binary")


def _before(database: Database, request: Request = REQUEST) -> StoredAnswer | None:
    with database.whole() as session:
        return idempotency.answered(session, request)


def _work(database: Database, actor: str = "x", request: Request = REQUEST) -> StoredAnswer | None:
    """Do the work, in a transaction of its own as a service would, unless it was done."""
    with database.whole() as session:
        before = idempotency.answered(session, request)
        if before is None:
            with database.transaction() as inner:
                events.append(inner, Event(name="work.done", actor=actor, subject="x", facts={}))
            idempotency.keep(session, request, ANSWER)
        return before


def _done(database: Database) -> int:
    with database.reading() as session:
        return len(events.page(session, PageOrder(limit=9)).items)


def test_the_first_does_the_work_and_repeats_get_its_answer(database: Database) -> None:
    assert [_work(database) for _ in range(3)] == [None, ANSWER, ANSWER]
    assert _done(database) == 1


def test_while_the_first_runs_others_are_told_at_once(database: Database) -> None:
    with database.whole() as session, ThreadPoolExecutor(1) as pool:
        assert idempotency.answered(session, REQUEST) is None
        with pytest.raises(InProgressError):
            pool.submit(_before, database).result()
        idempotency.keep(session, REQUEST, ANSWER)
    assert _before(database) == ANSWER


@pytest.mark.parametrize("change", [{"body": b"{}"}, {"path": "/v1/other"}, {"method": "DELETE"}])
def test_another_request_under_the_key_is_refused(database: Database, change: dict[str, Any]) -> None:
    assert _work(database) is None
    with pytest.raises(KeyReusedError):
        _before(database, replace(REQUEST, **change))


def test_keys_belong_to_their_token(database: Database) -> None:
    assert _work(database) is None
    assert _before(database, replace(REQUEST, token_id="t2")) is None
    assert _before(database, replace(REQUEST, key="k2")) is None


@pytest.mark.parametrize("late", [False, True], ids=["in the work", "after the answer was kept"])
def test_a_request_that_dies_leaves_nothing_and_its_repeat_does_the_work_at_once(
    database: Database, late: bool
) -> None:
    """Its connection is cut by the server, as when the process is killed: at no point is the work there twice."""

    def die() -> None:
        with database.whole() as session:
            assert idempotency.answered(session, REQUEST) is None
            with database.transaction() as inner:
                events.append(inner, Event(name="work.done", actor="dead", subject="x", facts={}))
            if late:
                idempotency.keep(session, REQUEST, ANSWER)
            mine = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with database.raw() as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (mine,))
            session.execute(text("SELECT 1"))

    with pytest.raises(TransientError):
        die()
    assert (_done(database), _work(database), _done(database)) == (0, None, 1)


def test_work_that_fails_within_can_be_tried_again(database: Database) -> None:
    def fail() -> None:
        with database.whole() as session:
            assert idempotency.answered(session, REQUEST) is None
            with database.transaction() as inner:
                events.append(inner, Event(name="work.done", actor="x", subject="x", facts={}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (_done(database), _work(database), _done(database)) == (0, None, 1)


def test_work_that_stands_apart_has_transactions_of_its_own(database: Database) -> None:
    with database.whole(apart=True) as session:
        assert idempotency.answered(session, REQUEST) is None
        with database.transaction() as inner:
            events.append(inner, Event(name="work.done", actor="x", subject="x", facts={}))
        assert _done(database) == 1
        idempotency.keep(session, REQUEST, ANSWER)
    assert _before(database) == ANSWER


def test_rivals_do_the_work_once(database: Database) -> None:
    start = Barrier(5)

    def run(number: int) -> str:
        start.wait(timeout=30)
        try:
            return "work" if _work(database, str(number)) is None else "answer"
        except InProgressError:
            return "answer"

    with ThreadPoolExecutor(5) as pool:
        assert sorted(pool.map(run, range(5))) == ["answer"] * 4 + ["work"]
    assert _done(database) == 1


class Shifted(SystemClock):
    """Of a machine that is so many seconds ahead of the database's."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def now_s(self) -> float:
        return super().now_s() + self._ahead_s


@pytest.mark.parametrize("ahead_s", [-90_000.0, 90_000.0])
def test_nothing_is_dropped_while_clocks_stand_apart(database: Database, ahead_s: float) -> None:
    """A database whose clock jumped by a day would call all keys old, and their work would be done twice."""
    settings = Settings(cluster="test", idempotency_ttl_s=0.0)

    def retain(clock: SystemClock) -> None:
        Housekeeping(database, settings, clock).retain(lambda: None)

    assert _work(database) is None
    retain(Shifted(ahead_s))
    assert _work(database) is not None
    retain(SystemClock())
    assert _work(database) is None
    assert _done(database) == 2


def test_old_keys_are_forgotten(database: Database) -> None:
    assert _work(database) is None
    with database.transaction() as session:
        assert idempotency.delete_older(session, 60.0) == 0
        assert idempotency.delete_older(session, -1.0) == 1
