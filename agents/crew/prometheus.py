"""Reading Prometheus text: the few series that are asked for, out of a page that may be anything.

Owns the grammar of a line and its bounds. It refuses to guess: a line that is none, a value that is not finite or
beyond what a counter can be is left out, so that what is missing reads None and never 0.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

PAGE_BYTES_MAX = 4 * 2**20
SERIES_MAX = 20_000
LABELS_MAX = 64
VALUE_MAX = 1e18
"""Counters that cannot be told read as 2**63 minus a little in some exporters."""
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_VALUE = re.compile(r"\s*([^\s#]+)")


@dataclass(frozen=True, slots=True)
class Series:
    """One line."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts up to each bound, the last one infinite. Bounds in the unit of the metric."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        """All that was counted."""
        return self.counts[-1] if self.counts else 0.0

    def scaled(self, factor: float) -> Histogram:
        """The same in another unit."""
        return Histogram(tuple(bound * factor for bound in self.bounds), self.counts)

    def since(self, before: Histogram | None) -> Histogram:
        """What was counted after an earlier reading; all of it when counting began anew in between."""
        if before is None or before.bounds != self.bounds:
            return self
        grown = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return self if any(count < 0.0 for count in grown) else Histogram(self.bounds, grown)

    def percentile(self, level: float) -> float | None:
        """The value below which a part `level` lies, evenly spread within its bucket; None when nothing was counted.
        Beyond the last finite bound nothing is known but that it is more.
        """
        if self.total <= 0.0:
            return None
        wanted, lower, below = level * self.total, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted and count > below:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (wanted - below) / (count - below)
            lower, below = bound, count
        return lower

    def above(self, limit: float) -> float | None:
        """How many lie above a value, evenly spread within buckets; None without buckets."""
        if len(self.bounds) < 2:
            return None
        lower, below = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if limit < bound:
                # Within the bucket without an upper end, all may be above: that is the careful answer.
                inside = 0.0 if math.isinf(bound) else (limit - lower) / (bound - lower)
                return self.total - below - inside * (count - below)
            lower, below = bound, count
        return 0.0


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """The series of a page, by name."""

    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)

    def total(self, names: Iterable[str], where: Callable[[Mapping[str, str]], bool] | None = None) -> float | None:
        """The sum over the series of the first of these names that the page has; None when it has none."""
        for name in names:
            found = [each.value for each in self.series.get(name, ()) if where is None or where(each.labels)]
            if found:
                return math.fsum(found)
        return None

    def histogram(self, names: Iterable[str]) -> Histogram | None:
        """The histogram of the first of these names that the page has, summed over its series."""
        for name in names:
            counts: dict[float, float] = {}
            for each in self.series.get(f"{name}_bucket", ()):
                bound = _number(each.labels.get("le", ""))
                if bound is not None and not math.isnan(bound):
                    counts[bound] = counts.get(bound, 0.0) + each.value
            bounds = tuple(sorted(counts))
            rising = all(counts[low] <= counts[high] for low, high in itertools.pairwise(bounds))
            if bounds and rising and bounds[-1] == math.inf and bounds[0] >= 0.0:
                return Histogram(bounds, tuple(counts[bound] for bound in bounds))
        return None

    def of_model(self, model: str, label: str) -> SeriesPage:
        """Only the series of one model where any series names it; a process that calls its model otherwise still
        serves this one alone, so then all of them.
        """
        if not any(each.labels.get(label) == model for found in self.series.values() for each in found):
            return self
        return SeriesPage(
            {
                name: tuple(each for each in found if each.labels.get(label, model) == model)
                for name, found in self.series.items()
            }
        )


def read_page(body: bytes, names: tuple[str, ...]) -> SeriesPage:
    """The series whose names begin with one of `names`."""
    if len(body) > PAGE_BYTES_MAX:
        return SeriesPage()
    found: dict[str, list[Series]] = {}
    count = 0
    for line in body.decode("utf-8", "replace").split("\n"):
        # Most lines of a page are nobody's business here, and pages of large servers have thousands.
        if not line.startswith(names):
            continue
        read = _line(line)
        if read is not None and count < SERIES_MAX:
            found.setdefault(read[0], []).append(read[1])
            count += 1
    return SeriesPage({name: tuple(series) for name, series in found.items()})


def _line(line: str) -> tuple[str, Series] | None:
    name = _NAME.match(line)
    if name is None:
        return None
    labels, at = _labels(line, name.end())
    value = _VALUE.match(line, at) if at >= 0 else None
    number = None if value is None else _number(value[1])
    if number is None or not math.isfinite(number) or abs(number) > VALUE_MAX:
        return None
    return name[0], Series(labels, number)


def _labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """The labels that begin here and where they end; below 0 where they are none."""
    labels: dict[str, str] = {}
    while at < len(line) and line[at] == " ":
        at += 1
    if line[at : at + 1] != "{":
        return labels, at
    at += 1
    while line[at : at + 1] != "}":
        end = _LABEL.match(line, at)
        if end is None or len(labels) >= LABELS_MAX:
            return labels, -1
        labels[end[1]] = _ESCAPE.sub(_unescape, end[2])
        at = end.end()
    return labels, at + 1


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _number(text: str) -> float | None:
    if "_" in text or len(text) > 64:
        return None
    try:
        return float(text)
    except ValueError:
        return None
