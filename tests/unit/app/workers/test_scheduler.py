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
from app.workers.scheduler import ACCOUNT_PART, Housekeeping, PlannerWorker, WorkerParts
from tests.memory import MemoryClock


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
        settings=Settings(planner_metrics_port=0), keeper=keeper, pool=part, learning=part, remembering=part,
        housekeeping=part, told=part, webhooks=part, database=part,
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


def test_who_is_behind_accounts_for_half_an_interval_and_tells_when_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, clock, settings = datetime(2026, 11, 27, tzinfo=UTC), MemoryClock(), Settings()
    left = [20]

    def accounted(*_: Any) -> Any:
        clock.ticks += 4000
        left[0] = max(0, left[0] - 1)
        behind = left[0] > 0
        return SimpleNamespace(minutes_new=30, minutes_late=0, ledger_rows=1, accounted_until=now, behind=behind)

    monkeypatch.setattr(scheduler.ledger, "account", accounted)
    monkeypatch.setattr(scheduler, "database_now", lambda _: now)
    monkeypatch.setattr(scheduler.budgets, "note_risks", idle)
    database = SimpleNamespace(transaction=lambda: nullcontext(None))
    keeping = Housekeeping(cast("Any", database), settings, clock)
    assert ACCOUNT_PART * settings.account_interval_s == 30.0
    told = [(keeping.account(lambda: False), left[0]) for _ in range(4)]
    assert told == [(False, 12), (False, 4), (True, 0), (False, 0)]
    left[0] = 20
    assert not keeping.account(lambda: True)
    assert left[0] == 19, "who is asked to end does no second run"


def test_what_nobody_had_accounted_is_trimmed_as_soon_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, asked = _begun(LateKeeper()), list[str]()
    parts = cast("Any", worker._parts)
    monkeypatch.setattr(PlannerWorker, "_at_once", lambda _, name: asked.append(name))
    for caught_up in (False, True):
        parts.housekeeping.account = lambda _, told=caught_up: told
        worker._account(LEADER)
    worker.stop()
    assert asked == ["retain"]
