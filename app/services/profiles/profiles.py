"""Measured profiles as use cases: what there is, and the import of many points and pairs at once, all or nothing unless
bad rows may be skipped.

A body is a list of points, CSV of points, or one of the CSV forms of models alone and of pairs, where an empty clock is
the GPU type's highest. Each fault points to its row and column; names are checked against the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
from sqlalchemy.orm import Session

from app import kinds
from app.errors import Fault, FieldsError
from app.records import record, record_of
from app.services.declared.tokens import Deed
from app.services.profiles.doubts import doubts
from app.services.profiles.forms import (
    POINTS_COLUMN,
    CellFault,
    CsvForm,
    Sheet,
    SheetError,
    check_header,
    form_of,
    header_of,
    read_sheet,
    split,
)
from app.store import documents, profiles
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.profiles import ProfileLine
from solvers.domain.device import GpuType
from solvers.domain.ids import ModelName
from solvers.domain.profile import PairPoint, Profile, ProfileOrigin, ProfilePoint
from solvers.domain.workload import ModelVariant
from solvers.errors import FieldError, NotFoundError
from solvers.models.base import Facts, Groups, GroupSamples, Queries, Samples

POINTS_MAX = 100_000
FAULTS_MAX = 50
LIST_SEPARATOR = ";"
"""Between the neighbours of a point in CSV."""

_COLUMNS = tuple(field.name for field in fields(ProfilePoint))
_REQUIRED = tuple(field.name for field in fields(ProfilePoint) if field.default is MISSING)
_INTEGERS = ("batch", "share_pct_sm", "clock_mhz_sm")
_INT4_MAX = 2**31 - 1
_FLOATS = (
    "latency_ms_mean", "latency_ms_p99", "memory_mib", "power_w", "throughput_rps", "l2_util_pct", "dram_util_pct",
)  # fmt: skip
Row = TypeVar("Row")
Point = ProfilePoint | PairPoint
_NAMES: Mapping[type, tuple[str, ...]] = {
    ProfilePoint: ("model", "gpu_type"),
    PairPoint: ("gpu_type", "model_a", "model_b"),
}
"""What must be known of a point, in the order of its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A point or a pair, and the place it stands at: `row:2`, or a pointer."""

    place: str
    item: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPoints:
    rows: tuple[Placed, ...] = ()
    faults: tuple[Fault, ...] = ()


Reading = Callable[[Mapping[str, int]], ReadPoints]
"""A body that was read as far as that goes without the catalogue; it takes the highest clocks of known GPU types."""


def placed(items: Iterable[Point], pointer: str = "") -> tuple[Placed, ...]:
    """Points of a JSON list, which stands at a pointer."""
    return tuple(Placed(place=f"{pointer}/{index}", item=item) for index, item in enumerate(items))


def read_list(points: Sequence[ProfilePoint]) -> Reading:
    found = ReadPoints(rows=placed(points))
    return lambda _: found


def read_csv(body: bytes) -> Reading:
    """Rows of any CSV of measurements. Raises FieldsError when the text as a whole cannot be read."""
    header = header_of(body)
    try:
        if form_of(header) is None and POINTS_COLUMN in header:
            found = _of_fields(body)
            return lambda _: found
        sheet = read_sheet(body)
    except SheetError as error:
        fault = error.fault
        raise FieldsError.of(_place(fault.line, fault.column), fault.detail, "request-malformed") from None
    if sheet.form not in (CsvForm.SOLO, CsvForm.PAIRS):
        raise FieldsError.of("row:1", "no measured column stands here", "missing")
    _check_count(len(sheet) + len(sheet.faults))
    return partial(_of_sheet, sheet)


def _of_sheet(sheet: Sheet, clocks_mhz: Mapping[str, int]) -> ReadPoints:
    made = _pair if sheet.form is CsvForm.PAIRS else partial(_solo, clocks_mhz)
    return _collected(_rows(sheet), made, sheet.faults)


def _collected(
    rows: Iterable[tuple[str, Row]], made: Callable[[Row], Point], faults: Iterable[CellFault]
) -> ReadPoints:
    found: list[Placed] = []
    wrong = [Fault(pointer=_place(each.line, each.column), code="value-invalid", detail=each.detail) for each in faults]
    for place, row in rows:
        try:
            found.append(Placed(place=place, item=made(row)))
        except FieldError as error:
            pointer = f"{place}/{error.field}" if error.field else place
            wrong.append(Fault(pointer=pointer, code="value-invalid", detail=error.message))
        _check_count(len(found) + len(wrong))
    return ReadPoints(rows=tuple(found), faults=tuple(wrong))


def _solo(clocks_mhz: Mapping[str, int], row: dict[str, Any]) -> ProfilePoint:
    clock = row["clock_mhz_sm"]
    # Of an unknown GPU type nobody knows the highest clock; that it is unknown is said when it is looked up.
    highest = clocks_mhz.get(row["gpu_type"], 1) if clock is None else clock
    if row["latency_ms"] is None:
        raise FieldError("latency_ms", "a latency must stand here")
    return record_of(
        ProfilePoint,
        row,
        batch=int(row["batch"]),
        share_pct_sm=_whole("share_pct_sm", row["share_pct_sm"]),
        clock_mhz_sm=_whole("clock_mhz_sm", highest),
        latency_ms_mean=row["latency_ms"],
    )


def _pair(row: dict[str, Any]) -> PairPoint:
    return PairPoint(**{**row, "batch_a": int(row["batch_a"]), "batch_b": int(row["batch_b"])})


def _rows(sheet: Sheet) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and cells of every row; None where a number is not given."""
    names = [*sheet.names, *sheet.numbers]
    columns = (*sheet.names.values(), *(column.tolist() for column in sheet.numbers.values()))
    for line, *cells in zip(sheet.lines.tolist(), *columns, strict=True):
        # NaN is the one number that differs from itself.
        known = (None if cell != cell else cell for cell in cells)  # noqa: PLR0124
        yield f"row:{line}", dict(zip(names, known, strict=True))


def _whole(column: str, number: float) -> int:
    if number != math.floor(number) or number > _INT4_MAX:
        raise FieldError(column, f"{number:g} must be a whole number to be stored")
    return int(number)


def _place(line: int, column: str) -> str:
    return f"row:{line}/{column}" if column else f"row:{line}"


def _of_fields(body: bytes) -> ReadPoints:
    header, rows, lines, faults = split(body)
    check_header(header, _COLUMNS, _REQUIRED)
    placed_rows = ((f"row:{line}", cells) for line, cells in zip(lines.tolist(), rows, strict=True))
    return _collected(placed_rows, partial(_point, header), faults)


def _point(header: Sequence[str], cells: list[str]) -> ProfilePoint:
    arguments: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=True):
        if cell.strip() or column in _REQUIRED:
            try:
                arguments[column] = _cell(column, cell.strip())
            except ValueError:
                raise FieldError(column, f"{cell[:40]!r} does not fit here") from None
    return ProfilePoint(**arguments)


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
    return ProfileOrigin(text) if column == "origin" else text


def _check_count(count: int) -> None:
    if count > POINTS_MAX:
        raise FieldsError.of("", f"import {POINTS_MAX} points at most at once", "count-out-of-range")


@record
class Imported:
    """Points and pairs read, configurations written, rows left out, and what is strange about those that were not."""

    points: int
    pairs: int
    configurations: int
    skipped: tuple[Fault, ...]
    """Why rows were left out, the first of them."""
    skipped_count: int
    doubtful: tuple[Fault, ...] = ()
    """What is strange about rows that were stored as they are, the first of them."""


class Profiles:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, model: str, gpu_type: str) -> Profile:
        """All points of a model on a GPU type. Raises NotFoundError."""
        return self._database.read(profiles.get, model, gpu_type)

    def page(self, order: PageOrder) -> StoredPage[ProfileLine]:
        """What there is, by model and GPU type."""
        return self._database.read(profiles.page, order)

    def pairs(self, model: str, gpu_type: str, order: PageOrder) -> StoredPage[PairPoint]:
        return self._database.read(profiles.pairs_page, model, gpu_type, order)

    def import_points(self, reading: Reading, deed: Deed, *, skip_bad: bool = False) -> Imported:
        """Store everything or nothing, or with `skip_bad` everything that is right. Raises FieldsError naming what is
        wrong, unknown models and GPU types included.
        """
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=False)
            known = _KnownNames.of(session)
            settled = reading({name: item.clock_mhz_sm_max for name, item in known.facts.gpu_types.items()})
            faults = sorted((*settled.faults, *known.faults(settled.rows)), key=_row)
            bad = {fault.pointer.rpartition("/")[0] or fault.pointer for fault in faults}
            good = [row.item for row in settled.rows if row.place not in bad]
            points = [item for item in good if isinstance(item, ProfilePoint)]
            pairs = [item for item in good if isinstance(item, PairPoint)]
            if faults and not skip_bad:
                raise FieldsError(tuple(faults[:FAULTS_MAX]))
            if not points and not pairs:
                nothing = Fault(pointer="", code="count-out-of-range", detail="there is no point in it")
                raise FieldsError((*faults[: FAULTS_MAX - 1], nothing))
            doubtful = _doubts([row for row in settled.rows if row.place not in bad], session, known.facts)
            written = profiles.put_points(session, points) + profiles.put_pairs(session, pairs)
            touched = {(name, item.gpu_type) for item in good for name in models_of(item)}
            for model, gpu_type in sorted(touched):
                deed.note(session, "profile.imported", f"profiles/{model}/{gpu_type}", {})
        return Imported(
            points=len(points),
            pairs=len(pairs),
            configurations=written,
            skipped=tuple(faults[:FAULTS_MAX]),
            skipped_count=len(bad),
            doubtful=tuple(doubtful[:FAULTS_MAX]),
        )

    def delete(self, model: str, gpu_type: str, deed: Deed) -> None:
        """Forget all points of a model on a GPU type and the pairs it is part of there. Raises NotFoundError."""
        with self._database.transaction() as session:
            if not profiles.delete_pairs(session, model, gpu_type) or profiles.count(
                session, model=model, gpu_type=gpu_type
            ):
                profiles.delete_profile(session, model, gpu_type)
            deed.note(session, "profile.deleted", f"profiles/{model}/{gpu_type}", {})


def _doubts(rows: Sequence[Placed], session: Session, facts: Facts) -> list[Fault]:
    """What is strange about rows; pairs are held against what is stored of their members alone, too."""
    points = [(row.place, row.item) for row in rows if isinstance(row.item, ProfilePoint)]
    pairs = [(row.place, row.item) for row in rows if isinstance(row.item, PairPoint)]
    for key in sorted({(model, item.gpu_type) for _, item in pairs for model in models_of(item)}):
        with suppress(NotFoundError):
            points += [("", point) for point in profiles.get(session, *key).points]
    points = [(place, point) for place, point in points if not point.neighbours]
    samples, groups = samples_of([point for _, point in points]), groups_of([pair for _, pair in pairs])
    found = doubts(samples, groups, ([place for place, _ in points], [place for place, _ in pairs]), facts)
    return [Fault(pointer=each.place, code="value-doubtful", detail=each.detail) for each in found if each.place]


def samples_of(points: Sequence[ProfilePoint]) -> Samples:
    queries = Queries.of(
        [point.model for point in points],
        [point.gpu_type for point in points],
        [point.batch for point in points],
        [point.share_pct_sm for point in points],
        [point.clock_mhz_sm for point in points],
    )
    names = ("latency_ms_p99", "throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct")
    measured = {name: _column(getattr(point, name) for point in points) for name in names}
    return Samples.of(queries, [point.latency_ms_mean for point in points], **measured)


def groups_of(pairs: Sequence[PairPoint]) -> GroupSamples:
    first, second = (
        Queries.of(
            [getattr(pair, f"model_{side}") for pair in pairs],
            [pair.gpu_type for pair in pairs],
            [getattr(pair, f"batch_{side}") for pair in pairs],
            [getattr(pair, f"share_pct_{side}") for pair in pairs],
        )
        for side in "ab"
    )
    latency_ms = _column(latency for pair in pairs for latency in (pair.latency_ms_a, pair.latency_ms_b))
    return GroupSamples(groups=Groups.pairs(first, second), latency_ms=latency_ms)


def _column(cells: Iterable[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _KnownNames:
    facts: Facts

    @staticmethod
    def of(session: Session) -> _KnownNames:
        gpu_types = documents.values(session, kinds.GPU_TYPE, GpuType)
        models = documents.values(session, kinds.MODEL, ModelVariant)
        return _KnownNames(
            Facts(gpu_types={item.name: item for item in gpu_types}, models={item.name: item for item in models})
        )

    def faults(self, rows: Iterable[Placed]) -> Iterator[Fault]:
        """Names that are not known, in the order of the rows."""
        for row in rows:
            for field in _NAMES[type(row.item)]:
                yield from self._unknown(row.place, field, getattr(row.item, field))

    def _unknown(self, place: str, field: str, name: str) -> Iterator[Fault]:
        word = "GPU type" if field == "gpu_type" else "model"
        if name not in (self.facts.gpu_types if field == "gpu_type" else self.facts.models):
            detail = f"there is no {word} {name}; declare it first"
            yield Fault(pointer=f"{place}/{field}", code="reference-unknown", detail=detail)


def _row(fault: Fault) -> int:
    """The row a fault points to, so that faults stand as rows do; 0 where it points to none."""
    digits = fault.pointer.removeprefix("row:").removeprefix("/").partition("/")[0]
    return int(digits) if digits.isdigit() else 0


def models_of(item: Point) -> tuple[str, ...]:
    return (item.model,) if isinstance(item, ProfilePoint) else (item.model_a, item.model_b)
