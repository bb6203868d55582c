"""Measured profiles: import of many points at once, all or nothing, as JSON or CSV.

Owns the CSV form (a header row with exactly the point's fields, in any order) and the checks against the catalogue.
Faults point to the row and the column they stand in.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from app.errors import FieldFault, FieldsError
from app.services.actors import Deed
from app.store import documents, events, profiles
from app.store.documents import Kind
from app.store.engine import Database
from app.store.pages import Page
from app.store.profiles import ProfileSummary
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileOrigin, ProfilePoint
from solvers.errors import FieldError, HeadroomError

POINTS_MAX = 100_000
FAULTS_MAX = 50
LIST_SEPARATOR = ";"
"""Between the neighbours of a point in CSV."""

_COLUMNS = tuple(field.name for field in fields(ProfilePoint))
_REQUIRED = tuple(field.name for field in fields(ProfilePoint) if field.default is MISSING)
_INTEGERS = ("batch", "share_pct_sm", "clock_mhz_sm")
_INT4_MAX = 2**31 - 1
_FLOATS = ("latency_ms_mean", "latency_ms_p99", "memory_mib", "power_w")


class Profiles:
    """The profile library."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, model: str, gpu_type: str) -> Profile:
        """All points of a model on a GPU type. Raises NotFoundError."""
        with self._database.reading() as session:
            return profiles.get(session, model, gpu_type)

    def page(self, limit: int, cursor: str | None) -> Page[ProfileSummary]:
        """What there is, by model and GPU type."""
        with self._database.reading() as session:
            return profiles.page(session, limit=limit, cursor=cursor)

    def import_points(self, points: Sequence[ProfilePoint], places: Sequence[str], deed: Deed) -> int:
        """Store all points or none; returns how many configurations were written.

        `places` are the pointers of the points. Raises FieldsError for unknown models or GPU types.
        """
        if not points:
            raise FieldsError((FieldFault(pointer="", code="count-out-of-range", detail="there is no point in it"),))
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=False)
            known = {
                kind: {stored.key[0] for stored in documents.all_specs(session, kind)}
                for kind in (Kind.MODEL, Kind.GPU_TYPE)
            }
            faults = [
                FieldFault(pointer=f"{place}/{field}", code="reference-unknown", detail=f"there is no {word} {name}")
                for place, point in zip(places, points, strict=True)
                for field, kind, word, name in (
                    ("model", Kind.MODEL, "model", point.model),
                    ("gpu_type", Kind.GPU_TYPE, "GPU type", point.gpu_type),
                )
                if name not in known[kind]
            ]
            if faults:
                raise FieldsError(tuple(faults[:FAULTS_MAX]))
            written = profiles.put_points(session, points)
            pairs = sorted({(point.model, point.gpu_type) for point in points})
            for model, gpu_type in pairs:
                events.append(session, _event("profile.imported", model, gpu_type, deed))
        return written

    def delete(self, model: str, gpu_type: str, deed: Deed) -> None:
        """Forget all points of a model on a GPU type. Raises NotFoundError."""
        with self._database.transaction() as session:
            profiles.delete(session, model, gpu_type)
            events.append(session, _event("profile.deleted", model, gpu_type, deed))


def _event(name: str, model: str, gpu_type: str, deed: Deed) -> events.Event:
    return events.Event(
        name=name,
        actor=deed.actor,
        subject=f"profiles/{model}/{gpu_type}",
        request_id=deed.request_id,
        facts={},
    )


def read_csv(body: bytes) -> tuple[tuple[ProfilePoint, ...], tuple[str, ...]]:
    """Points of a CSV text and their places (`row:2`, counted as an editor shows lines). Raises FieldsError."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _single("", "request-malformed", "the text is not UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    points: list[ProfilePoint] = []
    places: list[str] = []
    faults: list[FieldFault] = []
    try:
        header = _header(next(reader, []))
        for cells in reader:
            if not cells:
                continue
            place = f"row:{reader.line_num}"
            point = _read_row(header, cells, place, faults)
            if point is not None:
                points.append(point)
                places.append(place)
            if len(faults) >= FAULTS_MAX or len(points) > POINTS_MAX:
                break
    except csv.Error as error:
        raise _single(f"row:{reader.line_num}", "request-malformed", f"this is no CSV: {error}") from None
    if faults:
        raise FieldsError(tuple(faults))
    if len(points) > POINTS_MAX:
        raise _single("", "count-out-of-range", f"import {POINTS_MAX} points at most at once")
    return tuple(points), tuple(places)


def _header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    unknown = [name for name in names if name not in _COLUMNS]
    missing = [name for name in _REQUIRED if name not in names]
    if unknown:
        raise _single("row:1", "unknown-field", f"unknown column {unknown[0][:60]!r}; known are {', '.join(_COLUMNS)}")
    if missing:
        raise _single("row:1", "missing", f"missing columns: {', '.join(missing)}")
    if len(set(names)) != len(names):
        raise _single("row:1", "key-repeated", "a column stands twice")
    return names


def _read_row(header: list[str], cells: list[str], place: str, faults: list[FieldFault]) -> ProfilePoint | None:
    if len(cells) != len(header):
        faults.append(
            FieldFault(pointer=place, code="value-invalid", detail=f"{len(cells)} cells under {len(header)} columns")
        )
        return None
    column = cell = ""
    arguments: dict[str, Any] = {}
    try:
        for column, cell in zip(header, cells, strict=True):
            if cell.strip() or column in _REQUIRED:
                arguments[column] = _cell(column, cell.strip())
        return ProfilePoint(**arguments)
    except FieldError as error:
        faults.append(FieldFault(pointer=f"{place}/{error.field}", code="value-invalid", detail=error.message))
    except ValueError:
        faults.append(
            FieldFault(pointer=f"{place}/{column}", code="value-invalid", detail=f"{cell[:40]!r} does not fit here")
        )
    return None


def _cell(column: str, text: str) -> object:
    if column in _INTEGERS:
        number = int(text[:12])
        if number > _INT4_MAX or len(text) > 12:
            raise ValueError(text)
        return number
    if column in _FLOATS:
        return float(text)
    if column == "neighbours":
        return tuple(ModelName(part.strip()) for part in text.split(LIST_SEPARATOR) if part.strip())
    if column == "origin":
        return ProfileOrigin(text)
    return GpuTypeName(text) if column == "gpu_type" else text


def _single(pointer: str, code: str, detail: str) -> HeadroomError:
    return FieldsError((FieldFault(pointer=pointer, code=code, detail=detail),))
