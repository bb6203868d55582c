"""Telemetry of many services and devices at once, over the same even steps, each for itself or put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

from sqlalchemy.orm import Session

from app.records import record
from app.store import telemetry
from app.store.replica import Reads
from app.store.telemetry import DevicePoint, ServicePoint, TelemetryWindow
from solvers.errors import FieldError

SUBJECTS_MAX = 32


class Combined(StrEnum):
    """Whether subjects stand for themselves, or are put together at every step."""

    EACH = "each"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@record
class TelemetryLine:
    """One field of one subject, or of all together; null where nobody reported."""

    subject: str
    field: str
    values: tuple[float | None, ...]


@record
class TelemetryAnswer:
    """Series over the same even steps; step `n` begins at `start` + `n` * `step_s`."""

    start: datetime
    end: datetime
    step_s: float
    items: tuple[TelemetryLine, ...]


_FIELDS = {
    "services": frozenset(field.name for field in fields(ServicePoint)) - {"at"},
    "devices": frozenset(field.name for field in fields(DevicePoint)) - {"at", "healthy"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryQuery:
    """Which fields of which subjects (`services/PROJECT/NAME` or `devices/UUID`), over which window."""

    subjects: tuple[str, ...]
    fields: tuple[str, ...]
    window: TelemetryWindow
    together: Combined = Combined.EACH

    def __post_init__(self) -> None:
        """Raise FieldError for too much, for fields that a subject does not have, for subjects of no kind."""
        if not 1 <= len(self.subjects) <= SUBJECTS_MAX:
            raise FieldError("query:subject", f"ask for 1 to {SUBJECTS_MAX} subjects at once")
        for subject in self.subjects:
            kind, *key = subject.split("/")
            known = _FIELDS.get(kind)
            if known is None or len(key) != (2 if kind == "services" else 1):
                raise FieldError("query:subject", f"{subject!r} is neither services/PROJECT/NAME nor devices/UUID")
            wrong = sorted(set(self.fields) - known)
            if wrong or not self.fields:
                told = f"{subject} has no {wrong[0]}" if wrong else "say which"
                raise FieldError("query:field", f"{told}; there are {', '.join(sorted(known))}")


def series(reads: Reads, query: TelemetryQuery) -> TelemetryAnswer:
    """Many series over the same steps, out of one moment of the database."""
    found = reads.read(_columns, query)
    window = query.window
    if query.together is not Combined.EACH:
        found = {("", field): _put_together(query, found, field) for field in query.fields}
    items = tuple(
        TelemetryLine(subject=subject or query.together.value, field=field, values=tuple(column))
        for (subject, field), column in found.items()
    )
    return TelemetryAnswer(start=window.since, end=window.until, step_s=window.step_s, items=items)


Column = list[float | None]
_TOGETHER: dict[Combined, Callable[[list[float]], float]] = {
    Combined.SUM: sum,
    Combined.MEAN: lambda values: sum(values) / len(values),
    Combined.MIN: min,
    Combined.MAX: max,
}


def _columns(session: Session, query: TelemetryQuery) -> dict[tuple[str, str], Column]:
    window = query.window
    steps = math.ceil((window.until - window.since).total_seconds() / window.step_s)
    found: dict[tuple[str, str], Column] = {}
    for subject in query.subjects:
        kind, _, name = subject.partition("/")
        read = telemetry.service_series if kind == "services" else telemetry.device_series
        columns: dict[str, Column] = {field: [None] * steps for field in query.fields}
        for point in read(session, name, window):
            step = min(steps - 1, int((point.at - window.since).total_seconds() / window.step_s + 0.5))
            for field, column in columns.items():
                column[step] = getattr(point, field)
        found |= {(subject, field): column for field, column in columns.items()}
    return found


def _put_together(query: TelemetryQuery, found: dict[tuple[str, str], Column], field: str) -> Column:
    made: Column = []
    for values in zip(*(found[subject, field] for subject in dict.fromkeys(query.subjects)), strict=True):
        there = [value for value in values if value is not None]
        made.append(_TOGETHER[query.together](there) if there else None)
    return made
