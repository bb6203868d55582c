"""Profile points, imported in bulk and read as whole profiles, and pairs of models measured side by side.

A point, or a pair, of the same configuration replaces the older one. Pairs are stored with their members in rising
order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Table, cast, delete, func, or_, select
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import changed, from_row, named, put_over
from app.store.tables import pair_points as pairs
from app.store.tables import profile_points as points
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import PairPoint, Profile, ProfileOrigin, ProfilePoint
from solvers.errors import NotFoundError

ROWS_PER_STATEMENT = 1_000
EVER = datetime.max.replace(tzinfo=UTC)
_POINT_KEY = ("model", "gpu_type", "neighbours", "clock_mhz_sm", "share_pct_sm", "batch")
_PAIR_KEY = ("gpu_type", "model_a", "batch_a", "share_pct_a", "model_b", "batch_b", "share_pct_b")


@record
class ProfileLine:
    """What there is about a model on a GPU type."""

    model: str
    gpu_type: str
    points: int
    imported_at: datetime


def put_points(session: Session, new: Sequence[ProfilePoint]) -> int:
    """Store points; of equal configurations in `new` the last one wins. Returns how many were written."""
    return _put(session, points, _POINT_KEY, [_values(points, point) for point in new])


def get(session: Session, model: str, gpu_type: str) -> Profile:
    """All points of a model on a GPU type. Raises NotFoundError."""
    found = _profiles(session, _of_points().where(points.c.model == model, points.c.gpu_type == gpu_type))
    if not found:
        raise NotFoundError(f"no profile of {model} on {gpu_type}", model=model, gpu_type=gpu_type)
    return found[0]


def all_profiles(session: Session, until: datetime = EVER) -> tuple[Profile, ...]:
    """All points that have stood since `until`."""
    return _profiles(session, _of_points().where(points.c.imported_at <= until))


def page(session: Session, order: PageOrder) -> StoredPage[ProfileLine]:
    """What there is, by model and GPU type."""
    by = (points.c.model, points.c.gpu_type)
    newest = func.max(points.c.imported_at).label("imported_at")
    query = select(*by, func.count().label("points"), newest).group_by(*by)
    return read_page(session, Listing(name="profiles", by=by, made=partial(from_row, ProfileLine)), query, order)


def count(session: Session, *, model: str | None = None, gpu_type: str | None = None) -> int:
    """How many points there are, of one model or GPU type where named."""
    return _count(session, points, () if model is None else (points.c.model == model,), gpu_type)


def state(session: Session) -> tuple[int, int]:
    """Changes whenever a point does: how many there are, and the sum of the moments at which they were stored."""
    return _state(session, points)


def delete_profile(session: Session, model: str, gpu_type: str) -> int:
    """Delete a profile; returns how many points it had. Raises NotFoundError."""
    deleted = changed(session, delete(points).where(points.c.model == model, points.c.gpu_type == gpu_type))
    if not deleted:
        raise NotFoundError(f"no profile of {model} on {gpu_type}", model=model, gpu_type=gpu_type)
    return deleted


def _of_points() -> Select[Any]:
    return select(points).order_by(*(points.c[name] for name in _POINT_KEY))


def _profiles(session: Session, query: Select[Any]) -> tuple[Profile, ...]:
    rows = session.execute(query).all()
    return tuple(
        Profile(model=ModelName(model), gpu_type=GpuTypeName(gpu_type), points=tuple(_point(row) for row in group))
        for (model, gpu_type), group in groupby(rows, key=lambda row: (row.model, row.gpu_type))
    )


def _point(row: Row[Any]) -> ProfilePoint:
    values = {column.name: row._mapping[column] for column in _stored(points)}
    return ProfilePoint(**{**values, "neighbours": tuple(row.neighbours), "origin": ProfileOrigin(row.origin)})


# --- Pairs


def put_pairs(session: Session, new: Sequence[PairPoint]) -> int:
    """Store pairs; of equal configurations in `new` the last one wins. Returns how many were written."""
    return _put(session, pairs, _PAIR_KEY, [_values(pairs, point.in_order()) for point in new])


def all_pairs(session: Session, until: datetime = EVER) -> tuple[PairPoint, ...]:
    query = select(pairs).where(pairs.c.imported_at <= until).order_by(*(pairs.c[name] for name in _PAIR_KEY))
    return tuple(_pair(row) for row in session.execute(query))


def pairs_page(session: Session, model: str, gpu_type: str, order: PageOrder) -> StoredPage[PairPoint]:
    query = select(pairs).where(pairs.c.gpu_type == gpu_type, _with(model))
    by = [pairs.c[name] for name in _PAIR_KEY[1:]]
    return read_page(session, Listing(name="pair-points", by=by, made=_pair), query, order)


def count_pairs(session: Session, *, model: str | None = None, gpu_type: str | None = None) -> int:
    return _count(session, pairs, () if model is None else (_with(model),), gpu_type)


def pairs_state(session: Session) -> tuple[int, int]:
    """Changes whenever a pair does, as `state` does with points."""
    return _state(session, pairs)


def delete_pairs(session: Session, model: str, gpu_type: str) -> int:
    """Delete the pairs on a GPU type that a model is part of; returns how many there were."""
    return changed(session, delete(pairs).where(pairs.c.gpu_type == gpu_type, _with(model)))


def _with(model: str) -> ColumnElement[bool]:
    return or_(pairs.c.model_a == model, pairs.c.model_b == model)


def _pair(row: Row[Any]) -> PairPoint:
    values = {column.name: row._mapping[column] for column in _stored(pairs)}
    return PairPoint(**{**values, "origin": ProfileOrigin(row.origin)})


# --- What points and pairs have in common


def _stored(table: Table) -> list[Any]:
    return [column for column in table.c if column.name != "imported_at"]


def _values(table: Table, point: object) -> dict[str, Any]:
    return {column.name: getattr(point, column.name) for column in _stored(table)}


def _put(session: Session, table: Table, key: tuple[str, ...], new: Sequence[Mapping[str, Any]]) -> int:
    by_key = {tuple(row[name] for name in key): row for row in new}
    rows = [by_key[each] for each in sorted(by_key)]
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        session.execute(put_over(table, rows[start : start + ROWS_PER_STATEMENT], key, imported_at=func.now()))
    return len(rows)


def _count(session: Session, table: Table, where: Sequence[ColumnElement[bool]], gpu_type: str | None) -> int:
    query = select(func.count()).select_from(table).where(*where)
    if gpu_type is not None:
        query = query.where(table.c.gpu_type == gpu_type)
    return int(session.execute(query).scalar_one())


def _state(session: Session, table: Table) -> tuple[int, int]:
    moments_us = cast(func.extract("epoch", table.c.imported_at) * 1_000_000, BigInteger)
    row = session.execute(select(func.count(), func.coalesce(func.sum(moments_us), 0))).one()
    return int(row[0]), int(row[1])


# --- What was learned of both, so that whoever starts need not learn it again


def fits_since(session: Session, known: datetime) -> Sequence[Row[Any]]:
    """Digest of the `evidence`, moment `as_of` and `state` of what was learned of more than was known, newest first."""
    return session.execute(named("fits_since"), {"known": known}).all()


def put_fit(session: Session, fit: Mapping[str, object]) -> None:
    """Without a state it could not be learned. Old ones go. Raises StateError beyond 64 MiB."""
    session.execute(named("put_fit"), {**fit, "state": json.dumps(fit["state"], allow_nan=False)})


def confirm_fit(session: Session, fit: Mapping[str, object]) -> None:
    """What was learned is still all there is."""
    session.execute(named("confirm_fit"), fit)
