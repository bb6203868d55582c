"""A key does its work once; repeats get the answer, rivals wait or are told, other bodies are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import text

from app.errors import InProgressError, KeyReusedError
from app.store import events, idempotency
from app.store.engine import Database
from app.store.events import Event
from app.store.idempotency import Request, StoredAnswer
from app.store.pages import PageOrder
from solvers.errors import InvariantError

pytestmark = pytest.mark.integration

REQUEST = Request(token_id="t1", key="k1", method="POST", path="/v1/plans", body=b'{"a": 1}')
ANSWER = StoredAnswer(status=201, headers={"ETag": '"7"'}, body=b"\x00binary")


def _reserve(database: Database, request: Request = REQUEST) -> StoredAnswer | None:
    with database.transaction() as session:
        return idempotency.reserve(session, request)


def _finish(database: Database) -> None:
    with database.transaction() as session:
        idempotency.finish(session, REQUEST, ANSWER)


def test_the_first_does_the_work_and_repeats_get_its_answer(database: Database) -> None:
    assert _reserve(database) is None
    _finish(database)
    assert _reserve(database) == ANSWER
    assert _reserve(database) == ANSWER


def test_while_the_first_runs_others_are_told(database: Database) -> None:
    assert _reserve(database) is None
    with pytest.raises(InProgressError):
        _reserve(database)


@pytest.mark.parametrize("change", [{"body": b"{}"}, {"path": "/v1/other"}, {"method": "DELETE"}])
def test_another_request_under_the_key_is_refused(database: Database, change: dict[str, str]) -> None:
    assert _reserve(database) is None
    _finish(database)
    with pytest.raises(KeyReusedError):
        _reserve(database, replace(REQUEST, **change))  # type: ignore[arg-type]


def test_keys_belong_to_their_token(database: Database) -> None:
    assert _reserve(database) is None
    assert _reserve(database, replace(REQUEST, token_id="t2")) is None
    assert _reserve(database, replace(REQUEST, key="k2")) is None


def test_an_abandoned_key_can_be_tried_again_but_a_finished_one_stays(database: Database) -> None:
    assert _reserve(database) is None
    with database.transaction() as session:
        idempotency.abandon(session, REQUEST)
    assert _reserve(database) is None
    _finish(database)
    with database.transaction() as session:
        idempotency.abandon(session, REQUEST)
    assert _reserve(database) == ANSWER


def test_a_key_whose_request_died_is_taken_over(database: Database) -> None:
    assert _reserve(database) is None
    with database.transaction() as session:
        session.execute(text("UPDATE idempotency_keys SET reserved_at = now() - interval '1 hour'"))
    assert _reserve(database) is None
    with pytest.raises(InProgressError):
        _reserve(database)


def test_finishing_what_was_not_reserved_is_our_bug(database: Database) -> None:
    with pytest.raises(InvariantError):
        _finish(database)


def test_rivals_in_the_working_transaction_do_the_work_once(database: Database) -> None:
    start = Barrier(5)

    def run(number: int) -> StoredAnswer | None:
        start.wait(timeout=30)
        with database.transaction() as session:
            before = idempotency.reserve(session, REQUEST)
            if before is None:
                events.append(session, Event(name="work.done", actor=str(number), subject="x", facts={}))
                idempotency.finish(session, REQUEST, ANSWER)
            return before

    with ThreadPoolExecutor(5) as pool:
        outcomes = list(pool.map(run, range(5)))
    assert outcomes.count(None) == 1
    assert outcomes.count(ANSWER) == 4
    with database.reading() as session:
        assert len(events.page(session, PageOrder(limit=9)).items) == 1


def test_rivals_in_transactions_of_their_own_start_the_work_once(database: Database) -> None:
    def run(_: int) -> str:
        try:
            return "work" if _reserve(database) is None else "answer"
        except InProgressError:
            return "wait"

    with ThreadPoolExecutor(5) as pool:
        assert sorted(pool.map(run, range(5))) == ["wait"] * 4 + ["work"]


def test_old_keys_are_forgotten(database: Database) -> None:
    assert _reserve(database) is None
    with database.transaction() as session:
        assert idempotency.delete_older(session, 60.0) == 0
        assert idempotency.delete_older(session, -1.0) == 1
