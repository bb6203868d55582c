"""The planner process: the lease that decides who acts, housekeeping, loops that wake, an orderly end.

No failure of a loop ends the process. What is due is `pace`'s to decide, what a cycle does `services.planning`'s, how a
planner is run `children`'s; what a minute or a partition is, is SQL behind `app.store`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy.orm import Session

from app.logs import EventLog, bound
from app.services.beliefs.learning import Learning
from app.services.planning import snapshots
from app.services.planning.planning import Leader, Planning
from app.services.planning.remembering import DemandMemory
from app.settings import Settings
from app.signals import asked_to_end
from app.store import (
    budgets,
    cycles,
    idempotency,
    ledger,
    nodes,
    plans,
    profile_runs,
    targets,
    telemetry,
    tokens,
    webhooks,
)
from app.store.engine import Database
from app.store.sql import database_now
from app.workers.pace import (
    NOTHING_YET,
    CycleCause,
    CycleMemory,
    DatabaseSight,
    cause_of,
    deaf,
    heard,
    incomplete,
    remember,
    remember_failure,
)
from app.workers.solve_pool import SolvePool
from app.workers.told import PlannerTold
from app.workers.webhooks import WebhookSender
from solvers.cycle.alarm import demand_alarms, risen
from solvers.cycle.ports import Clock
from solvers.domain.ids import ServiceId
from solvers.domain.telemetry import DEMAND_BIN_S
from solvers.errors import EndingError, EngineError, HeadroomError, LeaseLostError, TransientError

RENEWALS = 5
"""In the life of a lease, so that a leader that stands still for four fifths of it leads on."""
LOOK_S_MIN = 0.02
_lease_log = EventLog("headroom.leadership")


@dataclass(frozen=True, slots=True)
class LeaseTerm:
    """A fencing token and the monotonic moment until which this process may trust it."""

    token: int
    until_ms: float


class LeaseKeeper:
    """Takes the lease when it is free, renews it while it is ours, tells the token while it holds; in a thread of its
    own that outlives whatever goes wrong.

    Renewed five times in its life; whoever waits for it looks again the moment it ends. Its end is judged by this
    process's monotonic clock, read before the database is asked, so that a slow answer can never make a lease look
    longer than it is.
    """

    def __init__(self, database: Database, clock: Clock, holder: str, ttl_s: float) -> None:
        self.holder = holder
        self.when_acquired: Callable[[], object] = lambda: None
        self.unreached_at_s: float | None = None
        """When the database did not answer last."""
        self._database = database
        self._clock = clock
        self._ttl_s = ttl_s
        self._term: LeaseTerm | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop competing and give the lease back, so that another need not wait for it to run out."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._term = None
        try:
            with self._database.transaction() as session:
                released = targets.release_lease(session, targets.PLANNER, self.holder)
        except HeadroomError as error:
            _lease_log.warning("lease.left", error, holder=self.holder)
            return
        if released:
            _lease_log.info("lease.released", holder=self.holder)

    def token(self) -> int | None:
        """The fencing token while this process leads; None otherwise."""
        term = self._term
        return term.token if term is not None and self._clock.elapsed_ms() < term.until_ms else None

    def _keep(self) -> None:
        while not self._ending.is_set():
            pause_s = self._ttl_s / RENEWALS
            try:
                pause_s = min(pause_s, self._renew())
            except HeadroomError as error:
                self.unreached_at_s = self._clock.now_s()
                _lease_log.warning("lease.unreachable", error, holder=self.holder)
            except Exception as error:  # noqa: BLE001 - the keeper must outlive any surprise; leadership runs out meanwhile
                _lease_log.error("lease.failed", error, holder=self.holder)
            self._ending.wait(pause_s)

    def _renew(self) -> float:
        """Seconds until it is worth asking again."""
        asked_ms = self._clock.elapsed_ms()
        with self._database.transaction() as session:
            lease = targets.acquire_lease(session, targets.PLANNER, self.holder, self._ttl_s)
            others = targets.read_lease(session, targets.PLANNER) if lease is None else None
        before = self._term
        self._term = LeaseTerm(lease.token, asked_ms + self._ttl_s * 1000.0) if lease is not None else None
        if lease is None:
            if before is not None:
                _lease_log.warning("lease.lost", holder=self.holder, fencing=before.token)
            return max(LOOK_S_MIN, others.left_s) if others is not None else 0.0
        if before is None or before.token != lease.token:
            _lease_log.info("lease.acquired", holder=self.holder, fencing=lease.token)
            self.when_acquired()
        return self._ttl_s


# --- Housekeeping: accounts the minutes that have settled, keeps partitions ready, drops what was kept long enough


ACCOUNT_PART = 0.5
"""So much of the time between wake-ups whoever is behind may account, half an hour's minutes a run; the database rests
for the remainder."""
PARTITION_DAYS_AHEAD = 7
_keeping_log = EventLog("headroom.housekeeping")


class Housekeeping:
    """The loops that plan nothing; each part of their work in a transaction of its own."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._behind = False

    def account(self, ending: Callable[[], bool]) -> bool:
        """Bring the ledger up to the last settled minute; whether it was behind until now."""
        was_behind = self._behind
        ends_ms = self._clock.elapsed_ms() + 1000.0 * ACCOUNT_PART * self._settings.account_interval_s
        while True:
            with self._database.transaction() as session:
                report = ledger.account(session, database_now(session))
            if report.minutes_new or report.minutes_late:
                _keeping_log.info(
                    "minutes.accounted",
                    until=report.accounted_until.isoformat(),
                    minutes_new=report.minutes_new,
                    minutes_late=report.minutes_late,
                    rows=report.ledger_rows,
                )
            self._behind = report.behind
            if not report.behind or ending() or self._clock.elapsed_ms() >= ends_ms:
                break
            was_behind = True
        with self._database.transaction() as session:
            risks = budgets.note_risks(session, database_now(session))
        if risks:
            _keeping_log.warning("budgets.at_risk", budgets=risks)
        return was_behind and not self._behind

    def retain(self, leader: Leader) -> None:  # noqa: ARG002 - every loop is told who leads
        """Make the partitions of the coming days and drop what is older than the settings keep; nothing while the
        database's clock stands elsewhere than this machine's, for what it calls old may be all there is.
        """
        settings = self._settings
        days = settings.retention_cycle_days
        done = Counter[str]()
        for parent in telemetry.PARENTS:
            with self._database.transaction() as session:
                done["partitions_made"] += telemetry.ensure_partitions(session, PARTITION_DAYS_AHEAD, (parent,))
        # One transaction each: a step that must wait for a lock holds up no other.
        steps: dict[str, Callable[[Session], int]] = {
            "raw_dropped": lambda session: ledger.drop_raw_telemetry(
                session,
                database_now(session),
                settings.retention_raw_days,
                hours=settings.retention_sample_hours,
                bytes_max=settings.retention_raw_bytes,
            ),
            "minutes_dropped": lambda session: ledger.drop_minutes(
                session,
                database_now(session),
                settings.retention_minute_days,
                bytes_max=settings.retention_minute_bytes,
            ),
            "cycles_deleted": lambda session: cycles.delete_older(session, days),
            "states_deleted": lambda session: cycles.delete_older_states(session, days),
            "plans_deleted": lambda session: plans.delete_older(session, days),
            "receipts_deleted": lambda session: nodes.delete_older_receipts(session, days),
            "profile_runs_deleted": lambda session: profile_runs.delete_older(session, days),
            "tokens_deleted": lambda session: tokens.delete_older(session, days),
            "told_forgotten": targets.forget_told,
            "deliveries_deleted": webhooks.forget,
            "keys_deleted": lambda session: idempotency.delete_older(session, settings.idempotency_ttl_s),
        }
        for name, step in steps.items():
            with self._database.transaction() as session:
                ahead_s = database_now(session).timestamp() - self._clock.now_s()
                if abs(ahead_s) >= settings.report_clock_skew_s:
                    _keeping_log.warning("retention.clocks_apart", database_ahead_s=round(ahead_s))
                    return
                done[name] = step(session)
        with self._database.transaction() as session:
            kept = ledger.kept_bytes(session)
        _keeping_log.info("retention.applied", **done, raw_bytes=kept.raw, minute_bytes=kept.minutes)
        bounds = {
            "raw": (kept.raw, settings.retention_raw_bytes),
            "minute": (kept.minutes, settings.retention_minute_bytes),
        }
        for kind, (found, most) in bounds.items():
            if 0 < most < found:
                # What is left is of open hours or days, which nothing sums up yet.
                _keeping_log.warning("retention.bound_exceeded", kind=kind, bytes=found, bytes_max=most)


# --- The loops


WATCH_INTERVAL_S = 1.0
"""How often intent, fleet and what was counted last are looked at: documents are planned within about this."""
TUNE_RESTS = 20.0
"""So many times as long as a look at all demand takes nobody looks again, unless a load jumped."""
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
    remembering: DemandMemory
    housekeeping: Housekeeping
    told: PlannerTold
    webhooks: WebhookSender


class PlannerWorker:
    """Runs the loops while it holds the lease."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._ending = threading.Event()
        self._calling = threading.Lock()
        """Of the scheduler: who has it run a loop at once, and who is about to end it, take turns."""
        # One cycle at a time, whichever loop asks for it.
        self._turn = threading.Lock()
        self._memory = NOTHING_YET
        self._deaf_at_s: float | None = None
        """When no node was heard last."""
        self._heard_rps: Mapping[ServiceId, float] = {}
        """Rates that rose since the last cycle, which was looked at already."""
        self._tune_due_ms = 0.0
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
        if settings.planner_metrics_port:
            self._parts.told.open(settings.planner_metrics_host, settings.planner_metrics_port)
        _log.info("planner.started", holder=self._parts.keeper.holder, cluster=settings.cluster)
        self._parts.keeper.start()
        try:
            self._parts.pool.warm()
        except EngineError as error:
            # Whoever plans next starts it.
            _log.warning("solve_pool.failed", error)
        self._add("watch", self._watch, WATCH_INTERVAL_S)
        self._add("tune", self._tune, settings.tune_interval_s)
        self._add("place", self._place, settings.place_interval_s)
        self._add("learn", self._parts.learning.learn, settings.learn_interval_s)
        self._add("remember", self._parts.remembering.learn, settings.learn_interval_s)
        self._add("account", self._account, settings.account_interval_s)
        self._add("retain", self._parts.housekeeping.retain, settings.retention_interval_s)
        self._add("webhooks", self._parts.webhooks.look, settings.webhook_interval_s)
        soon = datetime.now(UTC) + timedelta(seconds=WATCH_INTERVAL_S)
        each_s = settings.place_interval_s
        self._scheduler.add_job(self._rehearse, "interval", seconds=each_s, id="rehearse", next_run_time=soon)
        # Not after a first interval: the newcomer's first plan.
        self._at_once("watch")
        self._scheduler.start()
        self._parts.keeper.when_acquired = partial(self._at_once, "watch")

    def stop(self) -> None:
        """Let running loops finish, end the child, give the lease back, close the connections. Twice is once."""
        with self._calling:
            self._ending.set()
        parts = self._parts
        with ExitStack() as ends:  # in reverse order, each whatever became of the others
            ends.callback(parts.database.dispose)
            ends.callback(parts.told.close)
            ends.callback(parts.webhooks.close)
            ends.callback(parts.keeper.stop)
            if self._scheduler.running:
                ends.callback(self._scheduler.shutdown, wait=True)
            # The child goes first: a planner in the middle of its work would hold everything up until its deadline. Its
            # cycle ends with it, aborted.
            ends.callback(parts.pool.close)
        _log.info("planner.ended", holder=parts.keeper.holder)

    # -- loops --------------------------------------------------------------------------------------------------------

    def _rehearse(self) -> None:
        """While another process leads: pay now for what the first cycle would have to wait for."""
        if self._leader() is not None or self._ending.is_set() or not self._turn.acquire(blocking=False):
            return
        try:
            self._parts.planning.rehearse()
        except HeadroomError as error:
            _log.warning("rehearsal.failed", error)
        finally:
            self._turn.release()

    def _at_once(self, name: str) -> None:
        """Run this loop now. Once the end has begun it is gone, or about to: who ends it waits with the scheduler's
        lock until it is over, so whoever asked from within it, or keeps the lease meanwhile, would wait as well.
        """
        with self._calling:
            if not self._ending.is_set():
                self._scheduler.modify_job(name, next_run_time=datetime.now(UTC))

    def _add(self, name: str, loop: Callable[[Leader], None], interval_s: float) -> None:
        self._scheduler.add_job(self._guarded, "interval", (name, loop), seconds=interval_s, id=name)

    def _guarded(self, name: str, loop: Callable[[Leader], None]) -> None:
        """Run a loop if we lead. Whatever it raises costs this wake-up only."""
        leader = self._leader()
        if leader is None or self._ending.is_set():
            return
        began_ms, well = self._parts.clock.elapsed_ms(), False
        with bound(loop=name):
            try:
                loop(leader)
                well = True
            except EndingError:
                _log.info("loop.ended")
            except TransientError as error:
                _log.warning("loop.delayed", error)
            except LeaseLostError as error:
                _log.warning("loop.stepped_down", error)
            except HeadroomError as error:
                _log.error("loop.failed", error)
            except Exception as error:  # noqa: BLE001 - a bug in one loop must not end the others
                _log.error("loop.failed", error)
        self._parts.told.ran(name, (self._parts.clock.elapsed_ms() - began_ms) / 1000.0, well=well)

    def _leader(self) -> Leader | None:
        fencing = self._parts.keeper.token()
        return Leader(holder=self._parts.keeper.holder, fencing=fencing) if fencing is not None else None

    def _watch(self, leader: Leader) -> None:
        """Plan promptly when documents or the reporting nodes changed, a job ended, a hold passed, or a load jumped."""
        if leader.fencing != self._term:
            # Partitions as soon as we lead: whoever restarts us often would never see a first interval pass.
            self._term = leader.fencing
            self._at_once("retain")
        sight = self._look()
        cause = cause_of(sight, self._memory, self._parts.clock.now_s())
        if cause is not None:
            self._cycle(leader, cause, sight)
        else:
            self._listen(leader)

    def _listen(self, leader: Leader) -> None:
        """Look at all demand at once when what was counted last rose above what was planned for."""
        if self._turn.locked():
            # It is counted still when the cycle has ended, or was planned for.
            return
        with self._parts.database.reading() as session:
            counted_rps = telemetry.counted_last(session, DEMAND_BIN_S)
        rose = risen(counted_rps, {**self._memory.planned_rps, **self._heard_rps})
        if rose:
            self._heard_rps = {**self._heard_rps, **rose}
            self._tune_due_ms = 0.0
            self._tune(leader)

    def _account(self, leader: Leader) -> None:  # noqa: ARG002 - every loop is told who leads
        """And trim what could not be trimmed when we began to lead, since nobody had accounted it."""
        if self._parts.housekeeping.account(self._ending.is_set):
            self._at_once("retain")

    def _tune(self, leader: Leader) -> None:
        """Plan when demand left what stands."""
        began_ms = self._parts.clock.elapsed_ms()
        if began_ms < self._tune_due_ms:
            return
        with self._parts.database.reading() as session:
            services = snapshots.read_services(session)
            demands = snapshots.read_demands(session, services)
            policies = snapshots.deciding_policies(session, services)
            target = targets.current(session, self._parts.settings.cluster)
        alarms = demand_alarms(demands, target, policies.__getitem__, self._memory.planned_rps)
        ended_ms = self._parts.clock.elapsed_ms()
        self._tune_due_ms = ended_ms + TUNE_RESTS * (ended_ms - began_ms)
        if alarms:
            _log.info("demand.alarmed", services=len(alarms), first=alarms[0])
            self._cycle(leader, CycleCause.DEMAND, self._look())

    def _place(self, leader: Leader) -> None:
        """Plan the joint problem anew, whatever was seen."""
        self._cycle(leader, CycleCause.PLACE, self._look())

    def _look(self) -> DatabaseSight:
        with self._parts.database.reading() as session:
            sight = DatabaseSight(
                intent=telemetry.intent_mark(session),
                live_nodes=snapshots.nodes_heard(session),
                hearing=telemetry.hearing(session),
                works_ended=telemetry.works_ended(session),
            )
        if deaf(sight, self._parts.settings.report_interval_s):
            self._deaf_at_s = self._parts.clock.now_s()
        return sight

    def _cycle(self, leader: Leader, cause: CycleCause, sight: DatabaseSight) -> None:
        # Who cannot ask the database does not see that nobody is heard.
        deaf_at_s = max(filter(None, (self._deaf_at_s, self._parts.keeper.unreached_at_s)), default=None)
        if incomplete(sight, deaf_at_s, self._parts.clock.now_s()):
            # Whoever watches looks again in a moment.
            return
        # While a cycle runs, whatever else is noticed is left to it or to the next look.
        if not self._turn.acquire(blocking=cause is CycleCause.PLACE):
            return
        try:
            with bound(cause=cause.value):
                before: CycleMemory = self._memory
                # Should this cycle never return to us, the next one waits as after a failure.
                self._memory = remember_failure(sight, before, self._parts.clock.now_s())
                # The picture is taken later than this look, and may show the first that come back.
                nobody = sight.hearing.nodes > 0 and heard(sight) == 0
                records = self._parts.planning.run_lanes(leader, deaf=nobody)
                self._parts.told.planned(records)
                self._memory, self._heard_rps = remember(sight, records, self._parts.clock.now_s()), {}
        finally:
            self._turn.release()
