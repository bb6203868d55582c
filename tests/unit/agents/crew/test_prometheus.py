"""Reading metrics: the grammar, its bounds, and what is missing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.crew.metrics import LABELS_MAX, PAGE_BYTES_MAX, SERIES_MAX, Histogram, SeriesPage, read_page

INF = math.inf


def total(text: str, name: str = "a") -> float | None:
    return read_page(text.encode(), ("a",)).total((name,))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1.0),
        ("a 1.5e3", 1500.0),
        ("a{} 2", 2.0),
        ('a{x="y"} 3 1700000000000', 3.0),
        ('a{x="y",} 4', 4.0),
        ('a{x="a b,c}d",z="\\"q\\\\n\\n"} 5', 5.0),
        ('a { x = "y" , z="" } 6', 6.0),
        ('a_bucket{le="1"} 7 # {trace="x"} 0.5', None),
        ("a -2", -2.0),
        ("  a 1", None),
        ("a", None),
        ("a one", None),
        ("a NaN", None),
        ("a +Inf", None),
        ("a -Inf", None),
        ("a 9223372036854775794", None),
        ("a 1_000", None),
        ('a{x="y} 8', None),
        ("a{x=y} 8", None),
        ('a{x="y" z="w"} 8', None),
        ("ab 9", None),
        ("# a 9", None),
        ("<html>a 9</html>", None),
    ],
)
def test_a_line_is_read_or_left_out(line: str, value: float | None) -> None:
    assert total(line) == value


def test_labels_are_unescaped() -> None:
    (series,) = read_page(b'a{x="1\\"2\\\\3\\n4",y="5"} 1\n', ("a",)).series["a"]
    assert dict(series.labels) == {"x": '1"2\\3\n4', "y": "5"}


def test_sums_take_the_first_name_there_is_and_a_filter() -> None:
    page = read_page(b'a_new{k="x"} 1\na_new{k="y"} 2\na_old 9\n', ("a_",))
    assert page.total(("a_none", "a_new", "a_old")) == 3.0
    assert page.total(("a_new",), lambda labels: labels["k"] == "y") == 2.0
    assert page.total(("a_new",), lambda labels: False) is None
    assert page.total(("a_none",)) is None


def test_pages_are_bounded() -> None:
    assert read_page(b"a 1\n" + b"#" * PAGE_BYTES_MAX, ("a",)).series == {}
    many = read_page(b"a 1\n" * (SERIES_MAX + 5), ("a",))
    assert len(many.series["a"]) == SERIES_MAX
    labels = ",".join(f'l{number}="x"' for number in range(LABELS_MAX + 1))
    assert total(f"a{{{labels}}} 1") is None


@given(st.binary(max_size=400))
def test_no_page_breaks_it(noise: bytes) -> None:
    page = read_page(b'a{x="' + noise + b'"} 1\na' + noise, ("a",))
    for name, series in page.series.items():
        assert name.startswith("a")
        assert all(math.isfinite(each.value) for each in series)


def test_only_series_of_one_model_count_where_any_names_it() -> None:
    page = read_page(b'a{m="x"} 1\na{m="y"} 2\na_gpu 3\n', ("a",))
    assert page.of_model("x", "m").total(("a",)) == 1.0
    assert page.of_model("x", "m").total(("a_gpu",)) == 3.0
    assert page.of_model("other", "m").total(("a",)) == 3.0


def histogram(text: str) -> Histogram | None:
    return read_page(text.encode(), ("h",)).histogram(("h",))


def test_histograms_are_summed_over_their_series() -> None:
    found = histogram(
        'h_bucket{v="1",le="0.1"} 1\nh_bucket{v="1",le="+Inf"} 3\n'
        'h_bucket{v="2",le="+Inf"} 2\nh_bucket{v="2",le="0.1"} 2\n'
    )
    assert found == Histogram((0.1, INF), (3.0, 5.0))


@pytest.mark.parametrize(
    "text",
    ["", 'h_bucket{le="1"} 3\n', 'h_bucket{le="1"} 3\nh_bucket{le="+Inf"} 2\n', 'h_bucket{le="x"} 1\n', "h_bucket 1\n"],
)
def test_what_is_no_histogram_is_none(text: str) -> None:
    assert histogram(text) is None


def test_percentiles_lie_within_their_bucket() -> None:
    found = Histogram((10.0, 20.0, 40.0, INF), (10.0, 60.0, 100.0, 100.0))
    assert found.percentile(0.05) == pytest.approx(5.0)
    assert found.percentile(0.5) == pytest.approx(18.0)
    assert found.percentile(0.99) == pytest.approx(39.5)
    assert Histogram((10.0, INF), (0.0, 0.0)).percentile(0.5) is None
    assert Histogram((10.0, INF), (0.0, 7.0)).percentile(0.5) == 10.0, "beyond the last bound nothing more is known"


def test_how_many_lie_above_a_limit() -> None:
    found = Histogram((10.0, 20.0, INF), (10.0, 20.0, 25.0))
    assert found.above(15.0) == pytest.approx(10.0)
    assert found.above(10.0) == pytest.approx(15.0)
    assert found.above(1e9) == pytest.approx(5.0)
    assert Histogram((INF,), (3.0,)).above(1.0) is None


def test_counting_that_began_anew_counts_from_zero() -> None:
    before = Histogram((1.0, INF), (5.0, 9.0))
    assert Histogram((1.0, INF), (6.0, 11.0)).since(before) == Histogram((1.0, INF), (1.0, 2.0))
    assert Histogram((1.0, INF), (1.0, 2.0)).since(before) == Histogram((1.0, INF), (1.0, 2.0))
    assert Histogram((2.0, INF), (6.0, 11.0)).since(before) == Histogram((2.0, INF), (6.0, 11.0))
    assert Histogram((1.0, INF), (6.0, 11.0)).since(None).total == 11.0


@given(
    st.lists(st.floats(0.001, 1e6), min_size=1, max_size=12, unique=True).map(sorted),
    st.lists(st.integers(0, 1000), min_size=13, max_size=13),
)
def test_percentiles_rise_and_stay_within_the_bounds(bounds: list[float], counts: list[int]) -> None:
    sums = [float(sum(counts[: position + 1])) for position in range(len(bounds) + 1)]
    found = Histogram((*bounds, INF), tuple(sums))
    read = [found.percentile(level) for level in (0.1, 0.5, 0.95, 0.99)]
    if found.total == 0.0:
        assert read == [None] * 4
    else:
        values = [value for value in read if value is not None]
        assert len(values) == 4
        assert values == sorted(values)
        assert values[0] >= 0.0
        assert values[-1] <= bounds[-1]


def test_an_empty_page_tells_nothing() -> None:
    assert SeriesPage().total(("a",)) is None
    assert SeriesPage().histogram(("a",)) is None
