"""Measured profiles as use cases: what there is, and the import of many points and pairs at once, all or nothing unless
bad rows may be skipped.

A body is a list of points, CSV of points, or one of the CSV forms of models alone and of pairs, where an empty clock is
the GPU type's highest. Each fault points to its row and column; names are checked against the catalogue.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from app import kinds
from app.errors import Fault, FieldsError
from app.records import record
from app.services.declared.tokens import Deed
from app.services.profiles.forms import CsvForm, Sheet, SheetError, form_of, header_of, read_sheet
from app.store import documents, events, profiles
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.profiles import ProfileLine
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import PairPoint, Profile, ProfileOrigin, ProfilePoint
from solvers.errors import FieldError, HeadroomError

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
_OPTIONAL_CELLS = ("throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPoints:
    """Points and pairs, each with the place it stands at (`row:2`, or a pointer), and what could not be read."""

    points: tuple[ProfilePoint, ...] = ()
    places: tuple[str, ...] = ()
    pairs: tuple[PairPoint, ...] = ()
    pair_places: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyReading:
    """A body that was read as far as that goes without the catalogue."""

    points: ReadPoints = ReadPoints()
    sheet: Sheet | None = None

    def settled(self, clocks_mhz: Mapping[str, int]) -> ReadPoints:
        """The points; `clocks_mhz` are the highest clocks of the known GPU types."""
        if self.sheet is None:
            return self.points
        return _of_pairs(self.sheet) if self.sheet.form is CsvForm.PAIRS else _of_solo(self.sheet, clocks_mhz)


def read_list(points: Sequence[ProfilePoint]) -> BodyReading:
    """Points of a JSON list."""
    places = tuple(f"/{index}" for index in range(len(points)))
    return BodyReading(points=ReadPoints(points=tuple(points), places=places))


def read_csv(body: bytes) -> BodyReading:
    """Rows of any CSV of measurements. Raises FieldsError when the text as a whole cannot be read."""
    form = form_of(header_of(body))
    if form is None:
        return BodyReading(points=_read_points(body))
    try:
        sheet = read_sheet(body)
    except SheetError as error:
        fault = error.fault
        raise _single(_place(fault.line, fault.column), "request-malformed", fault.detail) from None
    if sheet.form not in (CsvForm.SOLO, CsvForm.PAIRS):
        raise _single("row:1", "missing", "no measured column stands here")
    _check_count(len(sheet) + len(sheet.faults))
    return BodyReading(sheet=sheet)


def _of_solo(sheet: Sheet, clocks_mhz: Mapping[str, int]) -> ReadPoints:
    faults = _sheet_faults(sheet)
    points: list[ProfilePoint] = []
    places: list[str] = []
    for place, row in _rows(sheet):
        clock = row["clock_mhz_sm"]
        # Of an unknown GPU type nobody knows the highest clock; that it is unknown is said when it is looked up.
        highest = clocks_mhz.get(row["gpu_type"], 1) if clock is None else clock
        try:
            if row["latency_ms"] is None:
                raise FieldError("latency_ms", "a latency must stand here")
            point = ProfilePoint(
                model=ModelName(row["model"]),
                gpu_type=GpuTypeName(row["gpu_type"]),
                batch=int(row["batch"]),
                share_pct_sm=_whole("share_pct_sm", row["share_pct_sm"]),
                clock_mhz_sm=_whole("clock_mhz_sm", highest),
                latency_ms_mean=row["latency_ms"],
                **{name: row[name] for name in _OPTIONAL_CELLS},
            )
        except FieldError as error:
            faults.append(Fault(pointer=f"{place}/{error.field}", code="value-invalid", detail=error.message))
            continue
        points.append(point)
        places.append(place)
    return ReadPoints(points=tuple(points), places=tuple(places), faults=tuple(faults))


def _of_pairs(sheet: Sheet) -> ReadPoints:
    faults = _sheet_faults(sheet)
    pairs: list[PairPoint] = []
    places: list[str] = []
    for place, row in _rows(sheet):
        try:
            pairs.append(PairPoint(**{**row, "batch_a": int(row["batch_a"]), "batch_b": int(row["batch_b"])}))
        except FieldError as error:
            faults.append(Fault(pointer=f"{place}/{error.field}", code="value-invalid", detail=error.message))
            continue
        places.append(place)
    return ReadPoints(pairs=tuple(pairs), pair_places=tuple(places), faults=tuple(faults))


def _rows(sheet: Sheet) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and cells of every row; None where a number is not given."""
    names = [*sheet.names, *sheet.numbers]
    for line, *cells in zip(
        sheet.lines.tolist(),
        *sheet.names.values(),
        *(column.tolist() for column in sheet.numbers.values()),
        strict=True,
    ):
        # NaN is the one number that differs from itself.
        known = (None if cell != cell else cell for cell in cells)  # noqa: PLR0124
        yield f"row:{line}", dict(zip(names, known, strict=True))


def _whole(column: str, number: float) -> int:
    if number != math.floor(number) or number > _INT4_MAX:
        raise FieldError(column, f"{number:g} must be a whole number to be stored")
    return int(number)


def _sheet_faults(sheet: Sheet) -> list[Fault]:
    return [
        Fault(pointer=_place(fault.line, fault.column), code="value-invalid", detail=fault.detail)
        for fault in sheet.faults
    ]


def _place(line: int, column: str) -> str:
    return f"row:{line}/{column}" if column else f"row:{line}"


def _read_points(body: bytes) -> ReadPoints:
    """The rows of a CSV whose columns are a point's fields."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _single("", "request-malformed", "the text is not UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    points: list[ProfilePoint] = []
    places: list[str] = []
    faults: list[Fault] = []
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
            _check_count(len(points) + len(faults))
    except csv.Error as error:
        raise _single(f"row:{reader.line_num}", "request-malformed", f"this is no CSV: {error}") from None
    return ReadPoints(points=tuple(points), places=tuple(places), faults=tuple(faults))


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


def _read_row(header: list[str], cells: list[str], place: str, faults: list[Fault]) -> ProfilePoint | None:
    if len(cells) != len(header):
        faults.append(
            Fault(pointer=place, code="value-invalid", detail=f"{len(cells)} cells under {len(header)} columns")
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
        faults.append(Fault(pointer=f"{place}/{error.field}", code="value-invalid", detail=error.message))
    except ValueError:
        faults.append(
            Fault(pointer=f"{place}/{column}", code="value-invalid", detail=f"{cell[:40]!r} does not fit here")
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


def _check_count(count: int) -> None:
    if count > POINTS_MAX:
        raise _single("", "count-out-of-range", f"import {POINTS_MAX} points at most at once")


def _single(pointer: str, code: str, detail: str) -> HeadroomError:
    return FieldsError((Fault(pointer=pointer, code=code, detail=detail),))


T = TypeVar("T")


@record
class Imported:
    """Points and pairs read, configurations written, rows left out."""

    points: int
    pairs: int
    configurations: int
    skipped: tuple[Fault, ...]
    """Why rows were left out, the first of them."""
    skipped_count: int


class Profiles:
    """The measured profiles."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, model: str, gpu_type: str) -> Profile:
        """All points of a model on a GPU type. Raises NotFoundError."""
        with self._database.reading() as session:
            return profiles.get(session, model, gpu_type)

    def page(self, order: PageOrder) -> StoredPage[ProfileLine]:
        """What there is, by model and GPU type."""
        with self._database.reading() as session:
            return profiles.page(session, order)

    def pairs(self, model: str, gpu_type: str, order: PageOrder) -> StoredPage[PairPoint]:
        """Pairs measured on a GPU type with a model in them."""
        with self._database.reading() as session:
            return profiles.pairs_page(session, model, gpu_type, order)

    def import_points(self, reading: BodyReading, deed: Deed, *, skip_bad: bool = False) -> Imported:
        """Store everything or nothing, or with `skip_bad` everything that is right.

        Raises FieldsError naming what is wrong, unknown models and GPU types included.
        """
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=False)
            known = _KnownNames.of(session)
            settled = reading.settled(known.clocks_mhz)
            faults = sorted((*settled.faults, *known.faults(settled)), key=_row)
            bad = {fault.pointer.rpartition("/")[0] or fault.pointer for fault in faults}
            points = _without(settled.points, settled.places, bad)
            pairs = _without(settled.pairs, settled.pair_places, bad)
            if faults and not skip_bad:
                raise FieldsError(tuple(faults[:FAULTS_MAX]))
            if not points and not pairs:
                nothing = Fault(pointer="", code="count-out-of-range", detail="there is no point in it")
                raise FieldsError((*faults[: FAULTS_MAX - 1], nothing))
            written = profiles.put_points(session, points) + profiles.put_pairs(session, pairs)
            for model, gpu_type in sorted(_touched(points, pairs)):
                events.append(session, _event("profile.imported", model, gpu_type, deed))
        return Imported(
            points=len(points),
            pairs=len(pairs),
            configurations=written,
            skipped=tuple(faults[:FAULTS_MAX]),
            skipped_count=len(bad),
        )

    def delete(self, model: str, gpu_type: str, deed: Deed) -> None:
        """Forget all points of a model on a GPU type and the pairs it is part of there. Raises NotFoundError."""
        with self._database.transaction() as session:
            if not profiles.delete_pairs(session, model, gpu_type) or profiles.count(
                session, model=model, gpu_type=gpu_type
            ):
                profiles.delete_profile(session, model, gpu_type)
            events.append(session, _event("profile.deleted", model, gpu_type, deed))


@dataclass(frozen=True, slots=True)
class _KnownNames:
    """Names that measurements may be about."""

    models: frozenset[str]
    clocks_mhz: dict[str, int]

    @staticmethod
    def of(session: Session) -> _KnownNames:
        models = frozenset(stored.key[0] for stored in documents.all_specs(session, kinds.MODEL))
        types = documents.all_specs(session, kinds.GPU_TYPE)
        return _KnownNames(models, {stored.key[0]: int(stored.spec["clocks_mhz_sm"][-1]) for stored in types})

    def faults(self, settled: ReadPoints) -> Iterator[Fault]:
        """Names that are not known, in the order of the rows."""
        for place, point in zip(settled.places, settled.points, strict=True):
            yield from self._unknown(place, "model", point.model)
            yield from self._unknown(place, "gpu_type", point.gpu_type)
        for place, pair in zip(settled.pair_places, settled.pairs, strict=True):
            yield from self._unknown(place, "gpu_type", pair.gpu_type)
            yield from self._unknown(place, "model_a", pair.model_a)
            yield from self._unknown(place, "model_b", pair.model_b)

    def _unknown(self, place: str, field: str, name: str) -> Iterator[Fault]:
        known, word = (self.clocks_mhz, "GPU type") if field == "gpu_type" else (self.models, "model")
        if name not in known:
            detail = f"there is no {word} {name}; declare it first"
            yield Fault(pointer=f"{place}/{field}", code="reference-unknown", detail=detail)


def _row(fault: Fault) -> int:
    """The row a fault points to, so that faults stand as rows do; 0 where it points to none."""
    digits = fault.pointer.removeprefix("row:").removeprefix("/").partition("/")[0]
    return int(digits) if digits.isdigit() else 0


def _without(items: Sequence[T], places: Sequence[str], bad: set[str]) -> list[T]:
    return [item for item, place in zip(items, places, strict=True) if place not in bad]


def _touched(points: Sequence[ProfilePoint], pairs: Sequence[PairPoint]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = {(point.model, point.gpu_type) for point in points}
    for pair in pairs:
        found |= {(pair.model_a, pair.gpu_type), (pair.model_b, pair.gpu_type)}
    return found


def _event(name: str, model: str, gpu_type: str, deed: Deed) -> events.Event:
    return events.Event(
        name=name,
        actor=deed.actor,
        subject=f"profiles/{model}/{gpu_type}",
        request_id=deed.request_id,
        facts={},
    )
