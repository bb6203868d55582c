"""The planner process: loops that wake, a lease that decides who acts, an orderly end.

Owns which loop runs when, and that no failure of a loop ends the process. It refuses to decide what is due (`pace`),
what a cycle does (`services.planning`) and how a planner is run (`solve_pool`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from app.logs import EventLog, bound
from app.services.beliefs.learning import Learning
from app.services.planning import snapshots
from app.services.planning.planning import Leader, Planning
from app.settings import Settings
from app.signals import asked_to_end
from app.store import targets, telemetry
from app.store.engine import Database
from app.workers.leadership import LeaseKeeper
from app.workers.pace import (
    NOTHING_YET,
    CycleCause,
    CycleMemory,
    DatabaseSight,
    cause_of,
    demand_alarms,
    remember,
    remember_failure,
)
from app.workers.retention import Housekeeping
from app.workers.solve_pool import SolvePool
from solvers.cycle.ports import Clock
from solvers.errors import EngineError, HeadroomError, LeaseLostError, TransientError

WATCH_INTERVAL_S = 1.0
"""How often intent and fleet are looked at; a newcomer's document is planned within about this."""
_log = EventLog("headroom.planner")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Everything the planner process is made of, wired by bootstrap."""

    settings: Settings
    database: Database
    clock: Clock
    keeper: LeaseKeeper
    pool: SolvePool
    planning: Planning
    learning: Learning
    housekeeping: Housekeeping


class PlannerWorker:
    """Runs the loops while it holds the lease."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._ending = threading.Event()
        # One cycle at a time, whichever loop asks for it.
        self._turn = threading.Lock()
        self._memory = NOTHING_YET
        self._term: int | None = None
        """The fencing token under which the watch ran last."""
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(6)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def run(self) -> None:
        """Plan until SIGTERM or SIGINT, then give the lease back and return."""
        with asked_to_end(self.end):
            self.start()
            try:
                self._ending.wait()
            finally:
                self.stop()

    def end(self) -> None:
        """Ask for the end; `run` returns soon after."""
        self._ending.set()

    def start(self) -> None:
        """Start keeper, child process and loops; returns once they run."""
        settings = self._parts.settings
        _log.info("planner.started", holder=self._parts.keeper.holder, cluster=settings.cluster)
        self._parts.keeper.start()
        try:
            self._parts.pool.warm()
        except EngineError as error:
            _log.error("solve_pool.failed", error)
        self._add("watch", self._watch, WATCH_INTERVAL_S)
        self._add("tune", self._tune, settings.tune_interval_s)
        self._add("place", self._place, settings.place_interval_s)
        self._add("learn", self._parts.learning.learn, settings.learn_interval_s)
        self._add("account", self._parts.housekeeping.account, settings.account_interval_s)
        self._add("retain", self._parts.housekeeping.retain, settings.retention_interval_s)
        # At once, not after a first interval: the newcomer's first plan.
        self._scheduler.modify_job("watch", next_run_time=datetime.now(UTC))
        self._scheduler.start()

    def stop(self) -> None:
        """Let running loops finish, end the child, give the lease back, close the connections. Twice is once."""
        self._ending.set()
        parts = self._parts
        with ExitStack() as ends:  # in reverse order, each whatever became of the others
            ends.callback(parts.database.dispose)
            ends.callback(parts.keeper.stop)
            if self._scheduler.running:
                ends.callback(self._scheduler.shutdown, wait=True)
            # The child goes first: a planner in the middle of its work would hold everything up until its deadline.
            ends.callback(parts.pool.close)
        _log.info("planner.ended", holder=parts.keeper.holder)

    # -- loops --------------------------------------------------------------------------------------------------------

    def _add(self, name: str, loop: Callable[[Leader], None], interval_s: float) -> None:
        self._scheduler.add_job(self._guarded, "interval", (name, loop), seconds=interval_s, id=name)

    def _guarded(self, name: str, loop: Callable[[Leader], None]) -> None:
        """Run a loop if we lead. Whatever it raises costs this wake-up only."""
        leader = self._leader()
        if leader is None or self._ending.is_set():
            return
        with bound(loop=name):
            try:
                loop(leader)
            except TransientError as error:
                _log.warning("loop.delayed", error)
            except LeaseLostError as error:
                _log.warning("loop.stepped_down", error)
            except HeadroomError as error:
                _log.error("loop.failed", error)
            except Exception as error:  # noqa: BLE001 - a bug in one loop must not end the others
                _log.error("loop.failed", error)

    def _leader(self) -> Leader | None:
        fencing = self._parts.keeper.token()
        return Leader(holder=self._parts.keeper.holder, fencing=fencing) if fencing is not None else None

    def _watch(self, leader: Leader) -> None:
        """Plan promptly when documents or the reporting nodes changed, or a hold has passed."""
        if leader.fencing != self._term:
            # Partitions as soon as we lead: whoever restarts us often would never see a first interval pass.
            self._term = leader.fencing
            self._scheduler.modify_job("retain", next_run_time=datetime.now(UTC))
        sight = self._look()
        cause = cause_of(sight, self._memory, self._parts.clock.now_s())
        if cause is not None:
            self._cycle(leader, cause, sight)

    def _tune(self, leader: Leader) -> None:
        """Plan when demand left what stands."""
        with self._parts.database.reading() as session:
            policy = snapshots.read_policy(session)
            demands = snapshots.read_demands(session, snapshots.read_services(session), policy.demand_lookback_s)
            target = targets.current(session, self._parts.settings.cluster)
        alarms = demand_alarms(demands, target, policy, self._memory.planned_rps)
        if alarms:
            _log.info("demand.alarmed", services=len(alarms), first=alarms[0])
            self._cycle(leader, CycleCause.DEMAND, self._look())

    def _place(self, leader: Leader) -> None:
        """Plan the joint problem anew, whatever was seen."""
        self._cycle(leader, CycleCause.PLACE, self._look())

    def _look(self) -> DatabaseSight:
        with self._parts.database.reading() as session:
            silent_s = snapshots.read_policy(session).device_silent_after_s
            return DatabaseSight(
                intent=telemetry.intent_mark(session), live_nodes=telemetry.live_nodes(session, silent_s)
            )

    def _cycle(self, leader: Leader, cause: CycleCause, sight: DatabaseSight) -> None:
        # While a cycle runs, whatever else is noticed is left to it or to the next look.
        if not self._turn.acquire(blocking=cause is CycleCause.PLACE):
            return
        try:
            with bound(cause=cause.value):
                before: CycleMemory = self._memory
                # Should this cycle never return to us, the next one waits as after a failure.
                self._memory = remember_failure(sight, before, self._parts.clock.now_s())
                records = self._parts.planning.run_lanes(leader)
                self._memory = remember(sight, records, self._parts.clock.now_s())
        finally:
            self._turn.release()
