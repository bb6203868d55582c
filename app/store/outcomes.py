"""What was learned from outcomes: a point for each configuration, what is watched of each model on a GPU type, devices
that are slower than their type, counts by hour, and how far learning has come.

Learning happens once: whoever moves the mark from where it was found, under a token not older than the last one's, may
write the rest in the same transaction. Functions take a session first and never commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, Table, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.sql import changed, named, put_over
from app.store.tables import belief_monitors, learning_marks, outcome_hours, outcome_points, slow_devices
from solvers.domain.codec import from_plain, to_plain
from solvers.errors import LeaseLostError
from solvers.models.online.monitor import Monitor
from solvers.models.online.outcomes import TAUGHT, Configuration, Point
from solvers.models.online.paces import SlowDevice

MARK = "outcomes"
POINTS_PER_MODEL_MAX = 200
"""Configurations kept of one model on one GPU type; those not seen for longest go first."""
ROWS_PER_STATEMENT = 500
_KEY = ("model", "gpu_type", "share_pct_sm", "clock_mhz_sm", "batch_step", "neighbours")
_HOUR_KEY = ("hour", "model", "gpu_type", "verdict")

ModelKey = tuple[str, str]
"""A model and a GPU type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far learning has come. `rejections` are reasons with counts that no event has told of yet."""

    seen_until: datetime
    rejections: Mapping[str, int]
    told_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningProgress:
    """Where the mark is to go, and what to add to its counts."""

    found: datetime | None
    """Where it was when the work began; None: there was none."""
    until: datetime
    fencing_token: int
    admitted: int
    rejected: int
    rebuilt: int
    rejections: Mapping[str, int]
    told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCounts:
    """Outcomes of an hour with the same verdict. Errors are relative, of those that a belief had foretold."""

    hour: datetime
    model: str
    gpu_type: str
    verdict: str
    outcomes: int
    executions: float
    predicted: int
    error_sum: float
    error_abs_sum: float
    error_square_sum: float
    error_abs_max: float
    inside_80: int
    inside_95: int


def find_mark(session: Session) -> Mark | None:
    """How far learning has come; None before it began."""
    row = session.execute(select(learning_marks).where(learning_marks.c.name == MARK)).one_or_none()
    return None if row is None else Mark(seen_until=row.seen_until, rejections=row.rejections, told_at=row.told_at)


def advance(session: Session, progress: LearningProgress) -> None:
    """Move the mark, once. Raises LeaseLostError when somebody else moved it or has a newer token."""
    values = {"seen_until": progress.until, "fencing_token": progress.fencing_token}
    told = {"rejections": dict(progress.rejections), **({"told_at": func.now()} if progress.told else {})}
    counted = {"admitted": progress.admitted, "rejected": progress.rejected, "rebuilt": progress.rebuilt}
    if progress.found is None:
        first = insert(learning_marks).values(name=MARK, **values, **told, **counted).on_conflict_do_nothing()
        moved = changed(session, first)
    else:
        added = {name: learning_marks.c[name] + more for name, more in counted.items()}
        statement = update(learning_marks).where(
            learning_marks.c.name == MARK,
            learning_marks.c.seen_until == progress.found,
            learning_marks.c.fencing_token <= progress.fencing_token,
        )
        moved = changed(session, statement.values(**values, **told, **added))
    if not moved:
        raise LeaseLostError("another leader has learned from these outcomes", token=progress.fencing_token)


def points_of(session: Session, keys: Collection[ModelKey]) -> tuple[Point, ...]:
    query = _ordered().where(_about(outcome_points, keys))
    return tuple(from_plain(Point, row.state) for row in session.execute(query))


def all_points(session: Session) -> tuple[Point, ...]:
    return tuple(from_plain(Point, row.state) for row in session.execute(_ordered()))


def belief_mark(session: Session) -> str:
    """A text that changes when outcomes have something new to teach: a belief was due to be built anew, a
    configuration became known, or outcomes have doubled.
    """
    return str(session.execute(named("belief_mark"), {"mark": MARK, "taught": TAUGHT}).scalar_one())


def put_points(session: Session, points: Sequence[Point]) -> None:
    """Store points, each in its configuration's row."""
    rows = [
        {
            **_key(point.configuration),
            "batch": point.first.batch,
            "latency_ms": point.latency_ms,
            "outcomes": point.outcomes,
            "values_kept": len(point.values),
            "state": to_plain(point),
            "seen_at": datetime.fromtimestamp(point.seen_s, UTC),
        }
        for point in points
    ]
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        session.execute(put_over(outcome_points, rows[start : start + ROWS_PER_STATEMENT], _KEY))


def forget_points(session: Session, configurations: Iterable[Configuration]) -> None:
    for configuration in configurations:
        key = [outcome_points.c[name] == value for name, value in _key(configuration).items()]
        session.execute(delete(outcome_points).where(*key))


def trim_points(session: Session, keys: Collection[ModelKey]) -> int:
    """Keep the newest points of each model on a GPU type; returns how many went."""
    if not keys:
        return 0
    deleted = session.execute(
        named("trim_points"),
        {"models": [key[0] for key in keys], "types": [key[1] for key in keys], "kept": POINTS_PER_MODEL_MAX},
    )
    return len(deleted.all())


def monitors_of(session: Session, keys: Collection[ModelKey]) -> dict[ModelKey, Monitor]:
    """What is watched of these models on these GPU types; those never seen are missing."""
    found = session.execute(select(belief_monitors).where(_about(belief_monitors, keys)))
    return {(row.model, row.gpu_type): from_plain(Monitor, row.state) for row in found}


def put_monitors(session: Session, monitors: Sequence[Monitor]) -> None:
    rows = [{"model": each.model, "gpu_type": each.gpu_type, "state": to_plain(each)} for each in monitors]
    if rows:
        session.execute(put_over(belief_monitors, rows, ("model", "gpu_type"), updated_at=func.now()))


def found_slow(session: Session) -> dict[str, SlowDevice]:
    """Devices that are slower than their type, by UUID."""
    return {
        row.uuid: SlowDevice(
            device=row.uuid,
            gpu_type=row.gpu_type,
            factor=row.factor,
            since_s=row.since.timestamp(),
            seen_s=row.seen_at.timestamp(),
        )
        for row in session.execute(select(slow_devices).order_by(slow_devices.c.uuid))
    }


def put_slow(session: Session, found: Mapping[str, SlowDevice]) -> None:
    """These are slower than their type, and no other."""
    session.execute(delete(slow_devices).where(slow_devices.c.uuid.not_in(sorted(found))))
    rows = [
        {
            "uuid": item.device,
            "gpu_type": item.gpu_type,
            "factor": item.factor,
            "since": datetime.fromtimestamp(item.since_s, UTC),
            "seen_at": datetime.fromtimestamp(item.seen_s, UTC),
        }
        for item in found.values()
    ]
    if rows:
        session.execute(put_over(slow_devices, rows, ("uuid",)))


def add_hours(session: Session, counts: Sequence[HourCounts]) -> None:
    if not counts:
        return
    statement = insert(outcome_hours).values([asdict(each) for each in counts])
    added = {
        column.name: outcome_hours.c[column.name] + statement.excluded[column.name]
        for column in outcome_hours.columns
        if column.name not in (*_HOUR_KEY, "error_abs_max")
    }
    greatest = func.greatest(outcome_hours.c.error_abs_max, statement.excluded.error_abs_max)
    session.execute(
        statement.on_conflict_do_update(index_elements=_HOUR_KEY, set_={**added, "error_abs_max": greatest})
    )


def _about(table: Table, keys: Collection[ModelKey]) -> Any:
    return tuple_(table.c.model, table.c.gpu_type).in_(sorted(keys))


def _ordered() -> Select[Any]:
    return select(outcome_points.c.state).order_by(*(outcome_points.c[name] for name in _KEY))


def _key(configuration: Configuration) -> dict[str, Any]:
    return {**{name: getattr(configuration, name) for name in _KEY}, "neighbours": list(configuration.neighbours)}
