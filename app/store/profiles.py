"""Profile points, imported in bulk and read as whole profiles.

A point of the same configuration replaces the older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, Select, cast, func, select, tuple_
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.tables.profiles import profile_points as points
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileOrigin, ProfilePoint
from solvers.errors import NotFoundError

LISTING = "profiles"
ROWS_PER_STATEMENT = 1_000
_KEY = ("model", "gpu_type", "neighbours", "clock_mhz_sm", "share_pct_sm", "batch")
_MEASURED = (
    "latency_ms_mean", "latency_ms_p99", "memory_mib", "power_w", "throughput_rps", "l2_util_pct", "dram_util_pct",
    "origin", "source",
)  # fmt: skip


@record
class ProfileLine:
    """What there is about a model on a GPU type."""

    model: str
    gpu_type: str
    points: int
    imported_at: datetime


def put_points(session: Session, new: Sequence[ProfilePoint]) -> int:
    """Store points; of equal configurations in `new` the last one wins.

    Returns how many configurations were written.
    """
    rows = {tuple(row[name] for name in _KEY): row for row in (_row(point) for point in new)}
    ordered = [rows[key] for key in sorted(rows)]
    for start in range(0, len(ordered), ROWS_PER_STATEMENT):
        statement = insert(points).values(
            [{**row, "neighbours": list(row["neighbours"])} for row in ordered[start : start + ROWS_PER_STATEMENT]]
        )
        replaced = {name: statement.excluded[name] for name in _MEASURED}
        session.execute(
            statement.on_conflict_do_update(index_elements=_KEY, set_={**replaced, "imported_at": func.now()})
        )
    return len(ordered)


def get(session: Session, model: str, gpu_type: str) -> Profile:
    """All points of a model on a GPU type. Raises NotFoundError."""
    found = _profiles(session, _ordered().where(points.c.model == model, points.c.gpu_type == gpu_type))
    if not found:
        raise NotFoundError(f"no profile of {model} on {gpu_type}", model=model, gpu_type=gpu_type)
    return found[0]


def all_profiles(session: Session) -> tuple[Profile, ...]:
    """Every profile, by model and GPU type."""
    return _profiles(session, _ordered())


def page(session: Session, *, limit: int, cursor: str | None = None) -> StoredPage[ProfileLine]:
    """What there is, by model and GPU type."""
    query = (
        select(
            points.c.model,
            points.c.gpu_type,
            func.count().label("points"),
            func.max(points.c.imported_at).label("imported_at"),
        )
        .group_by(points.c.model, points.c.gpu_type)
        .order_by(points.c.model, points.c.gpu_type)
        .limit(limit + 1)
    )
    if cursor is not None:
        after = decode_cursor(LISTING, cursor, (str, str))
        query = query.where(tuple_(points.c.model, points.c.gpu_type) > tuple_(*after))
    found = [ProfileLine(**row) for row in session.execute(query).mappings()]
    return cut(LISTING, found, limit, lambda summary: (summary.model, summary.gpu_type))


def count(session: Session, *, model: str | None = None, gpu_type: str | None = None) -> int:
    """How many points there are, of one model or GPU type where named."""
    query = select(func.count()).select_from(points)
    if model is not None:
        query = query.where(points.c.model == model)
    if gpu_type is not None:
        query = query.where(points.c.gpu_type == gpu_type)
    return int(session.execute(query).scalar_one())


def state(session: Session) -> tuple[int, int]:
    """Changes whenever a point does: how many there are, and the sum of the moments at which they were stored."""
    moments_us = cast(func.extract("epoch", points.c.imported_at) * 1_000_000, BigInteger)
    row = session.execute(select(func.count(), func.coalesce(func.sum(moments_us), 0))).one()
    return int(row[0]), int(row[1])


def delete(session: Session, model: str, gpu_type: str) -> int:
    """Delete a profile; returns how many points it had. Raises NotFoundError."""
    statement = delete_from(points).where(points.c.model == model, points.c.gpu_type == gpu_type)
    deleted = len(session.execute(statement.returning(points.c.batch)).all())
    if not deleted:
        raise NotFoundError(f"no profile of {model} on {gpu_type}", model=model, gpu_type=gpu_type)
    return deleted


def _ordered() -> Select[Any]:
    return select(points).order_by(*(points.c[name] for name in _KEY))


def _profiles(session: Session, query: Select[Any]) -> tuple[Profile, ...]:
    rows = session.execute(query).all()
    return tuple(
        Profile(model=ModelName(model), gpu_type=GpuTypeName(gpu_type), points=tuple(_point(row) for row in group))
        for (model, gpu_type), group in groupby(rows, key=lambda row: (row.model, row.gpu_type))
    )


def _row(point: ProfilePoint) -> dict[str, Any]:
    row = {name: getattr(point, name) for name in (*_KEY, *_MEASURED)}
    return {**row, "neighbours": tuple(point.neighbours), "origin": point.origin.value}


def _point(row: Row[Any]) -> ProfilePoint:
    values = {name: getattr(row, name) for name in (*_KEY, *_MEASURED)}
    values["neighbours"] = tuple(ModelName(name) for name in row.neighbours)
    values["origin"] = ProfileOrigin(row.origin)
    return ProfilePoint(**values)
