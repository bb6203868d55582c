"""Learning from what really happened: every minute, executions that telemetry brought become outcomes, pass the gate
and teach the belief.

An outcome tells what executed, beside whom, at which clock, and whether it was in good order; the gate decides. A
replica is cold unless it and everything on its device stood still for the whole minute and it did so the minute before.
A run reads what arrived since the mark, asks the belief what it had expected, learns in memory and outside any
transaction (`LearningRun`), and writes everything with the mark moved in one, so that a run that dies is repeated whole
and one that was overtaken leaves nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from app import kinds
from app.logs import EventLog
from app.records import record_of
from app.services.planning.planning import Leader
from app.store import documents, events, outcomes, telemetry
from app.store.engine import Database
from app.store.events import Event
from app.store.outcomes import HourCounts, LearningProgress, Mark, ModelKey
from app.store.sql import database_now
from app.store.telemetry import DeviceMinute, ReplicaMinute
from solvers.domain.codec import Plain
from solvers.domain.device import Device, GpuType
from solvers.domain.grouping import grouped
from solvers.domain.profile import BATCH_MAX, LATENCY_MS_MAX, LATENCY_MS_MIN
from solvers.domain.workload import Service, SloKind, WorkloadKind
from solvers.models.online.forecasts import Belief, forecasts
from solvers.models.online.monitor import (
    LEVELS,
    Learned,
    Monitor,
    Seen,
    Trigger,
    rebuilt,
    reference,
    relative_error,
    step,
)
from solvers.models.online.outcomes import Configuration, Forecast, Neighbour, Outcome, Point, Verdict, residual
from solvers.models.online.paces import Paces, SlowDevice

HELD_PART_MIN = 0.9
"""Who held its share for a smaller part of the minute came or went in it."""
CLOCK_STEADY = 0.02
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFleet:
    """What is known beyond the reports. `clocks_mhz_asked` lacks devices left to their driver."""

    devices: Mapping[str, Device]
    gpu_types: Mapping[str, GpuType]
    clocks_mhz_asked: Mapping[str, int]
    token_services: frozenset[str] = frozenset()
    """Ids of services that answer token by token: they execute steps of many lengths, which say nothing of batches."""
    slow: Mapping[str, SlowDevice] = field(default_factory=dict)
    """Devices that were found to be slower than their type."""


@dataclass(frozen=True, slots=True)
class _MinuteOfDevice:
    minute: datetime
    uuid: str

    def before(self) -> _MinuteOfDevice:
        return _MinuteOfDevice(self.minute - MINUTE, self.uuid)


def outcomes_of(
    replicas: Sequence[ReplicaMinute], devices: Sequence[DeviceMinute], fleet: ReportedFleet, start: datetime
) -> tuple[Outcome, ...]:
    """Outcomes of the minutes from `start` on, by time; minutes before it only tell what stood there."""
    boards = {_MinuteOfDevice(device.minute, device.uuid): device for device in devices}
    together = grouped(replicas, lambda replica: _MinuteOfDevice(replica.minute, replica.uuid))
    steady = {
        place: {_process(each) for each in found if each.ready and each.held_s >= HELD_PART_MIN * boards[place].seconds}
        for place, found in together.items()
        if place in boards
    }
    made: list[Outcome] = []
    for place, found in together.items():
        if place.minute < start or place not in boards or place.uuid not in fleet.devices:
            continue
        all_steady = len(steady[place]) == len(found)
        warm = steady[place] & steady.get(place.before(), set()) if all_steady else set()
        made.extend(_outcomes(found, boards[place], fleet, warm))
    return tuple(sorted(made, key=lambda each: (each.at_s, each.model, each.gpu_type)))


def _process(row: ReplicaMinute) -> tuple[str, int, int, str]:
    return (row.replica, row.share_pct_sm, row.batch, row.model)


def _outcomes(
    found: Sequence[ReplicaMinute], board: DeviceMinute, fleet: ReportedFleet, warm: set[tuple[str, int, int, str]]
) -> Iterable[Outcome]:
    device = fleet.devices[board.uuid]
    gpu_type = fleet.gpu_types.get(device.gpu_type)
    if gpu_type is None or board.clock_mhz_sm_max <= 0 or not all(map(_believable, found)):
        return
    asked = fleet.clocks_mhz_asked.get(board.uuid)
    clock_mhz = 0.5 * (board.clock_mhz_sm_min + board.clock_mhz_sm_max)
    nearest = min(gpu_type.clocks_mhz_sm, key=lambda each: abs(each - clock_mhz))
    unsteady = board.clock_mhz_sm_max - board.clock_mhz_sm_min > CLOCK_STEADY * board.clock_mhz_sm_max
    if board.hindered:
        clock_mhz = float(asked or max(gpu_type.clocks_mhz_sm))
    elif board.throttled or unsteady:
        clock_mhz = board.clock_mhz_sm_mean
    elif asked is None:
        clock_mhz = float(nearest)
    slice_of_type = replace(gpu_type, sm_count=device.sm_count)
    for position, row in enumerate(found):
        if row.replica.partition("#")[0] in fleet.token_services:
            continue
        if row.kind == WorkloadKind.JOB or row.executions <= 0.0 or row.executed_ms <= 0.0:
            continue
        others = [*found[:position], *found[position + 1 :]]
        yield Outcome(
            model=row.model,
            gpu_type=device.gpu_type,
            batch=max(1.0, row.batch_mean),
            share_pct_sm=_share_of_type(row, device, gpu_type),
            clock_mhz_sm=clock_mhz,
            latency_ms=row.executed_ms / row.executions,
            executions=row.executions,
            seconds=max(row.held_s, 1e-3),
            at_s=(row.minute + MINUTE).timestamp(),
            neighbours=tuple(
                Neighbour(
                    model=each.model,
                    batch=max(1.0, each.batch_mean if each.executions > 0.0 else float(each.batch)),
                    share_pct_sm=_share_of_type(each, device, gpu_type),
                    busy=min(1.0, each.executed_ms / (1000.0 * max(each.held_s, 1e-3))),
                )
                for each in others
                if each.kind != WorkloadKind.JOB
            ),
            clock_mhz_asked=asked,
            sm_count=row.sm_count,
            sm_count_asked=slice_of_type.sm_count_of_share(row.share_pct_sm),
            dropped_fraction=row.dropped / max(row.completed + row.dropped, 1e-9),
            throttled=board.throttled or unsteady,
            cold=_process(row) not in warm,
            failing=row.failed,
            device_healthy=board.healthy,
            beside_training=any(each.kind == WorkloadKind.JOB for each in others),
            device=board.uuid,
            hindered=board.hindered,
            device_slow=board.uuid in fleet.slow,
        )


def _believable(row: ReplicaMinute) -> bool:
    """Whether any process executes such batches in such a time. Of a report that errs there nothing on the device is
    believed, and nobody else's learning ends with it.
    """
    executed = row.executions > 0.0 and row.executed_ms > 0.0
    timed = not executed or LATENCY_MS_MIN <= row.executed_ms / row.executions <= LATENCY_MS_MAX
    return row.kind == WorkloadKind.JOB or (timed and max(row.batch, row.batch_mean) <= BATCH_MAX)


def _share_of_type(row: ReplicaMinute, device: Device, gpu_type: GpuType) -> int:
    """Its share in percent of a whole GPU of the type; shares on a slice are reported in percent of the slice."""
    return min(100, max(1, round(row.share_pct_sm * device.sm_count / gpu_type.sm_count)))


HourKey = tuple[datetime, str, str, str]


@dataclass(slots=True)
class _Sum:
    """What is counted of an hour's outcomes with the same verdict."""

    outcomes: int = 0
    executions: float = 0.0
    predicted: int = 0
    error_sum: float = 0.0
    error_abs_sum: float = 0.0
    error_square_sum: float = 0.0
    error_abs_max: float = 0.0
    inside: list[int] = field(default_factory=lambda: [0 for _ in LEVELS])

    def add(self, outcome: Outcome, said: Forecast | None) -> None:
        self.outcomes += 1
        self.executions += outcome.executions
        if said is None:
            return
        error = relative_error(said.mean_ms, outcome.latency_ms)
        self.predicted += 1
        self.error_sum += error
        self.error_abs_sum += abs(error)
        self.error_square_sum += error * error
        self.error_abs_max = max(self.error_abs_max, abs(error))
        for level, (_, width) in enumerate(LEVELS):
            self.inside[level] += abs(outcome.latency_ms - said.mean_ms) <= width * said.std_ms


class LearningRun:
    def __init__(self, points: Sequence[Point], monitors: dict[ModelKey, Monitor], actor: str) -> None:
        self._points = {point.configuration: point for point in points}
        self._trigger = Trigger()
        self._actor = actor
        self._sums: dict[HourKey, _Sum] = defaultdict(_Sum)
        self._changed: set[Configuration] = set()
        self.monitors = dict(monitors)
        self.forgotten: set[Configuration] = set()
        self.events: list[Event] = []
        self.rejections: Counter[str] = Counter()
        self.admitted = 0
        self.rebuilt = 0

    def learn(self, outcomes: Sequence[Outcome], belief: Belief) -> tuple[Forecast | None, ...]:
        """Learn outcomes in their order, all foretold by the belief as it was, which is returned; then see which
        beliefs are due.
        """
        said = forecasts(outcomes, belief)
        names = [outcome.configuration() for outcome in outcomes]
        firsts: dict[Configuration, Outcome] = {}
        for name, outcome in zip(names, outcomes, strict=True):
            known = self._points.get(name)
            firsts.setdefault(name, outcome if known is None else known.first)
        said_first = dict(zip(firsts, forecasts(list(firsts.values()), belief), strict=True))
        for name, outcome, forecast in zip(names, outcomes, said, strict=True):
            known = self._points.get(name)
            same = known is None or known.first == firsts[name]
            first = said_first[name] if same else forecast
            self._step(name, Seen(outcome=outcome, forecast=forecast, forecast_first=first))
        for key in sorted(key for key, monitor in self.monitors.items() if monitor.due is not None):
            self._rebuild(key)
        return said

    def tell_slow(self, before: Mapping[str, SlowDevice], after: Mapping[str, SlowDevice]) -> None:
        """Tell of devices that became slower than their type, and of those that are not any more."""
        for device in sorted(before.keys() ^ after.keys()):
            item, subject = (after if device in after else before)[device], f"devices/{device}"
            facts: dict[str, Plain] = {"gpu_type": item.gpu_type, "factor": round(item.factor, 3)}
            if device in after:
                self.events.append(Event(name="device.slow", actor=self._actor, subject=subject, facts=facts))
            else:
                self.events.append(Event(name="device.steady", actor=self._actor, subject=subject, facts=facts))

    @property
    def changed(self) -> list[Point]:
        return [self._points[name] for name in self._changed if name in self._points]

    def hours(self) -> list[HourCounts]:
        return [
            record_of(
                HourCounts,
                total,
                hour=hour,
                model=model,
                gpu_type=gpu_type,
                verdict=verdict,
                inside_80=total.inside[0],
                inside_95=total.inside[1],
            )
            for (hour, model, gpu_type, verdict), total in sorted(self._sums.items())
        ]

    def _step(self, name: Configuration, seen: Seen) -> None:
        outcome = seen.outcome
        key = (outcome.model, outcome.gpu_type)
        monitor = self.monitors.get(key, Monitor(model=outcome.model, gpu_type=outcome.gpu_type))
        before = self._points.get(name)
        learned = step(monitor, before, seen, self._trigger)
        self.monitors[key] = learned.monitor
        if learned.point is not None and learned.point is not before:
            self._points[name] = learned.point
            self._changed.add(name)
        hour = datetime.fromtimestamp(outcome.at_s - 1.0, UTC).replace(minute=0, second=0, microsecond=0)
        self._sums[(hour, *key, learned.verdict.value)].add(outcome, seen.forecast)
        if learned.verdict is Verdict.ADMITTED:
            self.admitted += 1
        else:
            self.rejections[learned.verdict.value] += 1
        self._tell(key, before, seen, learned)

    def _tell(self, key: ModelKey, before: Point | None, seen: Seen, learned: Learned) -> None:
        if learned.drifted and before is not None:
            expected = reference(before, seen)
            off = residual(seen.outcome, expected) if expected is not None else 0.0
            self._event(
                "belief.drifted",
                key,
                {
                    "shift_pct": round(100.0 * math.expm1(off), 1),
                    "latency_ms": round(seen.outcome.latency_ms, 4),
                    "share_pct_sm": seen.outcome.share_pct_sm,
                    "batch": round(seen.outcome.batch, 2),
                    "neighbours": list(before.configuration.neighbours),
                    "began_at_s": learned.monitor.drift.began_s,
                },
            )
        if learned.miscalibrated is not None:
            self._event("belief.miscalibrated", key, {"kind": learned.miscalibrated.value})

    def _rebuild(self, key: ModelKey) -> None:
        monitor = self.monitors[key]
        mine = [point for point in self._points.values() if (point.first.model, point.first.gpu_type) == key]
        self.monitors[key], kept = rebuilt(monitor, mine)
        left = {point.configuration: point for point in kept}
        for point in mine:
            name = point.configuration
            if name in left:
                self._points[name] = left[name]
                self._changed.add(name)
            else:
                del self._points[name]
                self.forgotten.add(name)
        self.rebuilt += 1
        cause = monitor.due.value if monitor.due is not None else ""
        facts: dict[str, Plain] = {"cause": cause, "points_kept": len(left), "points_forgotten": len(mine) - len(left)}
        self._event("belief.retrained", key, facts)

    def _event(self, name: str, key: ModelKey, facts: dict[str, Plain]) -> None:
        self.events.append(Event(name=name, actor=self._actor, subject=f"beliefs/{key[0]}/{key[1]}", facts=facts))


SETTLED_S = 10.0
"""A minute is learned from once it has been over for so long: by then its reports have been committed."""
BACKLOG_MAX = timedelta(minutes=30)
"""How far back learning reaches after a pause; what is older is left."""
TELL_REJECTIONS_AFTER = timedelta(minutes=10)
_log = EventLog("headroom.learning")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunStart:
    mark: Mark | None
    until: datetime
    told_before: datetime
    """Rejections that were last told of before this are due again."""
    outcomes: tuple[Outcome, ...]
    slow: Mapping[str, SlowDevice]
    points: tuple[Point, ...]
    monitors: dict[ModelKey, Monitor]


class Learning:
    """The loop that learns. `believed`: the belief as it stands, outcomes learned so far included."""

    def __init__(self, database: Database, believed: Callable[[], Belief]) -> None:
        self._database = database
        self._believed = believed
        self._paces = Paces()
        self._paced_by: Belief | None = None

    def learn(self, leader: Leader) -> None:
        """Learn from the minutes that have settled. Raises LeaseLostError when another leader did, TransientError."""
        read = self._database.read(_read)
        if read is None:
            return
        run = LearningRun(read.points, read.monitors, leader.holder)
        slow = read.slow
        if read.outcomes or slow:
            belief = self._believed()
            slow = self._paced(read, run.learn(read.outcomes, belief), belief)
            run.tell_slow(read.slow, slow)
        with self._database.transaction() as session:
            _write(session, read, run, leader)
            if slow != read.slow:
                outcomes.put_slow(session, slow)
        if read.outcomes:
            _log.info(
                "outcomes.learned",
                until=read.until.isoformat(),
                admitted=run.admitted,
                rejected=run.rejections.total(),
            )
        for event in run.events:
            _log.info(event.name, subject=event.subject)

    def _paced(self, read: _RunStart, said: Sequence[Forecast | None], belief: Belief) -> dict[str, SlowDevice]:
        """Who is slower than its type, with what has been seen now."""
        if belief is not self._paced_by:
            self._paces.foretold(forecasts(self._paces.newest(), belief))
            self._paced_by = belief
        self._paces.see(read.outcomes, said)
        newest_s = max((each.at_s for each in read.outcomes), default=read.until.timestamp())
        return self._paces.judge(read.slow, newest_s)


def _read(session: Session) -> _RunStart | None:
    """Outcomes of the settled minutes and what is known of their models; None when no new minute has settled."""
    now = database_now(session)
    settled = now - timedelta(seconds=SETTLED_S)
    until = settled.replace(second=0, microsecond=0)
    mark = outcomes.find_mark(session)
    start = until - BACKLOG_MAX if mark is None else max(mark.seen_until, until - BACKLOG_MAX)
    if start >= until:
        return None
    fleet = ReportedFleet(
        devices={device.id: device for device in documents.values(session, kinds.DEVICE, Device)},
        gpu_types={gpu_type.name: gpu_type for gpu_type in documents.values(session, kinds.GPU_TYPE, GpuType)},
        clocks_mhz_asked=telemetry.clocks_asked(session),
        token_services=frozenset(
            service.id
            for service in documents.values(session, kinds.SERVICE, Service)
            if service.slo.kind is SloKind.TOKENS
        ),
        slow=outcomes.found_slow(session),
    )
    found = outcomes_of(
        telemetry.replica_minutes(session, start - MINUTE, until),
        telemetry.device_minutes(session, start - MINUTE, until),
        fleet,
        start,
    )
    keys = {(outcome.model, outcome.gpu_type) for outcome in found}
    return _RunStart(
        mark=mark,
        until=until,
        told_before=now - TELL_REJECTIONS_AFTER,
        outcomes=found,
        slow=fleet.slow,
        points=outcomes.points_of(session, keys),
        monitors=outcomes.monitors_of(session, keys),
    )


def _write(session: Session, read: _RunStart, run: LearningRun, leader: Leader) -> None:
    waiting = run.rejections + Counter(read.mark.rejections if read.mark is not None else {})
    told = bool(waiting) and (read.mark is None or read.mark.told_at <= read.told_before)
    outcomes.advance(
        session,
        LearningProgress(
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
