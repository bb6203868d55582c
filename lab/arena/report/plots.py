"""Plots of the report: the goal of each contender with its interval, and how runs went over time.

Owns which parts of an outcome are drawn, as means over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import fmean

from lab.arena.report.svg import Bar, Frame, Line, bars, chart
from lab.arena.report.tables import figure, half_width
from lab.arena.running import RunRecord
from lab.arena.stats import Comparison
from solvers.sim.outcome import RunWindow

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


def goal_bars(compared: Comparison, styles: Mapping[str, str]) -> str:
    """The goal of every contender."""
    items = []
    for row in compared.rows:
        cell = row.cell(compared.about.goal)
        if cell is None:
            continue
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
            )
        )
    return f'<h3>{escape(compared.about.goal)}</h3><div class="wide">{bars(items)}</div>' if items else ""


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
            drawn = [_line(windows, read, style or styles[label]) for style, read in lines]
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
    return [_mean(found[span]) for span in sorted(found)]


def _mean(windows: Sequence[RunWindow]) -> RunWindow:
    if len(windows) == 1:
        return windows[0]
    return RunWindow(
        **{field: fmean(getattr(each, field) for each in windows) for field in RunWindow.__dataclass_fields__}
    )


def _line(windows: Sequence[RunWindow], read: Reading, style: str) -> Line:
    return Line(at_s=[(at.from_s + at.until_s) / 2 for at in windows], values=[read(at) for at in windows], style=style)
