"""Tables and plots of the report: metrics with intervals and marks, services, jobs; each contender's goal, and how runs
went over time, as SVG text.

What is drawn are means over seeds. Colours and fonts come from the page's style sheet by class, so that a drawing
follows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from lab.arena.running import RunRecord
from lab.arena.stats import Comparison, GuardKept, MetricCell, Row, Summary
from lab.outcome import Better, RunWindow

FIRST_METRICS = 5
ARROWS = {Better.LOWER: " ↓", Better.HIGHER: " ↑", Better.NEITHER: ""}


def figure(number: float | None) -> str:
    """Four significant digits."""
    if number is None:
        return "–"
    size = abs(number)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 4
    text = f"{number:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def percent(number: float) -> str:
    """A signed difference in percent: one digit after the point, none from a thousand on."""
    return f"{number:+,.{0 if abs(number) >= 1000 else 1}f} %".replace("-", "−")


def half_width(summary: Summary) -> str:
    """The interval as ± to two digits; nothing for a single seed."""
    if summary.high is None:
        return ""
    half = summary.high - summary.mean
    return f" ± {figure(float(f'{half:.2g}'))}"


def metric_table(compared: Comparison, styles: Mapping[str, str]) -> str:
    """Goal, guard and the first others; all others behind a fold."""
    known = {cell.metric: cell.better for row in compared.rows for cell in row.cells}
    first = [name for name in (compared.about.goal, compared.about.guard) if name is not None and name in known]
    judged = [name for name in sorted(known) if name not in first and known[name] is not Better.NEITHER]
    told = [name for name in sorted(known) if name not in first and known[name] is Better.NEITHER]
    others = [*judged, *told]
    room = FIRST_METRICS - len(first)
    shown, folded = [*first, *others[:room]], others[room:]
    parts = [_metrics(compared, styles, {name: known[name] for name in shown})]
    if folded:
        rest = _metrics(compared, styles, {name: known[name] for name in folded})
        parts.append(f"<details><summary>{len(folded)} more metrics</summary>{rest}</details>")
    return "".join(parts) + (
        '<p class="soft">Mean over seeds ± its interval of 95 %; '
        f"below it the difference from {escape(compared.reference)}. "
        '<span class="mark">*</span> more than noise: paired test at 5 %, corrected for the number of contenders.</p>'
    )


def _metrics(compared: Comparison, styles: Mapping[str, str], metrics: Mapping[str, Better]) -> str:
    head = "".join(f"<th>{escape(name)}{ARROWS[better]}</th>" for name, better in metrics.items())
    lines = []
    for row in compared.rows:
        swatch = f'<span class="swatch {styles[row.contender]}"></span>'
        name = f"{swatch}{escape(row.contender)}<small>{_standing(row, compared)}</small>"
        cells = "".join(f"<td>{_cell(row.cell(metric))}</td>" for metric in metrics)
        lines.append(f"<tr{'' if row.eligible else ' class=out'}><td>{name}</td>{cells}</tr>")
    return _table(f"<th>contender</th>{head}", lines)


def _standing(row: Row, compared: Comparison) -> str:
    if row.failed:
        return f"{row.failed} failed"
    if row.left_out:
        return f"leaves out {escape(', '.join(row.left_out))}"
    if row.rank is None:
        return "guard not kept" if row.guard is GuardKept.NO else "guard untold: more seeds would tell"
    return f"rank {row.rank}{', reference' if row.contender == compared.reference else ''}"


def _cell(cell: MetricCell | None) -> str:
    if cell is None:
        return "–"
    told = cell.versus
    mark = '<span class="mark">*</span>' if told is not None and told.distinct else ""
    small = ""
    if told is not None and told.relative_pct is not None:
        p = "" if told.p is None else ", p &lt; 0.001" if told.p < 0.001 else f", p {told.p:.2g}"
        small = f"<small>{percent(told.relative_pct.mean)}{p}</small>"
    return f"{figure(cell.summary.mean)}{half_width(cell.summary)}{mark}{small}"


def service_table(records: Sequence[RunRecord], contenders: Sequence[str]) -> str:
    """Violations and the tail of latencies, each service by each contender: means over seeds."""
    found: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
    for record in records:
        for item in record.outcome.services if record.outcome is not None else ():
            by_contender = found.setdefault(str(item.service), {})
            by_contender.setdefault(record.contender.label, []).append((item.violation_pct, item.latency_ms_p99))
    if not found:
        return ""
    head = "<th>service</th>" + "".join(f"<th>{escape(label)}</th>" for label in contenders)
    lines = [
        f"<tr><td>{escape(service)}</td>{''.join(_service(found[service].get(label, [])) for label in contenders)}</tr>"
        for service in sorted(found)
    ]
    return f"<h3>Services: late or dropped requests in %, and p99 latency</h3>{_table(head, lines)}"


def _service(seen: Sequence[tuple[float, float | None]]) -> str:
    if not seen:
        return "<td>–</td>"
    tails = [tail for _, tail in seen if tail is not None]
    small = f"<small>{figure(fmean(tails))} ms</small>" if tails else ""
    return f"<td>{figure(fmean(violated for violated, _ in seen))}{small}</td>"


def job_table(records: Sequence[RunRecord], contenders: Sequence[str]) -> str:
    """Training jobs and offline tasks: what was done of them, and in what time."""
    lines = []
    for label in contenders:
        ran = [each.outcome for each in records if each.contender.label == label and each.outcome is not None]
        jobs = [job for outcome in ran for job in outcome.jobs]
        if not jobs:
            continue
        done = [job.took_s for job in jobs if job.took_s is not None]
        waits = [job.waited_s for job in jobs if job.waited_s is not None]
        cells = (
            f"{len(done)} of {len(jobs)}",
            figure(100 * fmean(job.done_part for job in jobs)),
            figure(fmean(done) if done else None),
            figure(fmean(waits) if waits else None),
            str(sum(job.evictions for job in jobs)),
        )
        lines.append(f"<tr><td>{escape(label)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "".join(
        f"<th>{name}</th>" for name in ("contender", "finished", "work done %", "took s", "waited s", "evicted")
    )
    return f"<h3>Training jobs and offline tasks, all seeds</h3>{_table(head, lines)}" if lines else ""


def _table(head: str, lines: Sequence[str]) -> str:
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


ASKED = "asked"
Reading = Callable[[RunWindow], float]
PANELS: tuple[tuple[str, tuple[tuple[str | None, Reading], ...]], ...] = (
    ("requests/s, asked (dashed) and in time", ((ASKED, lambda at: at.asked_rps), (None, lambda at: at.in_time_rps))),
    ("GPUs in use", ((None, lambda at: at.devices_used),)),
    ("$ per hour", ((None, lambda at: at.usd_per_h),)),
    ("power, W", ((None, lambda at: at.power_w),)),
    ("GPU utilisation, %", ((None, lambda at: at.utilisation_pct),)),
)
"""A title, and lines: a style (None: the contender's) and what is read of a window."""


def goal_bars(compared: Comparison, records: Sequence[RunRecord], styles: Mapping[str, str]) -> str:
    """A bar for each contender's mean, and a dot for each of its seeds."""
    items, goal = [], compared.about.goal
    for row in compared.rows:
        cell = row.cell(goal)
        if cell is None:
            continue
        ran = [
            each.outcome for each in records if each.contender.label == row.contender and each.seed in compared.seeds
        ]
        note = f"{figure(cell.summary.mean)}{half_width(cell.summary)}{'' if row.eligible else ' ✗'}"
        items.append(
            Bar(
                label=row.contender,
                value=cell.summary.mean,
                low=cell.summary.low,
                high=cell.summary.high,
                style=styles[row.contender],
                note=note,
                faint=not row.eligible,
                dots=[dot for each in ran if each is not None and (dot := each.metric(goal)) is not None],
            )
        )
    return f'<h3>{escape(goal)}</h3><div class="wide">{bars(items)}</div>' if items else ""


def plots(records: Sequence[RunRecord], contenders: Sequence[str], styles: Mapping[str, str]) -> str:
    """Small charts on common scales: a line of them for each contender, a column for each quantity that occurs."""
    seen = {label: windows for label in contenders if (windows := mean_windows(records, label))}
    if not seen:
        return ""
    panels = [
        panel for panel in PANELS if any(read(at) for some in seen.values() for at in some for _, read in panel[1])
    ]
    frames = {
        title: Frame(
            until_s=max(some[-1].until_s for some in seen.values()),
            top=max(read(at) for some in seen.values() for at in some for _, read in lines),
        )
        for title, lines in panels
    }
    parts = ['<span class="head"></span>', *(f'<span class="head">{escape(title)}</span>' for title, _ in panels)]
    for label, windows in seen.items():
        parts.append(f'<span class="name"><span class="swatch {styles[label]}"></span>{escape(label)}</span>')
        for title, lines in panels:
            at_s = [(at.from_s + at.until_s) / 2 for at in windows]
            drawn = [
                Line(at_s=at_s, values=[read(at) for at in windows], style=style or styles[label])
                for style, read in lines
            ]
            picture = chart(f"{label}: {title}", drawn, frames[title])
            parts.append(f'<span><span class="caption">{escape(title)}</span>{picture}</span>')
    return f'<h3>Over time, mean over seeds</h3><div class="plots" style="--plots:{len(panels)}">{"".join(parts)}</div>'


def mean_windows(records: Sequence[RunRecord], contender: str) -> list[RunWindow]:
    """Windows of a contender, each the mean over the seeds that have it."""
    found: dict[tuple[float, float], list[RunWindow]] = {}
    for record in records:
        if record.contender.label != contender or record.outcome is None:
            continue
        for window in record.outcome.windows:
            found.setdefault((window.from_s, window.until_s), []).append(window)
    names = tuple(RunWindow.__dataclass_fields__)
    return [
        RunWindow(**{name: fmean(getattr(at, name) for at in found[span]) for name in names}) for span in sorted(found)
    ]


BAR_HEIGHT, BAR_GAP, LABEL_WIDTH, BARS_WIDTH, FIGURE_WIDTH = 18, 8, 150, 580, 130
CHART_WIDTH, CHART_HEIGHT, LEFT, BOTTOM, TOP = 260, 120, 44, 18, 8
POINTS_MAX = 150
TICKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar; `style` is a class of the page."""

    label: str
    value: float
    low: float | None
    high: float | None
    style: str
    note: str
    faint: bool = False
    dots: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values at moments, seconds."""

    at_s: Sequence[float]
    values: Sequence[float]
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The common scales of charts that are compared: time from 0, values from 0."""

    until_s: float
    top: float


def bars(items: Sequence[Bar]) -> str:
    """Bars from zero, each with its interval and its figure in words."""
    ends = [end for item in items for end in (item.value, item.low, item.high, 0.0, *item.dots) if end is not None]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    room = BARS_WIDTH - LABEL_WIDTH - FIGURE_WIDTH

    def x(number: float) -> float:
        return LABEL_WIDTH + room * (number - low) / span

    height = len(items) * (BAR_HEIGHT + BAR_GAP) + BAR_GAP
    parts = [f'<svg class="bars" viewBox="0 0 {BARS_WIDTH} {height}" role="img">']
    for index, item in enumerate(items):
        y = BAR_GAP + index * (BAR_HEIGHT + BAR_GAP)
        left, right = sorted((x(0.0), x(item.value)))
        middle = y + BAR_HEIGHT / 2
        parts += [
            f'<g class="{item.style}{" faint" if item.faint else ""}">',
            f"<title>{escape(item.label)}: {escape(item.note)}</title>",
            f'<text x="{LABEL_WIDTH - 8}" y="{middle + 4}" text-anchor="end">{escape(_cut(item.label))}</text>',
            f'<rect class="fill" x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}"',
            f' height="{BAR_HEIGHT}" rx="2"/>',
        ]
        if item.low is not None and item.high is not None:
            parts.append(
                f'<path class="whisker" d="M{x(item.low):.1f} {middle}H{x(item.high):.1f}'
                f'M{x(item.low):.1f} {middle - 4}v8M{x(item.high):.1f} {middle - 4}v8"/>'
            )
        parts += [f'<circle class="dot" cx="{x(dot):.1f}" cy="{middle}" r="2"/>' for dot in item.dots]
        parts.append(
            f'<text class="note" x="{BARS_WIDTH - FIGURE_WIDTH + 10}" y="{middle + 4}">{escape(item.note)}</text></g>'
        )
    return "".join((*parts, "</svg>"))


def chart(title: str, lines: Sequence[Line], frame: Frame) -> str:
    """Lines over time within a frame."""
    across, down = CHART_WIDTH - LEFT - 6, CHART_HEIGHT - TOP - BOTTOM
    top = ceiling(frame.top)
    label = escape(title)
    parts = [
        f'<svg class="chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{label}">',
        f"<title>{label}</title>",
    ]
    for tick in range(TICKS):
        part = tick / (TICKS - 1)
        y = TOP + down * (1 - part)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}h{across}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{short(top * part)}</text>'
        )
        anchor = ("start", "middle", "end")[tick]
        x = LEFT + across * part
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{CHART_HEIGHT - 4}" text-anchor="{anchor}">'
            f"{moment(frame.until_s * part)}</text>"
        )
    for line in lines:
        points = " ".join(
            f"{LEFT + across * at / (frame.until_s or 1.0):.1f},{TOP + down * (1 - min(value, top) / top):.1f}"
            for at, value in thinned(line.at_s, line.values)
        )
        parts.append(f'<polyline class="line {line.style}" points="{points}"/>')
    return "".join((*parts, "</svg>"))


def thinned(at_s: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """At most POINTS_MAX points, each the mean of its neighbours."""
    step = max(1, math.ceil(len(at_s) / POINTS_MAX))
    chunks = [(at_s[index : index + step], values[index : index + step]) for index in range(0, len(at_s), step)]
    return [(sum(at) / len(at), sum(some) / len(some)) for at, some in chunks]


def ceiling(number: float) -> float:
    if number <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(number))
    return next(step * scale for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * scale >= number * (1 - 1e-9))


def short(number: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.3g}"


def moment(at_s: float) -> str:
    for limit, unit in ((172_800, "d"), (7200, "h"), (120, "min")):
        if at_s >= limit:
            return f"{at_s / {'d': 86_400, 'h': 3600, 'min': 60}[unit]:.3g} {unit}"
    return f"{at_s:.3g} s" if at_s else "0"


def _cut(label: str) -> str:
    return label if len(label) <= 22 else label[:21] + "…"
