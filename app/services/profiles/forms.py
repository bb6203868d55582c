"""The CSV forms of measurements and questions: which columns there are, which form a text has, and every cell that does
not fit, named by line and column; and sheets as what performance models take and give.

The header alone tells the form: columns in any order, names exact, columns that a form can do without may be missing,
unknown ones are refused, because a misspelt column must not be ignored. A column without surprises is converted at
once; only one that has any is looked at cell by cell. NaN, infinities, underscores and digits of other scripts, all of
which Python would take for numbers, are refused. What was read is kept by column for arithmetic and by row for answers.
Nothing is repaired: a row with a fault is reported, and whether the others may be used is the caller's choice. A
predicted number has six significant digits, and is empty where nothing is known.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

import numpy as np

from solvers.domain import profile as limits
from solvers.domain.arrays import Floats, Whole
from solvers.errors import InputError
from solvers.models.base import Answer, Groups, GroupSamples, Origin, Quantity, Queries, Samples
from solvers.models.suite import Suite

NAME_LENGTH_MAX = 256
# Digits may be read in one way only: of two, a long row of them would be tried at every place.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SURPRISE = re.compile(r"[^0-9eE+. \t\r-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRule:
    low: float
    high: float
    whole: bool = False

    def refusal(self, number: float) -> str | None:
        if number < self.low:
            return f"{number:.12g} must be at least {self.low:g}"
        if number > self.high:
            return f"{number:.12g} must be at most {self.high:.7g}"
        if self.whole and number != math.floor(number):
            return f"{number:.12g} must be a whole number"
        return None


def checked_numbers(cells: Sequence[str], rule: NumberRule, *, required: bool) -> tuple[Floats, dict[int, str]]:
    """The column's numbers (NaN where empty or wrong) and what is wrong, by row."""
    numbers = _converted(cells)
    if numbers is not None:
        out = (numbers < rule.low) | (numbers > rule.high)
        if rule.whole:
            out |= ~np.isnan(numbers) & (numbers != np.floor(numbers))
        if required:
            out |= np.isnan(numbers)
        out |= np.isinf(numbers)
        suspects = np.flatnonzero(out).tolist()
    else:
        numbers = np.full(len(cells), np.nan)
        suspects = list(range(len(cells)))
    wrong: dict[int, str] = {}
    for row in suspects:
        found = _number(cells[row], rule, required=required)
        if isinstance(found, str):
            wrong[row] = found
            numbers[row] = np.nan
        else:
            numbers[row] = found
    return numbers, wrong


def checked_names(cells: Sequence[str]) -> tuple[list[str], dict[int, str]]:
    """The column's names without surrounding blanks, and what is wrong, by row."""
    refusals = {cell: _refused_name(cell.strip()) for cell in dict.fromkeys(cells)}
    stripped = {cell: cell.strip() for cell in refusals}
    wrong = {row: text for row, cell in enumerate(cells) if (text := refusals[cell]) is not None}
    return [stripped[cell] for cell in cells], wrong


def _converted(cells: Sequence[str]) -> Floats | None:
    """All cells at once; None when any has to be looked at by itself."""
    if _SURPRISE.search("".join(cells)):
        return None
    try:
        return np.array([float(cell) if cell else math.nan for cell in cells], dtype=np.float64)
    except ValueError:
        return None


def _number(cell: str, rule: NumberRule, *, required: bool) -> float | str:
    text = cell.strip()
    if not text:
        return "a number must stand here" if required else math.nan
    if not _NUMBER.fullmatch(text):
        return f"{text[:40]!r} is not a number"
    number = float(text)
    if math.isinf(number):
        return f"{text[:40]!r} is too large"
    return rule.refusal(number) or number


def _refused_name(name: str) -> str | None:
    if not name:
        return "a name must stand here"
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        return f"a name is at most {NAME_LENGTH_MAX} printable characters"
    return None


class CsvForm(StrEnum):
    SOLO = "solo"
    PAIRS = "pairs"
    SOLO_QUERIES = "solo queries"
    PAIR_QUERIES = "pair queries"

    @property
    def is_pairs(self) -> bool:
        return self in (CsvForm.PAIRS, CsvForm.PAIR_QUERIES)


@dataclass(frozen=True, slots=True)
class _FormColumns:
    """Columns of a form by what they hold. `clock` may be missing; so may all but one of `measured`."""

    names: tuple[str, ...]
    numbers: Mapping[str, NumberRule]
    optional: Mapping[str, NumberRule]
    measured: Mapping[str, NumberRule]
    words: tuple[str, ...] = ()

    def all(self) -> tuple[str, ...]:
        return (*self.names, *self.numbers, *self.optional, *self.measured, *self.words)


_BATCH = NumberRule(low=1, high=limits.BATCH_MAX, whole=True)
_SHARE = NumberRule(low=limits.SHARE_PCT_MIN, high=100)
_CLOCK = NumberRule(low=limits.CLOCK_MHZ_MIN, high=limits.CLOCK_MHZ_MAX)
_LATENCY = NumberRule(low=limits.LATENCY_MS_MIN, high=limits.LATENCY_MS_MAX)
_PER_CENT = NumberRule(low=0, high=100)
_SOLO = _FormColumns(
    names=("model", "gpu_type"),
    numbers={"batch": _BATCH, "share_pct_sm": _SHARE},
    optional={"clock_mhz_sm": _CLOCK},
    measured={
        "latency_ms": _LATENCY,
        "throughput_rps": NumberRule(low=limits.THROUGHPUT_RPS_MIN, high=limits.THROUGHPUT_RPS_MAX),
        "power_w": NumberRule(low=0, high=limits.POWER_W_MAX),
        "memory_mib": NumberRule(low=limits.MEMORY_MIB_MIN, high=limits.MEMORY_MIB_MAX),
        "l2_util_pct": _PER_CENT,
        "dram_util_pct": _PER_CENT,
    },
)
_POINTS = replace(
    _SOLO, measured={**_SOLO.measured, "latency_ms_p99": _LATENCY}, words=("neighbours", "origin", "source")
)
"""Points as profiles keep them, under the solo form's names."""
_PAIRS = _FormColumns(
    names=("gpu_type", "model_a", "model_b"),
    numbers={"batch_a": _BATCH, "share_pct_a": _SHARE, "batch_b": _BATCH, "share_pct_b": _SHARE},
    optional={},
    measured={"latency_ms_a": _LATENCY, "latency_ms_b": _LATENCY},
)
_MARKS = (("semicolons", ";"), ("tabs", "\t"))
POINTS_COLUMN = "latency_ms_mean"
"""Points as they are stored have it, and no form has; what the solo form calls `latency_ms`."""
SOLO_COLUMNS = _SOLO.all()
PAIR_COLUMNS = (
    "gpu_type", "model_a", "batch_a", "share_pct_a", "model_b", "batch_b", "share_pct_b", *_PAIRS.measured,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CellFault:
    """What is wrong in a line (counted as an editor shows them); `column` is empty when the whole row is."""

    line: int
    column: str
    detail: str

    def sentence(self, source: str) -> str:
        """`file:17: share_pct_sm: 120 is above 100`."""
        return ": ".join(part for part in (f"{source}:{self.line}", self.column, self.detail) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The good rows of a text. `numbers` has every numeric column of the form (NaN: empty, or the column is missing).

    `header` and `rows` are the text as it was written.
    """

    form: CsvForm
    header: tuple[str, ...]
    rows: tuple[list[str], ...]
    lines: Whole
    names: Mapping[str, list[str]]
    numbers: Mapping[str, Floats]
    faults: tuple[CellFault, ...]

    def __len__(self) -> int:
        return len(self.rows)


def form_of(header: Sequence[str]) -> CsvForm | None:
    """The form a header belongs to, or None when it is another kind of file."""
    present = set(header)
    if "model_a" in present or "model_b" in present:
        return CsvForm.PAIRS if present & set(_PAIRS.measured) else CsvForm.PAIR_QUERIES
    if "model" in present and POINTS_COLUMN not in present:
        return CsvForm.SOLO if present & set(_SOLO.measured) else CsvForm.SOLO_QUERIES
    return None


def header_of(body: bytes) -> tuple[str, ...]:
    """The first row of a CSV text; empty when there is none that can be read."""
    first = body.split(b"\n", 1)[0].decode("utf-8-sig", errors="replace")
    with contextlib.suppress(csv.Error):
        return tuple(cell.strip() for cell in next(csv.reader([first]), []))
    return ()


def read_sheet(body: bytes, *, questions: bool = False) -> Sheet:
    """Rows of a CSV text of any form. With `questions` the measured columns are not looked at, so that a file of
    measurements can be asked again.

    Raises SheetError when the text as a whole cannot be read; single bad rows are in the sheet's `faults`.
    """
    header, rows, lines, faults = split(body)
    stored = POINTS_COLUMN in header
    if stored and "latency_ms" in header:
        raise SheetError(1, POINTS_COLUMN, "latency_ms is the same; one of them may stand here")
    if stored:
        header = tuple("latency_ms" if name == POINTS_COLUMN else name for name in header)
    form = form_of(header)
    if form is None:
        between = next((f"; cells stand between commas, not {word}" for word, mark in _MARKS if mark in header[0]), "")
        known = f"{', '.join(SOLO_COLUMNS[:4])} (one model alone) or {', '.join(PAIR_COLUMNS[:7])} (two on one device)"
        raise SheetError(1, "", f"this header is of no form known here; needed are the columns {known}{between}")
    columns = _PAIRS if form.is_pairs else _POINTS if stored else _SOLO
    check_header(header, columns.all(), (*columns.names, *columns.numbers))
    if questions:
        form = CsvForm.PAIR_QUERIES if form.is_pairs else CsvForm.SOLO_QUERIES
    by_name = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    reading = _Reading(columns, by_name, lines, faults)
    names = {name: reading.names(name) for name in columns.names}
    numbers = {name: reading.numbers(name, rule, required=True) for name, rule in columns.numbers.items()}
    numbers |= {name: reading.numbers(name, rule, required=False) for name, rule in columns.optional.items()}
    if form in (CsvForm.SOLO, CsvForm.PAIRS):
        measured = {name: reading.numbers(name, rule, required=False) for name, rule in columns.measured.items()}
        reading.need_any(measured)
        reading.need_alone()
        numbers |= measured
    good = np.flatnonzero(~reading.bad)
    whole = not reading.bad.any()
    return Sheet(
        form=form,
        header=header,
        rows=tuple(rows) if whole else tuple(rows[index] for index in good),
        lines=lines[good],
        names=names if whole else {name: [cells[index] for index in good] for name, cells in names.items()},
        numbers=numbers if whole else {name: cells[good] for name, cells in numbers.items()},
        faults=tuple(sorted(reading.faults, key=lambda fault: fault.line)),
    )


class SheetError(InputError):
    def __init__(self, line: int, column: str, detail: str) -> None:
        self.fault = CellFault(line, column, detail)
        super().__init__(self.fault.sentence("line"))


class _Reading:
    """Columns of one text while they are checked; collects faults and which rows have any."""

    def __init__(
        self,
        columns: _FormColumns,
        cells: Mapping[str, Sequence[str]],
        lines: Whole,
        faults: list[CellFault],
    ) -> None:
        self._columns = columns
        self._cells = cells
        self._lines = lines
        self.bad = np.zeros(len(lines), dtype=np.bool_)
        self.faults = faults

    def names(self, column: str) -> list[str]:
        cells, wrong = checked_names(self._cells[column])
        self._note(column, wrong)
        return cells

    def numbers(self, column: str, rule: NumberRule, *, required: bool) -> Floats:
        if column not in self._cells:
            return np.full(len(self._lines), np.nan)
        found, wrong = checked_numbers(self._cells[column], rule, required=required)
        self._note(column, wrong)
        return found

    def need_any(self, measured: Mapping[str, Floats]) -> None:
        """A row in which nothing was measured tells nothing."""
        empty = np.all([np.isnan(column) for column in measured.values()], axis=0) & ~self.bad
        first = next(name for name in self._columns.measured if name in self._cells)
        self._note(first, {int(row): "nothing measured stands in this row" for row in np.flatnonzero(empty)})

    def need_alone(self) -> None:
        """A stored point may name neighbours, whose shares and batches it does not tell."""
        cells = self._cells.get("neighbours", ())
        told = "it was measured beside others, and only rows of models alone are learned from"
        self._note("neighbours", {row: told for row, cell in enumerate(cells) if cell.strip()})

    def _note(self, column: str, wrong: Mapping[int, str]) -> None:
        for row, detail in wrong.items():
            self.bad[row] = True
            self.faults.append(CellFault(int(self._lines[row]), column, detail))


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SheetError(line, "", "this is not UTF-8 text") from None


def split(body: bytes) -> tuple[tuple[str, ...], list[list[str]], Whole, list[CellFault]]:
    """Header, rows of its width with their lines, and the rows of another width as faults. Raises SheetError."""
    reader = csv.reader(io.StringIO(_text(body), newline=""), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    faults: list[CellFault] = []
    header: tuple[str, ...] = ()
    try:
        header = tuple(cell.strip() for cell in next(reader, []))
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) == len(header):
                rows.append(cells)
                lines.append(reader.line_num)
            else:
                found = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
                faults.append(CellFault(reader.line_num, "", f"{found} under {len(header)} columns"))
    except csv.Error as error:
        raise SheetError(reader.line_num, "", f"this is no CSV: {error}") from None
    if not any(header):
        raise SheetError(1, "", "the first line is empty; it must name the columns")
    return header, rows, np.array(lines, dtype=np.int64), faults


def check_header(header: Sequence[str], known: Sequence[str], needed: Sequence[str]) -> None:
    """Raises SheetError for a column that is not known, stands twice, or is missing."""
    for name in header:
        if name not in known:
            raise SheetError(1, name[:60], f"unknown column; known are {', '.join(known)}")
        if header.count(name) > 1:
            raise SheetError(1, name, "the column stands twice")
    for name in needed:
        if name not in header:
            raise SheetError(1, name, "the column is missing")


_MEASURED = ("latency_ms_p99", "throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct")
SOLO_ANSWERS = ("latency_ms", "latency_ms_std", "throughput_rps", "power_w", "memory_mib", "origin", "support")
PAIR_ANSWERS = (
    "latency_ms_a", "latency_ms_b", "latency_ms_a_std", "latency_ms_b_std", "origin_a", "origin_b", "support_a",
    "support_b",
)  # fmt: skip
Answers = Mapping[str, Floats | list[str]]
"""By column; words stand as they are."""


def samples_of(sheets: Sequence[Sheet]) -> Samples:
    """All rows of sheets of the form SOLO, in their order."""
    measured = {name: _column(sheets, name) for name in _MEASURED}
    return Samples.of(queries_of(sheets), _column(sheets, "latency_ms"), **measured)


def group_samples_of(sheets: Sequence[Sheet]) -> GroupSamples:
    """All rows of sheets of the form PAIRS, in their order."""
    latency_ms = np.stack([_column(sheets, "latency_ms_a"), _column(sheets, "latency_ms_b")], axis=1).ravel()
    return GroupSamples(groups=groups_of(sheets), latency_ms=latency_ms)


def queries_of(sheets: Sequence[Sheet]) -> Queries:
    return Queries.of(
        _names(sheets, "model"),
        _names(sheets, "gpu_type"),
        _column(sheets, "batch"),
        _column(sheets, "share_pct_sm"),
        _column(sheets, "clock_mhz_sm"),
    )


def groups_of(sheets: Sequence[Sheet]) -> Groups:
    """The pairs that the rows of pair sheets are about; member `a` of row i is row 2i of the members."""
    gpu_types = _names(sheets, "gpu_type")
    first, second = (
        Queries.of(
            _names(sheets, f"model_{side}"),
            gpu_types,
            _column(sheets, f"batch_{side}"),
            _column(sheets, f"share_pct_{side}"),
        )
        for side in "ab"
    )
    return Groups.pairs(first, second)


def keys_of(sheet: Sheet) -> set[tuple[str, str]]:
    gpu_types = sheet.names["gpu_type"]
    return {
        key
        for column, models in sheet.names.items()
        if column != "gpu_type"
        for key in zip(models, gpu_types, strict=True)
    }


def answers_to(sheet: Sheet, suite: Suite) -> Answers:
    """What a suite says to each row, by answer column. What the suite cannot answer is NaN, or no word."""
    if sheet.form.is_pairs:
        found = suite.predict_groups(groups_of([sheet]))
        origin, support = _words(found)
        parts = (found.mean, found.std, origin, support)
        return dict(zip(PAIR_ANSWERS, (part[side::2] for part in parts for side in (0, 1)), strict=True))
    queries = queries_of([sheet])
    latency = suite.predict(queries)
    others = (Quantity.THROUGHPUT_RPS, Quantity.POWER_W, Quantity.MEMORY_MIB)
    throughput_rps, power_w, memory_mib = (_mean_of(suite, queries, quantity) for quantity in others)
    if Quantity.THROUGHPUT_RPS not in suite.solo.spec.quantities:
        throughput_rps = 1000.0 * queries.batch / latency.mean
    origin, support = _words(latency)
    columns = (latency.mean, latency.std, throughput_rps, power_w, memory_mib, origin, support)
    return dict(zip(SOLO_ANSWERS, columns, strict=True))


def _words(answer: Answer) -> tuple[list[str], list[str]]:
    """Origin and support of what has an answer."""
    known = np.isfinite(answer.mean).tolist()
    origins = [Origin(origin).name.lower() if here else "" for origin, here in zip(answer.origin, known, strict=True)]
    support = [str(inside).lower() if here else "" for inside, here in zip(answer.support, known, strict=True)]
    return origins, support


def unknown_rows(sheet: Sheet, answers: Answers) -> int:
    columns = ("latency_ms_a", "latency_ms_b") if sheet.form.is_pairs else ("latency_ms",)
    known = [np.isfinite(np.asarray(answers[name], dtype=np.float64)) for name in columns]
    return int((~np.all(known, axis=0)).sum()) if len(sheet) else 0


def written(sheet: Sheet, answers: Answers) -> str:
    """The rows as they were, without measured columns and those that answers replace, and the answers behind them."""
    left_out = {*answers, *replaced_columns(sheet)}
    kept = [index for index, name in enumerate(sheet.header) if name not in left_out]
    texts = [
        column if isinstance(column, list) else [f"{number:.6g}" if np.isfinite(number) else "" for number in column]
        for column in answers.values()
    ]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*(sheet.header[index] for index in kept), *answers])
    writer.writerows(
        [*(row[index] for index in kept), *new] for row, new in zip(sheet.rows, zip(*texts, strict=True), strict=True)
    )
    return stream.getvalue()


def replaced_columns(sheet: Sheet) -> tuple[str, ...]:
    """Columns of a file of questions that hold measurements and are not looked at."""
    asked = CsvForm.PAIR_QUERIES if sheet.form.is_pairs else CsvForm.SOLO_QUERIES
    if sheet.form is not asked:
        raise InputError(f"this is a sheet of {sheet.form.value}")
    answers = PAIR_ANSWERS if sheet.form.is_pairs else (*SOLO_ANSWERS, *_MEASURED)
    return tuple(name for name in sheet.header if name in answers)


def _mean_of(suite: Suite, queries: Queries, quantity: Quantity) -> Floats:
    if quantity not in suite.solo.spec.quantities:
        return Answer.unknown(len(queries)).mean
    return suite.predict(queries, quantity).mean


def _names(sheets: Sequence[Sheet], column: str) -> list[str]:
    return list(chain.from_iterable(sheet.names[column] for sheet in sheets))


def _column(sheets: Iterable[Sheet], column: str) -> Floats:
    parts = [sheet.numbers[column] if column in sheet.numbers else np.full(len(sheet), np.nan) for sheet in sheets]
    return np.concatenate(parts) if parts else np.zeros(0)
