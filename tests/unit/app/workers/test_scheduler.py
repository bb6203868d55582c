"""The planner process's loops and its lease at the end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from app.settings import Settings
from app.workers.scheduler import PlannerWorker, WorkerParts


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


def test_a_lease_that_comes_while_the_process_ends_is_given_back_without_a_word() -> None:
    def idle(*_: Any) -> None:
        """As every other part does here."""

    part = SimpleNamespace(warm=idle, close=idle, learn=idle, account=idle, retain=idle, look=idle, dispose=idle)
    keeper = LateKeeper()
    parts = SimpleNamespace(
        settings=Settings(planner_metrics_port=0), keeper=keeper, pool=part, learning=part, housekeeping=part,
        told=part, webhooks=part, database=part,
    )  # fmt: skip
    worker = PlannerWorker(cast("WorkerParts", parts))
    worker.start()
    worker.stop()
    assert keeper.told == ["start", "stop"]
