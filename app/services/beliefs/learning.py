"""Learning from what really happened: every minute, executions that telemetry brought become outcomes, pass the gate
and teach the belief.

Owns the run: read what arrived since the mark, ask the belief what it had expected, learn outside any transaction, and
write everything with the mark moved in one, so that a run that dies is repeated whole and one that was overtaken leaves
nothing. It refuses to build beliefs: `Beliefs` hands out the current one, which reads `outcomes.all_points` and looks
at `outcomes.belief_mark` to know when there is something new.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import kinds
from app.kinds import Kind
from app.logs import EventLog
from app.services.beliefs.lesson import Run
from app.services.beliefs.outcomes import MINUTE, Fleet, outcomes_of
from app.services.planning.journal import Leader
from app.store import documents, events, executions, outcomes
from app.store.engine import Database
from app.store.events import Event
from app.store.outcomes import Mark, ModelKey, Progress
from solvers.domain.codec import Plain, from_plain
from solvers.domain.device import Device, GpuType
from solvers.domain.workload import Service, SloKind
from solvers.models.online.forecasts import Belief
from solvers.models.online.monitor import Monitor
from solvers.models.online.outcomes import Outcome
from solvers.models.online.points import Point
from solvers.models.online.retraining import Trigger

SETTLED_S = 10.0
"""A minute is learned from once it has been over for so long: by then its reports have been committed."""
BACKLOG_MAX = timedelta(minutes=30)
"""How far back learning reaches after a pause; what is older is left."""
TELL_REJECTIONS_AFTER = timedelta(minutes=10)
T = TypeVar("T")
_log = EventLog("headroom.learning")


class Beliefs(Protocol):
    """Where the belief is kept."""

    def current(self) -> Belief:
        """The belief as it stands, outcomes learned so far included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a run starts from."""

    mark: Mark | None
    until: datetime
    told_before: datetime
    """Rejections that were last told of before this are due again."""
    outcomes: tuple[Outcome, ...]
    points: tuple[Point, ...]
    monitors: dict[ModelKey, Monitor]


class Learning:
    """The loop that learns."""

    def __init__(self, database: Database, beliefs: Beliefs, trigger: Trigger | None = None) -> None:
        self._database = database
        self._beliefs = beliefs
        self._trigger = trigger or Trigger()

    def learn(self, leader: Leader) -> None:
        """Learn from the minutes that have settled. Raises LeaseLostError when another leader did, TransientError."""
        with self._database.reading() as session:
            read = _read(session)
        if read is None:
            return
        run = Run(read.points, read.monitors, self._trigger, leader.holder)
        if read.outcomes:
            run.learn(read.outcomes, self._beliefs.current())
        with self._database.transaction() as session:
            _write(session, read, run, leader)
        if read.outcomes:
            _log.info(
                "outcomes.learned",
                until=read.until.isoformat(),
                admitted=run.admitted,
                rejected=run.rejections.total(),
            )
        for event in run.events:
            _log.info(event.name, subject=event.subject)


def _read(session: Session) -> _Read | None:
    """Outcomes of the settled minutes and what is known of their models; None when no new minute has settled."""
    now: datetime = session.execute(select(func.now())).scalar_one()
    settled = now - timedelta(seconds=SETTLED_S)
    until = settled.replace(second=0, microsecond=0)
    mark = outcomes.find_mark(session)
    start = until - BACKLOG_MAX if mark is None else max(mark.seen_until, until - BACKLOG_MAX)
    if start >= until:
        return None
    fleet = Fleet(
        devices={device.id: device for device in _specs(session, kinds.DEVICE, Device)},
        gpu_types={gpu_type.name: gpu_type for gpu_type in _specs(session, kinds.GPU_TYPE, GpuType)},
        clocks_mhz_asked=executions.clocks_asked(session),
        token_services=frozenset(
            service.id for service in _specs(session, kinds.SERVICE, Service) if service.slo.kind is SloKind.TOKENS
        ),
    )
    found = outcomes_of(
        executions.replica_minutes(session, start - MINUTE, until),
        executions.device_minutes(session, start - MINUTE, until),
        fleet,
        start,
    )
    keys = {(outcome.model, outcome.gpu_type) for outcome in found}
    return _Read(
        mark=mark,
        until=until,
        told_before=now - TELL_REJECTIONS_AFTER,
        outcomes=found,
        points=outcomes.points_of(session, keys),
        monitors=outcomes.monitors_of(session, keys),
    )


def _specs(session: Session, kind: Kind, cls: type[T]) -> list[T]:
    return [from_plain(cls, stored.spec) for stored in documents.all_specs(session, kind)]


def _write(session: Session, read: _Read, run: Run, leader: Leader) -> None:
    waiting = run.rejections + Counter(read.mark.rejections if read.mark is not None else {})
    told = bool(waiting) and (read.mark is None or read.mark.told_at <= read.told_before)
    outcomes.advance(
        session,
        Progress(
            found=read.mark.seen_until if read.mark is not None else None,
            until=read.until,
            fencing_token=leader.fencing,
            admitted=run.admitted,
            rejected=run.rejections.total(),
            rebuilt=run.rebuilt,
            rejections={} if told else waiting,
            told=told,
        ),
    )
    outcomes.put_points(session, run.changed)
    outcomes.forget_points(session, run.forgotten)
    outcomes.trim_points(session, run.monitors.keys())
    outcomes.put_monitors(session, list(run.monitors.values()))
    outcomes.add_hours(session, run.hours())
    for event in run.events:
        events.append(session, event)
    if told:
        facts: dict[str, Plain] = {"until": read.until.isoformat(), **waiting}
        events.append(session, Event(name="outcome.rejected", actor=leader.holder, subject="outcomes", facts=facts))
