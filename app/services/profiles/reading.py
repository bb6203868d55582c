"""Bodies of measurements: lists of points, CSV of points, and the CSV forms of models alone and of pairs.

Owns which CSV a header announces, how a row of a form becomes a point (an empty clock is the GPU type's highest), and
that each fault points to its row and column. It refuses to store anything.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from app.errors import Fault, FieldsError
from app.services.profiles.forms import CsvForm, Sheet, SheetError, form_of, header_of, read_sheet
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import PairPoint, ProfileOrigin, ProfilePoint
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
