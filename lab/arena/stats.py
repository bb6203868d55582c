"""What the runs of a scenario say: means with intervals, paired tests against a reference, and ranks.

Owns the statistics of the arena. Seeds pair runs: the same seed is the same world for every contender, so differences
are taken seed by seed, and only seeds count under which everybody ran. A contender is ranked by the scenario's goal
among those whose guard (usually violations) is shown to be no worse than the reference's by more than a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache

import numpy as np

from lab.arena.running import RunRecord
from lab.outcome import About, Better, RunContender
from solvers.domain.arrays import Floats
from solvers.domain.value import value
from solvers.errors import InputError

LEVEL = 0.95
ALPHA = 1.0 - LEVEL
DUST = 1e-9
OURS = "headroom"
SEEDS_ENOUGH = 10
"""Fewer seeds tell large differences only, and every page says so."""
GUARD_POINTS, GUARD_PCT = 0.1, 1.0
"""What more of a guard is no harm: so many points of a percentage; of any other guard, so many percent."""


class GuardKept(StrEnum):
    """Whether a contender has no more of the guard than another, by more than the margin."""

    YES = "yes"
    """The whole interval of the paired difference is within the margin (non-inferiority)."""
    NO = "no"
    """The whole interval is beyond it."""
    UNTOLD = "untold"
    """Neither, or a single seed."""


@value
class Summary:
    """A metric over seeds; the interval of 95 % by Student's t, None for a single seed."""

    n: int
    mean: float
    low: float | None = None
    high: float | None = None


@value
class Versus:
    """A metric's paired difference from the reference, over common seeds. `p` holds after Holm's correction."""

    n: int
    difference: float
    difference_low: float | None = None
    difference_high: float | None = None
    relative_pct: Summary | None = None
    """By the geometric mean of the seeds' ratios. Where a value is not above nothing, the difference over the
    reference's mean, and None where that is nothing.
    """
    p_t: float | None = None
    p: float | None = None
    """The t test's (of logarithms where all values are above nothing) after correction; None where the seed changes
    nothing or there is but one.
    """
    distinct: bool = False
    """Whether the difference is more than noise: p below 5 %, or a difference where the seed changes nothing."""


@value
class MetricCell:
    metric: str
    better: Better
    summary: Summary
    versus: Versus | None = None
    """None for the reference itself, and without common seeds."""


@value
class Row:
    contender: str
    cells: tuple[MetricCell, ...]
    failed: int = 0
    guard: GuardKept = GuardKept.YES
    """Against the reference."""
    eligible: bool = True
    """Whether its guard is shown to be kept, and it leaves no service out."""
    rank: int | None = None
    """By the goal among the eligible; None for the others."""
    left_out: tuple[str, ...] = ()
    """Services that nobody could ask anything of, since there was nothing of them, while others served them."""

    def cell(self, metric: str) -> MetricCell | None:
        return next((each for each in self.cells if each.metric == metric), None)


@value
class Comparison:
    """All contenders on one scenario, best first."""

    about: About
    reference: str
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = ()
    """Under which every contender ran that did not fail: the others count for nobody."""
    unshared: tuple[int, ...] = ()


def check_reference(reference: str | None, contenders: Iterable[RunContender]) -> None:
    """Raise InputError for a reference that none of them is."""
    labels = {contender.label for contender in contenders}
    if reference is not None and reference not in labels:
        raise InputError(f"no run of {reference!r} is here; contenders are {', '.join(sorted(labels))}")


Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By contender, metric and seed."""


def comparisons(records: Sequence[RunRecord], reference: str | None = None) -> tuple[Comparison, ...]:
    """A comparison for each scenario, by name. Raises InputError for a reference that ran nowhere."""
    check_reference(reference, [record.contender for record in records])
    names = sorted({record.scenario for record in records})
    made = (compare([record for record in records if record.scenario == name], reference) for name in names)
    return tuple(each for each in made if each is not None)


def compare(records: Sequence[RunRecord], reference: str | None = None) -> Comparison | None:
    """The comparison of one scenario's runs; None where none of them has an outcome."""
    finished = [record for record in records if record.outcome is not None]
    if not finished:
        return None
    about = finished[0].about
    values, better = values_of(records)
    chosen = reference if reference in values else _reference(about, list(values))
    failed = {record.contender.label: 0 for record in records}
    for record in records:
        failed[record.contender.label] += record.outcome is None
    absent = left_out(finished)
    rows = [
        replace(_row(label, values, better, chosen, failed[label]), left_out=absent.get(label, ())) for label in failed
    ]
    seeds = shared_seeds(records)
    others = sorted({record.seed for record in finished}.difference(seeds))
    ranked = _ranked(_corrected(rows), about)
    return Comparison(about=about, reference=chosen, rows=ranked, seeds=seeds, unshared=tuple(others))


def shared_seeds(records: Sequence[RunRecord]) -> tuple[int, ...]:
    """Seeds under which every contender ran; who failed under one of them is not waited for."""
    failed = {record.contender.label for record in records if record.outcome is None}
    ran: dict[str, set[int]] = {}
    for record in records:
        if record.outcome is not None:
            ran.setdefault(record.contender.label, set()).add(record.seed)
    whole = [seeds for label, seeds in ran.items() if label not in failed] or list(ran.values())
    return tuple(sorted(set.intersection(*whole))) if whole else ()


def caution(seeds: int) -> str | None:
    """What few seeds are worth, in words; None where they are enough."""
    if seeds >= SEEDS_ENOUGH:
        return None
    if not seeds:
        return "nothing is compared: under no seed did everybody run"
    return (
        "a single seed shows nothing: run 10 or more"
        if seeds == 1
        else f"{seeds} seeds tell large differences only: run {SEEDS_ENOUGH} or more"
    )


def summary(numbers: Sequence[float]) -> Summary:
    n, mean = len(numbers), float(np.mean(numbers))
    if n < 2:
        return Summary(n=n, mean=mean)
    half = _students_t(n) * float(np.std(numbers, ddof=1)) / math.sqrt(n)
    return Summary(n=n, mean=mean, low=mean - half, high=mean + half)


@cache
def _students_t(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf(1.0 - ALPHA / 2.0, n - 1))


def versus(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Versus | None:
    """Paired tests over common seeds; None without any."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    left, right = np.array([ours[seed] for seed in seeds]), np.array([theirs[seed] for seed in seeds])
    told = summary((left - right).tolist())
    logs = log_ratios(ours, theirs)
    tested = np.array([*logs.values()]) if logs else left - right
    scale = 1.0 if logs else max(float(np.abs(left).max()), float(np.abs(right).max()), DUST)
    steady = bool(np.ptp(tested) <= DUST * scale)
    p = None if steady or len(seeds) < 2 else _p_value(tested)
    return Versus(
        n=len(seeds),
        difference=told.mean,
        difference_low=told.low,
        difference_high=told.high,
        relative_pct=in_percent(summary([*logs.values()])) if logs else _of_mean(told, float(right.mean())),
        p_t=p,
        p=p,
        distinct=steady and len(seeds) > 1 and abs(float(tested.mean())) > DUST * scale,
    )


def log_ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """By common seed, the logarithm of ours over theirs; none at all where a value is not above nothing."""
    seeds = sorted(ours.keys() & theirs.keys())
    if any(min(ours[seed], theirs[seed]) <= DUST for seed in seeds):
        return {}
    return {seed: math.log(ours[seed] / theirs[seed]) for seed in seeds}


def in_percent(logs: Summary) -> Summary:
    """A mean of logarithms of ratios, with its interval, as a relative difference."""
    return _mapped(logs, lambda log: 100.0 * math.expm1(log))


def turned(told: Summary, sign: float) -> Summary:
    """The same where better is above nothing: `sign` -1 for what is better lower."""
    flipped = told if sign > 0.0 else replace(told, low=told.high, high=told.low)
    return _mapped(flipped, lambda number: sign * number)


def _of_mean(told: Summary, base: float) -> Summary | None:
    """A difference over the reference's mean. Of nothing it is no part."""
    return _mapped(told, lambda number: 100.0 * number / abs(base)) if abs(base) > DUST else None


def _mapped(told: Summary, change: Callable[[float], float]) -> Summary:
    low, high = (None if bound is None else change(bound) for bound in (told.low, told.high))
    return Summary(n=told.n, mean=change(told.mean), low=low, high=high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[index]))
        corrected[index] = highest
    return corrected


def values_of(records: Sequence[RunRecord]) -> tuple[dict[str, dict[str, dict[int, float]]], dict[str, Better]]:
    """Floats by contender, metric and shared seed, and which direction of each metric is good."""
    seeds = shared_seeds(records)
    values: dict[str, dict[str, dict[int, float]]] = {}
    better: dict[str, Better] = {}
    for record in records:
        if record.outcome is None or record.seed not in seeds:
            continue
        own = values.setdefault(record.contender.label, {})
        for metric in record.outcome.metrics:
            own.setdefault(metric.name, {})[record.seed] = metric.value
            better[metric.name] = metric.better
    return values, better


def left_out(records: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    """By contender the services of which it had nothing, in a run in which somebody else served some. Callers that wait
    for their answers ask nothing of what is not there, so no number of a run tells.
    """
    absent: dict[str, set[str]] = {}
    served: set[tuple[int, str]] = set()
    for record in records:
        for item in record.outcome.services if record.outcome is not None else ():
            if item.completed > 0.0:
                served.add((record.seed, str(item.service)))
    for record in records:
        for item in record.outcome.services if record.outcome is not None else ():
            if item.asked == item.completed == 0.0 and (record.seed, str(item.service)) in served:
                absent.setdefault(record.contender.label, set()).add(str(item.service))
    return {label: tuple(sorted(services)) for label, services in absent.items()}


def _reference(about: About, labels: Sequence[str]) -> str:
    """Whom the others are tested against where nobody says: the best known of those that the scenario's authors
    propose, but for ours.
    """
    proposed = [label for label in about.planners if label in labels and label != OURS]
    others = [label for label in labels if label != OURS]
    return (proposed or others or list(labels))[0]


def _row(label: str, values: Values, better: Mapping[str, Better], reference: str, failed: int) -> Row:
    own, theirs = values.get(label, {}), values[reference]
    cells = tuple(
        MetricCell(
            metric=metric,
            better=better[metric],
            summary=summary(list(own[metric].values())),
            versus=versus(own[metric], theirs[metric]) if label != reference and metric in theirs else None,
        )
        for metric in sorted(own)
    )
    return Row(contender=label, cells=cells, failed=failed)


def _corrected(rows: Sequence[Row]) -> list[Row]:
    """Rows with p values corrected within each metric over the contenders."""
    tested: dict[str, dict[str, float]] = {}
    for row in rows:
        for cell in row.cells:
            if cell.versus is not None and cell.versus.p_t is not None:
                tested.setdefault(cell.metric, {})[row.contender] = cell.versus.p_t
    corrected = {metric: dict(zip(found, holm([*found.values()]), strict=True)) for metric, found in tested.items()}

    def told(cell: MetricCell, contender: str) -> MetricCell:
        p = corrected.get(cell.metric, {}).get(contender)
        if cell.versus is None or p is None:
            return cell
        return replace(cell, versus=replace(cell.versus, p=p, distinct=p < ALPHA))

    return [replace(row, cells=tuple(told(cell, row.contender) for cell in row.cells)) for row in rows]


def _ranked(rows: Sequence[Row], about: About) -> tuple[Row, ...]:
    """Best first: the eligible by the goal, then the others by the guard, then those without an outcome."""
    judged = []
    for row in rows:
        cell = row.cell(about.guard) if about.guard is not None else None
        kept = guard_kept(about.guard, cell.versus, cell.better) if cell is not None else GuardKept.YES
        fine = bool(row.cells) and not row.failed and not row.left_out
        judged.append(replace(row, guard=kept, eligible=fine and kept is GuardKept.YES))

    def order(row: Row) -> tuple[bool, float, float, str]:
        goal, guard = row.cell(about.goal), row.cell(about.guard or about.goal)
        return (
            not row.eligible or goal is None,
            0.0 if row.eligible else _badness(guard, Better.LOWER),
            _badness(goal, about.better),
            row.contender,
        )

    ordered = sorted(judged, key=order)
    eligible = [row for row in ordered if row.eligible and row.cell(about.goal) is not None]
    return tuple(replace(row, rank=eligible.index(row) + 1 if row in eligible else None) for row in ordered)


def _badness(cell: MetricCell | None, better: Better) -> float:
    if cell is None:
        return math.inf
    direction = better if cell.better is Better.NEITHER else cell.better
    return -cell.summary.mean if direction is Better.HIGHER else cell.summary.mean


def guard_kept(guard: str | None, told: Versus | None, better: Better) -> GuardKept:
    """Whether a guard is shown to be kept, by its paired difference from another's. Without one it is: there is no
    guard, or both are the same contender.
    """
    if guard is None or told is None:
        return GuardKept.YES
    points = guard.endswith("_pct")
    more = Summary(n=told.n, mean=told.difference, low=told.difference_low, high=told.difference_high)
    more = turned(more if points else told.relative_pct or more, -1.0 if better is Better.HIGHER else 1.0)
    if more.low is None or more.high is None:
        return GuardKept.UNTOLD
    margin = GUARD_POINTS if points else GUARD_PCT
    return GuardKept.YES if more.high <= margin else GuardKept.NO if more.low > margin else GuardKept.UNTOLD


def _p_value(differences: Floats) -> float:
    """Of the paired t test."""
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)
