"""The planner process's loops and its lease at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.services.planning.planning import Leader
from app.settings import Settings
from app.workers import scheduler
from app.workers.scheduler import ACCOUNT_RUNS_MAX, Housekeeping, PlannerWorker, WorkerParts


class LateKeeper:
    """Gets the lease at the last moment: once it has been told to stop."""

    holder = "late"

    def __init__(self) -> None:
        self.when_acquired: Callable[[], object] = lambda: None
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def token(self) -> None:
        return None

    def stop(self) -> None:
        self.when_acquired()
        self.told.append("stop")


def idle(*_: Any) -> None:
    """As every other part does here."""


def _begun(keeper: LateKeeper) -> PlannerWorker:
    part = SimpleNamespace(warm=idle, close=idle, learn=idle, account=idle, retain=idle, look=idle, dispose=idle)
    parts = SimpleNamespace(
        settings=Settings(planner_metrics_port=0), keeper=keeper, pool=part, learning=part, housekeeping=part,
        told=part, webhooks=part, database=part,
    )  # fmt: skip
    worker = PlannerWorker(cast("WorkerParts", parts))
    worker.start()
    return worker


def test_a_lease_that_comes_while_the_process_ends_is_given_back_without_a_word() -> None:
    keeper = LateKeeper()
    worker = _begun(keeper)
    worker.stop()
    assert keeper.told == ["start", "stop"]


def test_a_loop_that_asks_for_another_while_the_process_ends_is_waited_for_and_does_not_wait() -> None:
    worker, begun = _begun(LateKeeper()), threading.Event()
    held = worker._scheduler._jobstores_lock

    def asks() -> None:
        begun.set()
        while held.acquire(blocking=False):  # until the scheduler ends
            held.release()
        worker._at_once("retain")

    worker._scheduler.add_job(asks)
    assert begun.wait(60)
    ending = threading.Thread(target=worker.stop, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()


LEADER = Leader(holder="here", fencing=1)


def test_what_was_behind_with_accounting_is_told_when_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = iter([True] * ACCOUNT_RUNS_MAX + [True, False, False])
    now = datetime(2026, 11, 27, tzinfo=UTC)

    def accounted(*_: Any) -> Any:
        return SimpleNamespace(minutes_new=30, minutes_late=0, ledger_rows=1, accounted_until=now, behind=next(behind))

    monkeypatch.setattr(scheduler.ledger, "account", accounted)
    monkeypatch.setattr(scheduler, "database_now", lambda _: now)
    monkeypatch.setattr(scheduler.budgets, "note_risks", idle)
    database = SimpleNamespace(transaction=lambda: nullcontext(None))
    keeping = Housekeeping(cast("Any", database), Settings(), cast("Any", None))
    assert [keeping.account(LEADER) for _ in range(3)] == [False, True, False]


def test_what_nobody_had_accounted_is_trimmed_as_soon_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, asked = _begun(LateKeeper()), list[str]()
    parts = cast("Any", worker._parts)
    monkeypatch.setattr(PlannerWorker, "_at_once", lambda _, name: asked.append(name))
    for caught_up in (False, True):
        parts.housekeeping.account = lambda _, told=caught_up: told
        worker._account(LEADER)
    worker.stop()
    assert asked == ["retain"]
