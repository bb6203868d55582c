"""Drawings: scales, ticks, thinning."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from lab.arena.drawing import POINTS_MAX, Bar, Frame, Line, bars, ceiling, chart, moment, short, thinned


def bar(value: float, low: float | None = None, high: float | None = None) -> Bar:
    return Bar(label=f"a & b {value}", value=value, low=low, high=high, style="k0", note="n", faint=value < 0)


def test_bars_are_as_long_as_their_values_from_zero() -> None:
    root = ElementTree.fromstring(bars([bar(10, 9, 12), bar(5), bar(-2)]))
    widths = [float(item.attrib["width"]) for item in root.iter("rect")]
    starts = [float(item.attrib["x"]) for item in root.iter("rect")]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.01)
    assert widths[0] / widths[2] == pytest.approx(5, rel=0.01)
    assert starts[2] + widths[2] == pytest.approx(starts[0], abs=0.2)
    assert len(list(root.iter("path"))) == 1
    assert ElementTree.fromstring(bars([bar(0)])).tag == "svg"


def test_a_line_stays_in_its_frame() -> None:
    made = chart("t & t", [Line(at_s=[0, 50, 100], values=[0, 10, 20], style="k1")], Frame(until_s=100, top=20))
    root = ElementTree.fromstring(made)
    (line,) = root.iter("polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert points[0][1] > points[1][1] > points[2][1] >= 0
    assert points[2][0] <= 260
    assert re.findall(r">([^<]+)</text>", made) == ["0", "0", "10", "50 s", "20", "100 s"]


def test_an_empty_frame_can_be_drawn() -> None:
    made = chart("nothing", [Line(at_s=[0.0], values=[0.0], style="k1")], Frame(until_s=0, top=0))
    assert ElementTree.fromstring(made).tag == "svg"


def test_long_lines_are_thinned_to_means() -> None:
    found = thinned(list(range(1000)), [float(number % 2) for number in range(1000)])
    assert len(found) <= POINTS_MAX
    assert found[0] == (3.0, pytest.approx(3 / 7))
    assert thinned([1.0], [2.0]) == [(1.0, 2.0)]


def test_axes_end_on_round_numbers() -> None:
    assert [ceiling(number) for number in (0, 0.7, 1, 1.1, 42, 9.9e6)] == [1, 0.8, 1, 1.5, 50, 1e7]
    assert [short(number) for number in (0, 0.25, 1500, 2e6, 3.5e9)] == ["0", "0.25", "1.5k", "2M", "3.5G"]
    assert [moment(number) for number in (0, 90, 600, 10_800, 259_200)] == ["0", "90 s", "10 min", "3 h", "3 d"]
