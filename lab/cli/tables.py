"""How the arena's answers look to people: comparisons, lists, claims.

Owns columns and marks. It refuses to compute: what is significant is `lab.arena.stats`' to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.cli.output import number, rows

if TYPE_CHECKING:
    from lab.arena.standing import Duel, RivalPlace
    from lab.arena.stats import Comparison, ContenderVerdict, MetricCell, Row, Summary
    from solvers.sim.outcome import About, RunOutcome

OTHER_METRICS_MAX = 4


def comparison_tables(compared: Sequence[Comparison]) -> list[Any]:
    """A table and a verdict for each scenario."""
    parts: list[Any] = []
    for each in compared:
        metrics = shown_metrics(each)
        columns = ("rank", "contender", *(f">{name}" for name in metrics), f">{each.about.goal} vs {each.reference}")
        # A title of the table's own would be folded to its width.
        parts.append(each.about.title)
        parts.append(rows(columns, [_line(row, metrics, each) for row in each.rows]))
        parts.append(f"{_rule(each.about)}; * differs from {each.reference} by more than noise (5 %, Holm)")
        parts.extend(f"{row.contender} leaves out {', '.join(row.left_out)}" for row in each.rows if row.left_out)
        if each.verdict is not None:
            parts.append(verdict_line(each.verdict, each.about))
        parts.append("")
    return parts


def shown_metrics(compared: Comparison) -> list[str]:
    """Goal and guard first, then the first others that have a good direction."""
    about = compared.about
    first = [name for name in (about.goal, about.guard) if name is not None]
    known = {cell.metric: cell.better for row in compared.rows for cell in row.cells}
    others = [name for name in sorted(known) if name not in first and known[name].value != "neither"]
    return [name for name in first if name in known] + others[:OTHER_METRICS_MAX]


def verdict_line(verdict: ContenderVerdict, about: About) -> str:
    """How ours does, in words."""
    guard = f", {about.guard} {'no worse' if verdict.guard_kept else 'WORSE'}" if about.guard is not None else ""
    if verdict.gain_pct is None:
        return f"{verdict.contender} against {verdict.against}: {about.goal} cannot be compared{guard}"
    interval = ""
    if verdict.gain_pct_low is not None and verdict.gain_pct_high is not None:
        interval = f" ({verdict.gain_pct_low:+.1f} to {verdict.gain_pct_high:+.1f})"
    gain = f"{about.goal} better by {verdict.gain_pct:.1f} %{interval}"
    return f"{verdict.contender} against {verdict.against}: {gain}{guard}"


def standing_tables(found: Sequence[RivalPlace]) -> list[Any]:
    """A line for each scenario, and the count."""
    from lab.arena.standing import won

    columns = ("scenario", "goal", ">seeds", ">ours", "best of the five", "", "best of all others", "")
    lines = [
        (
            place.scenario,
            f"{place.goal} {'↓' if place.better.value == 'lower' else '↑'}",
            place.seeds,
            _kept(place.ours, place.ours_guard),
            *_duel(place.founding),
            *_duel(place.all_others),
        )
        for place in found
    ]
    parts: list[Any] = [rows(columns, lines), "in brackets: the guard, mostly violations in %; ± is the 95 % interval"]
    for name, duels in (
        ("the best of the five", [place.founding for place in found]),
        ("the best of all others", [place.all_others for place in found]),
    ):
        clear, kept, there = won(duels)
        best = f"clearly better, or alone in keeping the guard, on {clear} of {there}"
        parts.append(f"against {name}: {best}; level or somewhat better on {kept}")
    return parts


def failure_lines(failures: Mapping[str, str | None]) -> list[str]:
    """One line for each failed run."""
    return [f"failed: {name}: {error}" for name, error in sorted(failures.items())]


def about_table(found: Iterable[About]) -> Any:
    """Scenarios as a list."""
    lines = [
        (
            item.name,
            item.kind,
            f"{item.goal} ({item.better.value})",
            item.guard,
            item.seeds,
            ", ".join(item.planners),
            item.title,
        )
        for item in found
    ]
    return rows(("scenario", "kind", "goal", "guard", ">seeds", "contenders", "what it is"), lines)


def outcome_tables(about: About, outcome: RunOutcome) -> list[Any]:
    """One run in numbers."""
    metrics = [
        (item.name, item.value, item.better.value) for item in sorted(outcome.metrics, key=lambda item: item.name)
    ]
    parts: list[Any] = [
        f"{about.title}: {outcome.contender}, seed {outcome.seed}",
        rows(("metric", ">value", "good is"), metrics),
    ]
    if outcome.services:
        services = [
            (item.service, item.asked, item.violation_pct, item.latency_ms_p50, item.latency_ms_p99, item.attained)
            for item in outcome.services
        ]
        parts += ["", rows(("service", ">asked", ">violation %", ">p50 ms", ">p99 ms", "SLO kept"), services)]
    if outcome.jobs:
        jobs = [(item.job, item.waited_s, item.took_s, 100 * item.done_part, item.evictions) for item in outcome.jobs]
        parts += ["", rows(("job", ">waited s", ">took s", ">done %", ">evicted"), jobs)]
    return parts


def _duel(duel: Duel | None) -> tuple[str, str]:
    if duel is None:
        return "-", "-"
    gain = "-" if duel.gain_pct is None else f"{duel.gain_pct:+.1f} %"
    if duel.gain_pct_low is not None and duel.gain_pct_high is not None:
        gain += f" ({duel.gain_pct_low:+.1f} to {duel.gain_pct_high:+.1f})"
    return f"{duel.against} {_kept(duel.goal, duel.guard)}", f"{gain} {duel.standing.value.replace('_', ' ')}"


def _kept(goal: Summary, guard: Summary | None) -> str:
    half = f" ± {number(goal.high - goal.mean)}" if goal.high is not None else ""
    return f"{number(goal.mean)}{half}{f' ({number(guard.mean)})' if guard is not None else ''}"


def _line(row: Row, metrics: Sequence[str], compared: Comparison) -> list[object]:
    rank = row.rank if row.rank is not None else "failed" if row.failed else "guard"
    return [
        rank,
        row.contender,
        *(_figure(row.cell(name)) for name in metrics),
        _relative(row.cell(compared.about.goal)),
    ]


def _figure(cell: MetricCell | None) -> str:
    if cell is None:
        return "-"
    half = f" ± {number(cell.summary.high - cell.summary.mean)}" if cell.summary.high is not None else ""
    return f"{number(cell.summary.mean)}{half}{'*' if cell.versus is not None and cell.versus.distinct else ''}"


def _relative(cell: MetricCell | None) -> str:
    if cell is None or cell.versus is None or cell.versus.relative_pct is None:
        return "-"
    told = cell.versus
    if told.relative_pct_low is None or told.relative_pct_high is None:
        return f"{told.relative_pct:+.1f} %"
    return f"{told.relative_pct:+.1f} % ({told.relative_pct_low:+.1f} to {told.relative_pct_high:+.1f})"


def _rule(about: About) -> str:
    guard = f" among those whose {about.guard} is no worse than the reference's, but for noise" if about.guard else ""
    return f"ranked by {about.goal} ({about.better.value} is better){guard}; ± is the 95 % interval"
