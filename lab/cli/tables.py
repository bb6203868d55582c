"""What answers of the arena look like: tables for people, in which a figure and its interval are one word, and lines of
numbers alone for programs that read CSV.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.cli.output import number, rows

if TYPE_CHECKING:
    from lab.arena.standing import Duel, FamilyPlace, RivalPlace
    from lab.arena.stats import Comparison, MetricCell, Row, Summary
    from lab.outcome import About, RunOutcome


OTHER_METRICS_MAX = 4
MARGIN = "0.1 points (of what is no percentage, 1 %)"
GUARDS = {"no": "guard", "untold": "guard?"}


def comparison_tables(compared: Sequence[Comparison], stands: Mapping[str, RivalPlace]) -> list[Any]:
    """A table for each scenario, and how ours stands there."""
    parts: list[Any] = []
    for each in compared:
        metrics = shown_metrics(each)
        columns = ("rank", "contender", *(f">{name}" for name in metrics), f">{each.about.goal} vs {each.reference}")
        # A title of the table's own would be folded to its width.
        parts.append(each.about.title)
        parts.append(rows(columns, [_line(row, metrics, each) for row in each.rows]))
        parts.append(f"{_rule(each.about)}; * differs from {each.reference} by more than noise (5 %, Holm)")
        parts.extend(f"{row.contender} leaves out {', '.join(row.left_out)}" for row in each.rows if row.left_out)
        if each.unshared:
            parts.append(f"seeds {', '.join(map(str, each.unshared))} count for nobody: not everybody ran under them")
        duel = stands[each.about.name].all_others if each.about.name in stands else None
        if duel is not None:
            parts.append(duel_line(duel, each.about))
        parts.append("")
    return parts


def shown_metrics(compared: Comparison) -> list[str]:
    """Goal and guard first, then the first others that have a good direction."""
    about = compared.about
    first = [name for name in (about.goal, about.guard) if name is not None]
    known = {cell.metric: cell.better for row in compared.rows for cell in row.cells}
    others = [name for name in sorted(known) if name not in first and known[name].value != "neither"]
    return [name for name in first if name in known] + others[:OTHER_METRICS_MAX]


def duel_line(duel: Duel, about: About) -> str:
    """How ours does against the best of the others, in words."""
    gain, standing = _gain(duel.gain_pct), duel.standing.value.replace("_", " ")
    guard = f"; {about.guard} no worse: {duel.guard_kept.value}" if about.guard is not None else ""
    return f"ours against {duel.against}, by {about.goal}: {gain}, {standing}{guard}"


def standing_tables(found: Sequence[RivalPlace], by_family: Sequence[FamilyPlace]) -> list[Any]:
    """A line for each scenario, one for each family, and the counts."""
    from lab.arena.standing import won

    columns = ("scenario", "goal", ">seeds", ">ours", "best of the five", "", "best of all others", "")
    lines = [
        (
            f"{place.scenario}, by pursuit" if place.by_pursuit else place.scenario,
            f"{place.goal} {'↓' if place.better.value == 'lower' else '↑'}",
            place.seeds,
            _ours(place),
            *_duel(place.founding),
            *_duel(place.all_others),
        )
        for place in found
    ]
    family_lines = [
        (each.family, len(each.scenarios), each.seeds, _gain(each.gain_pct), each.standing.value.replace("_", " "))
        for each in by_family
    ]
    parts: list[Any] = [
        rows(columns, lines),
        "in brackets: the guard, mostly violations in %; ± is the 95 % interval",
        "",
        rows(("family", ">scenarios", ">seeds", ">gain over the best of the five", ""), family_lines),
    ]
    for name, standings in (
        ("the best of the five, by scenario", [place.founding.standing for place in found if place.founding]),
        ("the best of the five, by family", [each.standing for each in by_family]),
        ("the best of all others, by scenario", [place.all_others.standing for place in found if place.all_others]),
    ):
        clear, kept, there = won(standings)
        untold = sum(each.value == "untold" for each in standings)
        best = f"clearly better, or alone in keeping the guard, on {clear} of {there}"
        lost = sum(each.value == "failed" for each in standings)
        rest = f"level or somewhat better on {kept}; untold on {untold}; failed on {lost}"
        parts.append(f"against {name}: {best}; {rest}")
    return parts


def about_table(found: Iterable[About]) -> Any:
    """Scenarios as a list."""
    lines = [
        (each.name, each.kind, f"{each.goal} ({each.better.value})", each.guard, each.seeds, ", ".join(each.planners),
         each.title) for each in found
    ]  # fmt: skip
    return rows(("scenario", "kind", "goal", "guard", ">seeds", "contenders", "what it is"), lines)


def outcome_tables(about: About, outcome: RunOutcome) -> list[Any]:
    """One run in numbers."""
    told = sorted(outcome.metrics, key=lambda item: item.name)
    metrics = [(item.name, item.value, item.better.value) for item in told]
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
    gain = _gain(duel.gain_pct)
    return f"{duel.against} {_kept(duel.goal, duel.guard)}", f"{gain} {duel.standing.value.replace('_', ' ')}"


def _ours(place: RivalPlace) -> str:
    told = [] if place.ours is None else [_kept(place.ours, place.ours_guard)]
    return ", ".join(told + ([f"{place.failed} failed"] if place.failed else []))


def _kept(goal: Summary, guard: Summary | None) -> str:
    return f"{_mean(goal)}{f' ({number(guard.mean)})' if guard is not None else ''}"


def _mean(summary: Summary) -> str:
    return number(summary.mean) + (f" ± {number(summary.high - summary.mean)}" if summary.high is not None else "")


def _gain(told: Summary | None) -> str:
    if told is None:
        return "-"
    between = f" ({told.low:+.1f} to {told.high:+.1f})" if told.low is not None and told.high is not None else ""
    return f"{told.mean:+.1f} %{between}"


def _line(row: Row, metrics: Sequence[str], compared: Comparison) -> list[object]:
    goal = row.cell(compared.about.goal)
    rank = row.rank if row.rank is not None else "failed" if row.failed else GUARDS.get(row.guard.value, "left out")
    return [
        rank,
        row.contender,
        *(_figure(row.cell(name)) for name in metrics),
        _gain(goal.versus.relative_pct if goal is not None and goal.versus is not None else None),
    ]


def _figure(cell: MetricCell | None) -> str:
    if cell is None:
        return "-"
    return f"{_mean(cell.summary)}{'*' if cell.versus is not None and cell.versus.distinct else ''}"


def _rule(about: About) -> str:
    guard = (
        f" among those shown to have no more {about.guard} than the reference, within {MARGIN}" if about.guard else ""
    )
    return f"ranked by {about.goal} ({about.better.value} is better){guard}; ± is the 95 % interval"


def comparison_figures(compared: Sequence[Comparison]) -> Any:
    """A line for each metric of each contender on each scenario; one without any where no run was finished."""
    columns = (
        "scenario", "reference", "contender", ">rank", ">failed", "guard kept", "metric", "good is", ">seeds", ">mean",
        ">low", ">high", ">relative %", ">relative low %", ">relative high %", ">p", "distinct",
    )  # fmt: skip
    return rows(
        columns,
        [
            (each.about.name, each.reference, row.contender, row.rank, row.failed, row.guard.value, *_numbers_of(cell))
            for each in compared
            for row in each.rows
            for cell in row.cells or (None,)
        ],
    )


def _numbers_of(cell: MetricCell | None) -> tuple[object, ...]:
    if cell is None:
        return (None,) * 10
    versus = cell.versus
    relative = _interval(None if versus is None else versus.relative_pct)
    tested = (None, None) if versus is None else (versus.p, versus.distinct)
    return cell.metric, cell.better.value, cell.summary.n, *_interval(cell.summary), *relative, *tested


def standing_figures(found: Sequence[RivalPlace], by_family: Sequence[FamilyPlace]) -> list[Any]:
    """A line for each scenario and each group of others, and one for each family."""
    columns = (
        "scenario", "by pursuit", "goal", "good is", ">seeds", ">failed", ">ours", ">low", ">high", ">guard", "among",
        "against", ">theirs", ">their low", ">their high", ">their guard", ">gain %", ">gain low %", ">gain high %",
        "standing", "guard kept",
    )  # fmt: skip
    lines = [
        (
            *(place.scenario, place.by_pursuit, place.goal, place.better.value, place.seeds, place.failed),
            *(*_interval(place.ours), _interval(place.ours_guard)[0], among),
            *(duel.against, *_interval(duel.goal), _interval(duel.guard)[0], *_interval(duel.gain_pct)),
            *(duel.standing.value, duel.guard_kept.value),
        )
        for place in found
        for among, duel in (("the five", place.founding), ("all others", place.all_others))
        if duel is not None
    ]
    families = [
        (each.family, len(each.scenarios), each.seeds, *_interval(each.gain_pct), each.standing.value)
        for each in by_family
    ]
    heads = ("family", ">scenarios", ">seeds", ">gain %", ">gain low %", ">gain high %", "standing")
    return [rows(columns, lines), rows(heads, families)]


def _interval(told: Summary | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if told is None else (told.mean, told.low, told.high)
