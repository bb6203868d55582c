"""What the runs of a scenario say: means with intervals, paired tests against a reference, and ranks.

Owns the statistics of the arena. Seeds pair runs: the same seed is the same world for every contender, so differences
are taken seed by seed. A contender is ranked by the scenario's goal among those whose guard (usually violations) is not
worse than the reference's by more than noise says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lab.arena.running import RunRecord
from lab.outcome import About, Better
from solvers.domain.arrays import Floats
from solvers.domain.value import value
from solvers.errors import InputError

LEVEL = 0.95
ALPHA = 1.0 - LEVEL
RESAMPLES = 2000
WILCOXON_MIN = 6
"""Fewer pairs cannot reach 5 % by ranks, whatever they are."""
DUST = 1e-9
OURS = "headroom"


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
    relative_pct: float | None = None
    """The mean's relative difference, with its bootstrap interval; None where the reference's mean is nothing."""
    relative_pct_low: float | None = None
    relative_pct_high: float | None = None
    p_t: float | None = None
    p_wilcoxon: float | None = None
    p: float | None = None
    """The t test's after correction; None where the seed changes nothing or there is but one."""
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
    eligible: bool = True
    """Whether its guard is no worse than the reference's by more than noise says, and it leaves no service out."""
    rank: int | None = None
    """By the goal among the eligible; None for the others."""
    left_out: tuple[str, ...] = ()
    """Services that nobody could ask anything of, since there was nothing of them, while others served them."""

    def cell(self, metric: str) -> MetricCell | None:
        return next((each for each in self.cells if each.metric == metric), None)


@value
class ContenderVerdict:
    contender: str
    against: str
    gain_pct: float | None
    """By how much the goal is better, of the other's; with its interval."""
    gain_pct_low: float | None = None
    gain_pct_high: float | None = None
    guard_kept: bool = True
    """Whether ours has no more of the guard than the other, but for noise."""


@value
class Comparison:
    """All contenders on one scenario, best first."""

    about: About
    reference: str
    rows: tuple[Row, ...]
    verdict: ContenderVerdict | None = None


Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By contender, metric and seed."""


def comparisons(records: Sequence[RunRecord], reference: str | None = None) -> tuple[Comparison, ...]:
    """A comparison for each scenario, by name. Raises InputError for a reference that ran nowhere."""
    labels = {record.contender.label for record in records}
    if reference is not None and reference not in labels:
        raise InputError(f"no run of {reference!r} is here; contenders are {', '.join(sorted(labels))}")
    names = sorted({record.scenario for record in records})
    made = (compare([record for record in records if record.scenario == name], reference) for name in names)
    return tuple(each for each in made if each is not None)


def compare(records: Sequence[RunRecord], reference: str | None = None) -> Comparison | None:
    """The comparison of one scenario's runs; None where none of them has an outcome."""
    finished = [record for record in records if record.outcome is not None]
    if not finished:
        return None
    about = finished[0].about
    values, better = values_of(finished)
    chosen = reference if reference in values else _reference(about, list(values))
    failed = dict.fromkeys(values, 0) | {record.contender.label: 0 for record in records}
    for record in records:
        failed[record.contender.label] += record.outcome is None
    absent = left_out(finished)
    rows = [
        replace(_row(label, values, better, chosen, failed[label]), left_out=absent.get(label, ())) for label in failed
    ]
    ranked = _ranked(_corrected(rows), about)
    return Comparison(about=about, reference=chosen, rows=ranked, verdict=_verdict(about, values, better, ranked))


def summary(numbers: Sequence[float]) -> Summary:
    n, mean = len(numbers), float(np.mean(numbers))
    if n < 2:
        return Summary(n=n, mean=mean)
    from scipy.stats import t

    half = float(t.ppf(1.0 - ALPHA / 2.0, n - 1)) * float(np.std(numbers, ddof=1)) / math.sqrt(n)
    return Summary(n=n, mean=mean, low=mean - half, high=mean + half)


def versus(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Versus | None:
    """Paired tests over common seeds; None without any."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    left, right = np.array([ours[seed] for seed in seeds]), np.array([theirs[seed] for seed in seeds])
    differences = left - right
    told = summary(differences.tolist())
    relative = _relative(left, right)
    scale = max(float(np.abs(left).max()), float(np.abs(right).max()), DUST)
    steady = bool(np.ptp(differences) <= DUST * scale)
    p_t, p_wilcoxon = (None, None) if steady or len(seeds) < 2 else _p_values(differences)
    return Versus(
        n=len(seeds),
        difference=told.mean,
        difference_low=told.low,
        difference_high=told.high,
        relative_pct=relative[0],
        relative_pct_low=relative[1],
        relative_pct_high=relative[2],
        p_t=p_t,
        p_wilcoxon=p_wilcoxon,
        p=p_t,
        distinct=steady and len(seeds) > 1 and abs(told.mean) > DUST * scale,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[index]))
        corrected[index] = highest
    return corrected


def values_of(records: Sequence[RunRecord]) -> tuple[dict[str, dict[str, dict[int, float]]], dict[str, Better]]:
    """Floats by contender, metric and seed, and which direction of each metric is good, of runs with an outcome."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    better: dict[str, Better] = {}
    for record in records:
        assert record.outcome is not None
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
        guard = row.cell(about.guard) if about.guard is not None else None
        kept = guard is None or no_worse(guard.versus, guard.better)
        judged.append(replace(row, eligible=bool(row.cells) and not row.failed and not row.left_out and kept))

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


def no_worse(versus: Versus | None, better: Better, dust: float = DUST) -> bool:
    """Whether it is worse by no more than noise says: the interval of the paired difference reaches no difference, but
    for `dust`. A single seed knows no noise; without any pair, yes.
    """
    if versus is None:
        return True
    sign = -1.0 if better is Better.HIGHER else 1.0
    bounds = [versus.difference_low, versus.difference_high]
    known = [sign * bound for bound in bounds if bound is not None] or [sign * versus.difference]
    return min(known) <= dust


def _verdict(
    about: About, values: Values, better: Mapping[str, Better], ranked: Sequence[Row]
) -> ContenderVerdict | None:
    """Ours against the best of the others, by the same rule."""
    others = [row for row in ranked if not row.contender.startswith(OURS) and row.cell(about.goal) is not None]
    ours = values.get(OURS, {})
    if not others or about.goal not in ours:
        return None
    other = values[others[0].contender]
    paired = versus(ours[about.goal], other[about.goal])
    guard = about.guard
    guards = versus(ours[guard], other[guard]) if guard is not None and guard in ours and guard in other else None
    kept = guard is None or no_worse(guards, better.get(guard, Better.LOWER))
    gain_pct, low, high = gains(paired, 1.0 if about.better is Better.HIGHER else -1.0)
    return ContenderVerdict(
        contender=OURS,
        against=others[0].contender,
        gain_pct=gain_pct,
        gain_pct_low=low,
        gain_pct_high=high,
        guard_kept=kept,
    )


def gains(told: Versus | None, sign: float) -> tuple[float | None, float | None, float | None]:
    """A relative difference with its interval, turned so that better is above nothing."""
    if told is None or told.relative_pct is None:
        return None, None, None
    bounds = [sign * bound for bound in (told.relative_pct_low, told.relative_pct_high) if bound is not None]
    return sign * told.relative_pct, min(bounds, default=None), max(bounds, default=None)


def _p_values(differences: Floats) -> tuple[float, float | None]:
    """Of the paired t test, and of Wilcoxon's signed ranks where there are pairs enough."""
    from scipy.stats import ttest_1samp, wilcoxon

    changed = differences[differences != 0.0]
    by_ranks = float(wilcoxon(changed).pvalue) if len(changed) >= WILCOXON_MIN else None
    return float(ttest_1samp(differences, 0.0).pvalue), by_ranks


def _relative(left: Floats, right: Floats) -> tuple[float | None, float | None, float | None]:
    """Relative difference of means in percent, with the bootstrap's interval over pairs."""
    base = float(right.mean())
    if abs(base) <= DUST:
        return None, None, None
    told = 100.0 * (float(left.mean()) / base - 1.0)
    if len(left) < 2:
        return told, None, None
    drawn = np.random.default_rng(len(left)).integers(0, len(left), (RESAMPLES, len(left)))
    bases = right[drawn].mean(axis=1)
    kept = np.abs(bases) > DUST
    spread = 100.0 * (left[drawn].mean(axis=1)[kept] / bases[kept] - 1.0)
    low, high = np.quantile(spread, [ALPHA / 2.0, 1.0 - ALPHA / 2.0])
    return told, float(low), float(high)
