"""Drawings for the report: horizontal bars with intervals, and small charts over time, as SVG text.

Owns scales, ticks and paths. Colours and fonts come from the page's style sheet by class, so that a drawing follows
light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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
    ends = [end for item in items for end in (item.value, item.low, item.high, 0.0) if end is not None]
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
    """The next round number."""
    if number <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(number))
    return next(step * scale for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * scale >= number * (1 - 1e-9))


def short(number: float) -> str:
    """A number on an axis."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.3g}"


def moment(at_s: float) -> str:
    """A moment on an axis."""
    for limit, unit in ((172_800, "d"), (7200, "h"), (120, "min")):
        if at_s >= limit:
            return f"{at_s / {'d': 86_400, 'h': 3600, 'min': 60}[unit]:.3g} {unit}"
    return f"{at_s:.3g} s" if at_s else "0"


def _cut(label: str) -> str:
    return label if len(label) <= 22 else label[:21] + "…"
