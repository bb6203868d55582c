"""Sheets as what performance models take and give: samples, groups and questions in, answers out. A predicted number
has six significant digits, and is empty where nothing is known.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from app.services.profiles.forms import CsvForm, Sheet
from solvers.domain.arrays import Floats
from solvers.errors import InputError
from solvers.models.base import Answer, Groups, GroupSamples, Quantity, Queries, Samples
from solvers.models.suite import Suite

_MEASURED = ("throughput_rps", "power_w", "memory_mib", "l2_util_pct", "dram_util_pct")
SOLO_ANSWERS = ("latency_ms", "latency_ms_std", "throughput_rps", "power_w", "memory_mib")
PAIR_ANSWERS = ("latency_ms_a", "latency_ms_b", "latency_ms_a_std", "latency_ms_b_std")


def samples_of(sheets: Sequence[Sheet]) -> Samples:
    """All rows of sheets of the form SOLO, in their order."""
    measured = {name: _column(sheets, name) for name in _MEASURED}
    return Samples.of(queries_of(sheets), _column(sheets, "latency_ms"), **measured)


def group_samples_of(sheets: Sequence[Sheet]) -> GroupSamples:
    """All rows of sheets of the form PAIRS, in their order."""
    latency_ms = np.stack([_column(sheets, "latency_ms_a"), _column(sheets, "latency_ms_b")], axis=1).ravel()
    return GroupSamples(groups=groups_of(sheets), latency_ms=latency_ms)


def queries_of(sheets: Sequence[Sheet]) -> Queries:
    """What the rows of solo sheets ask."""
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
    """Models and GPU types that the rows are about."""
    gpu_types = sheet.names["gpu_type"]
    return {
        key
        for column, models in sheet.names.items()
        if column != "gpu_type"
        for key in zip(models, gpu_types, strict=True)
    }


def answers_to(sheet: Sheet, suite: Suite) -> dict[str, Floats]:
    """What a suite says to each row, by answer column. What the suite cannot answer is NaN."""
    if sheet.form.is_pairs:
        found = suite.predict_groups(groups_of([sheet]))
        columns = (found.mean[0::2], found.mean[1::2], found.std[0::2], found.std[1::2])
        return dict(zip(PAIR_ANSWERS, columns, strict=True))
    queries = queries_of([sheet])
    latency = suite.predict(queries)
    return {
        "latency_ms": latency.mean,
        "latency_ms_std": latency.std,
        "throughput_rps": 1000.0 * queries.batch / latency.mean,
        "power_w": _mean_of(suite, queries, Quantity.POWER_W),
        "memory_mib": _mean_of(suite, queries, Quantity.MEMORY_MIB),
    }


def unknown_rows(sheet: Sheet, answers: Mapping[str, Floats]) -> int:
    """How many rows got no latency."""
    columns = ("latency_ms_a", "latency_ms_b") if sheet.form.is_pairs else ("latency_ms",)
    return int(np.any([~np.isfinite(answers[name]) for name in columns], axis=0).sum()) if len(sheet) else 0


def written(sheet: Sheet, answers: Mapping[str, Floats]) -> str:
    """The rows as they were, without columns that the answers replace, and the answers behind them."""
    kept = [index for index, name in enumerate(sheet.header) if name not in answers]
    texts = [[_text(number) for number in column.tolist()] for column in answers.values()]
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
    answers = PAIR_ANSWERS if sheet.form.is_pairs else (*SOLO_ANSWERS, "l2_util_pct", "dram_util_pct")
    return tuple(name for name in sheet.header if name in answers)


def _mean_of(suite: Suite, queries: Queries, quantity: Quantity) -> Floats:
    if quantity not in suite.solo.spec.quantities:
        return Answer.unknown(len(queries)).mean
    return suite.predict(queries, quantity).mean


def _names(sheets: Sequence[Sheet], column: str) -> list[str]:
    return list(chain.from_iterable(sheet.names[column] for sheet in sheets))


def _column(sheets: Iterable[Sheet], column: str) -> Floats:
    parts = [sheet.numbers[column] for sheet in sheets]
    return np.concatenate(parts) if parts else np.zeros(0)


def _text(number: float) -> str:
    return f"{number:.6g}" if np.isfinite(number) else ""
