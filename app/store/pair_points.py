"""Pairs of models measured side by side, stored with their members in rising order.

A pair of the same configuration replaces the older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, cast, func, or_, select, tuple_
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.pages import Key, StoredPage, cut, decode_cursor
from app.store.tables.profiles import pair_points as pairs
from solvers.domain.profile import PairPoint, ProfileOrigin

LISTING = "pair-points"
ROWS_PER_STATEMENT = 1_000
_KEY = ("gpu_type", "model_a", "batch_a", "share_pct_a", "model_b", "batch_b", "share_pct_b")
_MEASURED = ("latency_ms_a", "latency_ms_b", "origin", "source")
_CURSOR = (str, int, str, str, int, str)
"""As `_KEY` without the GPU type; shares as text, because cursors hold no fractions."""


def put(session: Session, new: Sequence[PairPoint]) -> int:
    """Store pairs; of equal configurations in `new` the last one wins. Returns how many were written."""
    rows = {tuple(row[name] for name in _KEY): row for row in (_row(point.in_order()) for point in new)}
    ordered = [rows[key] for key in sorted(rows)]
    for start in range(0, len(ordered), ROWS_PER_STATEMENT):
        statement = insert(pairs).values(ordered[start : start + ROWS_PER_STATEMENT])
        replaced = {name: statement.excluded[name] for name in _MEASURED}
        session.execute(
            statement.on_conflict_do_update(index_elements=_KEY, set_={**replaced, "imported_at": func.now()})
        )
    return len(ordered)


def all_pairs(session: Session) -> tuple[PairPoint, ...]:
    """Every pair, by key."""
    query = select(pairs).order_by(*(pairs.c[name] for name in _KEY))
    return tuple(_point(row) for row in session.execute(query).mappings())


def page(
    session: Session, model: str, gpu_type: str, *, limit: int, cursor: str | None = None
) -> StoredPage[PairPoint]:
    """Pairs on a GPU type that a model is part of."""
    order = [pairs.c[name] for name in _KEY[1:]]
    query = select(pairs).where(pairs.c.gpu_type == gpu_type, _with(model)).order_by(*order).limit(limit + 1)
    if cursor is not None:
        query = query.where(tuple_(*order) > tuple_(*_after(cursor)))
    found = [_point(row) for row in session.execute(query).mappings()]
    return cut(LISTING, found, limit, _cursor_key)


def count(session: Session, *, model: str | None = None, gpu_type: str | None = None) -> int:
    """How many pairs there are, with one model or on one GPU type where named."""
    query = select(func.count()).select_from(pairs)
    if model is not None:
        query = query.where(_with(model))
    if gpu_type is not None:
        query = query.where(pairs.c.gpu_type == gpu_type)
    return int(session.execute(query).scalar_one())


def state(session: Session) -> tuple[int, int]:
    """Changes whenever a pair does: how many there are, and the sum of the moments at which they were stored."""
    moments_us = cast(func.extract("epoch", pairs.c.imported_at) * 1_000_000, BigInteger)
    row = session.execute(select(func.count(), func.coalesce(func.sum(moments_us), 0))).one()
    return int(row[0]), int(row[1])


def delete(session: Session, model: str, gpu_type: str) -> int:
    """Delete the pairs on a GPU type that a model is part of; returns how many there were."""
    statement = delete_from(pairs).where(pairs.c.gpu_type == gpu_type, _with(model))
    return len(session.execute(statement.returning(pairs.c.batch_a)).all())


def _cursor_key(point: PairPoint) -> Key:
    members = (point.model_a, point.batch_a, point.share_pct_a), (point.model_b, point.batch_b, point.share_pct_b)
    return tuple(part for model, batch, share in members for part in (model, batch, repr(share)))


def _after(cursor: str) -> list[str | int | float]:
    key = decode_cursor(LISTING, cursor, _CURSOR)
    return [float(part) if index in (2, 5) else part for index, part in enumerate(key)]


def _with(model: str) -> ColumnElement[bool]:
    return or_(pairs.c.model_a == model, pairs.c.model_b == model)


def _row(point: PairPoint) -> dict[str, Any]:
    row = {name: getattr(point, name) for name in (*_KEY, *_MEASURED)}
    return {**row, "origin": point.origin.value}


def _point(row: Any) -> PairPoint:
    values = {name: row[name] for name in (*_KEY, *_MEASURED)}
    return PairPoint(**{**values, "origin": ProfileOrigin(values["origin"])})
