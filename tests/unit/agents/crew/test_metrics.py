"""Reading metrics, and samples out of running totals: conservation, restarts, and what is not told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.crew.adapters import ADAPTERS, ServerAdapter
from agents.crew.metrics import (
    LABELS_MAX,
    PAGE_BYTES_MAX,
    SERIES_MAX,
    Histogram,
    SeriesPage,
    Tally,
    Totals,
    grown,
    read_page,
)
from agents.devices.base import DeviceSample, WorkerReading, WorkerSample, WorkerState
from agents.loop.collect import Collector, Sampler
from agents.loop.unsent import UnsentReport
from app.api.messages import decode_reports
from tests.unit.agents.builders import NODE, FakeClock
from tests.unit.agents.crew.doubles import spec, target

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


def reading(limit_ms: float | None = 50.0, *, execution_only: bool = False) -> WorkerReading:
    asked = replace(spec(target()), latency_ms_limit=limit_ms, latency_execution_only=execution_only)
    return WorkerReading(
        worker="w", uuid="u", spec=asked, sm_count=0, state=WorkerState.READY, state_s=0.0, drained=False
    )


def cut(tally: Tally, totals: Totals | None, at_s: float = 0.0, *, gone: bool = False) -> WorkerSample:
    if totals is not None:
        tally.read(totals, at_s)
    return tally.cut(reading(), at_s, gone=gone)


def test_a_sample_is_what_grew() -> None:
    tally = Tally(told_s=0.0)
    cut(
        tally, Totals(completed=10, failed=1, queue=2, executions=5, batched=10, execution_s=0.5, execution_weight=5), 5
    )
    now = Totals(completed=30, failed=2, queue=5, executions=9, batched=30, execution_s=0.9, execution_weight=9)
    sample = cut(tally, now, 10.0)
    assert (sample.completed, sample.dropped, sample.queue_length, sample.arrived) == (20.0, 1.0, 5.0, 24.0)
    assert (sample.executions, sample.batch_mean) == (4.0, 5.0)
    assert sample.execution_ms_mean == pytest.approx(100.0)
    assert (sample.held_s, sample.gone, sample.energy_j, sample.memory_mib_used) == (5.0, False, 0.0, 0.0)


def test_what_is_not_told_is_none_where_that_can_be_said() -> None:
    sample = cut(Tally(told_s=0.0), Totals(completed=3))
    assert sample.completed == 3.0
    assert (sample.latency_ms_p50, sample.latency_ms_p99, sample.execution_ms_mean) == (None, None, None)
    assert sample.iterations_done is None
    nothing = cut(Tally(told_s=0.0), None)
    assert (nothing.arrived, nothing.completed, nothing.latency_ms_p99) == (0.0, 0.0, None)


def test_without_a_new_reading_nothing_happened_and_the_queue_stands() -> None:
    tally = Tally(told_s=0.0)
    cut(tally, Totals(completed=10, queue=4))
    sample = cut(tally, None, 5.0)
    assert (sample.arrived, sample.completed, sample.dropped, sample.queue_length) == (0.0, 0.0, 0.0, 4.0)


def test_a_server_that_began_anew_counts_from_zero_and_forgot_what_waited() -> None:
    tally = Tally(told_s=0.0)
    cut(tally, Totals(completed=100, queue=9))
    sample = cut(tally, Totals(completed=2, queue=0))
    assert (sample.completed, sample.dropped, sample.arrived, sample.queue_length) == (2.0, 7.0, 0.0, 0.0)
    assert grown(5.0, 3.0) == 3.0
    assert grown(None, 3.0) == 3.0
    assert grown(3.0, None) is None


def test_what_waited_at_the_end_was_dropped() -> None:
    tally = Tally(told_s=0.0)
    cut(tally, Totals(completed=10, queue=4))
    sample = cut(tally, Totals(completed=11, queue=6), gone=True)
    assert (sample.arrived, sample.completed, sample.dropped, sample.queue_length) == (3.0, 1.0, 6.0, 0.0)


def test_counting_may_begin_with_the_next_reading() -> None:
    tally = Tally(told_s=0.0)
    tally.begin()
    tally.read(Totals(completed=50, queue=3), 1.0)
    assert cut(tally, Totals(completed=52, queue=3)).completed == 2.0


LATENCY = Histogram((10.0, 100.0, float("inf")), (6.0, 10.0, 10.0))


def test_late_requests_are_counted_by_the_server_else_from_latencies() -> None:
    counted = Totals(completed=10, violated=3, latency=LATENCY)
    assert cut(Tally(told_s=0.0), counted).violated == 3.0
    assert cut(Tally(told_s=0.0), replace(counted, violated=None)).violated == pytest.approx(4 * 5 / 9)
    unlimited = Tally(told_s=0.0)
    unlimited.read(replace(counted, violated=None), 0.0)
    assert unlimited.cut(reading(None), 0.0, gone=False).violated == 0.0


@pytest.mark.parametrize(("limit_ms", "late"), [(80.0, 10.0), (120.0, 0.0)])
def test_a_limit_on_execution_counts_batches_that_run_too_long(limit_ms: float, late: float) -> None:
    tally = Tally(told_s=0.0)
    tally.read(Totals(completed=10, latency=LATENCY, execution_s=1.0, execution_weight=10, executions=10), 0.0)
    asked = reading(limit_ms, execution_only=True)
    assert tally.cut(asked, 0.0, gone=False).violated == late


def test_percentiles_that_a_server_tells_itself_count_only_with_requests() -> None:
    tally = Tally(told_s=0.0)
    told = Totals(completed=10, percentiles_ms=(1.0, 2.0, None))
    first = cut(tally, told)
    assert (first.latency_ms_p50, first.latency_ms_p95, first.latency_ms_p99) == (1.0, 2.0, None)
    assert cut(tally, told).latency_ms_p50 is None


maybe = st.one_of(st.none(), st.floats(0.0, 1e6))


@given(st.lists(st.tuples(maybe, maybe, maybe, st.booleans()), max_size=20), st.booleans())
def test_requests_are_conserved_whatever_servers_tell(rows: list[tuple[float | None, ...]], ends: bool) -> None:
    tally, queue = Tally(told_s=0.0), 0.0
    for position, (completed, failed, waiting, read) in enumerate([*rows, (None, None, None, False)]):
        if read:
            tally.read(Totals(completed=completed, failed=failed, queue=waiting), float(position))
        gone = ends and position == len(rows)
        sample = tally.cut(reading(), float(position), gone=gone)
        assert min(sample.arrived, sample.completed, sample.dropped, sample.queue_length) >= 0.0
        left = sample.completed + sample.dropped + sample.queue_length
        assert queue + sample.arrived == pytest.approx(left, abs=1e-6)
        queue = sample.queue_length
    assert not ends or queue == 0.0


SERIES = {
    "http": (
        "headroom_requests_total",
        "headroom_requests_failed_total",
        "headroom_requests_violated_total",
        "headroom_requests_pending",
        "headroom_batches_total",
        "headroom_batch_execution_seconds_total",
        "headroom_iterations_total",
        'headroom_request_latency_seconds_bucket{le="0"}',
        'headroom_request_latency_seconds_bucket{le="0.1"}',
        'headroom_request_latency_seconds_bucket{le="1e300"}',
        'headroom_request_latency_seconds_bucket{le="1e307"}',
        'headroom_request_latency_seconds_bucket{le="+Inf"}',
    ),
    "triton": (
        "nv_inference_request_success",
        "nv_inference_exec_count",
        "nv_inference_count",
        "nv_inference_compute_infer_duration_us",
        'nv_inference_request_summary_us{quantile="0.5"}',
        'nv_inference_request_summary_us{quantile="0.99"}',
    ),
    "vllm": (
        "vllm:request_success_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_count",
    ),
}
ODD = ("0", "-3", "7", "40", "1e-320", "1e14", "1e17", "-1e18", "NaN", "+Inf", "1e400", "9223372036854775794")


class Scraped:
    """The devices of a node: one has this worker."""

    def __init__(self, worker: WorkerReading) -> None:
        self.worker, self.tally = worker, Tally(told_s=0.0)

    def collect(self) -> tuple[DeviceSample, ...]:
        sample = self.tally.cut(self.worker, 1.0, gone=False)
        return (
            DeviceSample(
                uuid="u",
                power_w=1.0,
                energy_j=1.0,
                utilisation_pct=1.0,
                memory_mib_used=1.0,
                clock_mhz_sm=1,
                temperature_c=None,
                throttle="",
                healthy=True,
                workers=(sample,),
            ),
        )


@given(
    st.sampled_from([ADAPTERS[name] for name in SERIES]),
    st.lists(st.lists(st.sampled_from(ODD), min_size=12, max_size=12), min_size=1, max_size=4),
    st.booleans(),
)
def test_whatever_a_worker_tells_its_nodes_report_is_taken(
    adapter: ServerAdapter, told: list[list[str]], serves: bool
) -> None:
    """The numbers are its tenant's; the report is the whole node's."""
    worker = reading()
    host = Scraped(worker if serves else replace(worker, spec=replace(worker.spec, kind="job")))
    clock = FakeClock()
    samples = Sampler(host, clock, ("reports", "governor"))  # type: ignore[arg-type]
    reports = Collector(NODE, "boot", lambda: samples.take("reports"), (clock, clock))
    for numbers in told:
        page = "\n".join(f"{name} {number}" for name, number in zip(SERIES[adapter.name], numbers, strict=False))
        host.tally.read(adapter.totals(read_page(page.encode(), adapter.names)), 0.0)
        samples.take("governor")
    assert len(decode_reports(UnsentReport.of(reports.cut(0)).text)) == 1


def test_many_looks_at_a_counter_that_jumps_are_one_number_that_a_report_holds() -> None:
    host, clock = Scraped(reading()), FakeClock()
    samples = Sampler(host, clock, ("reports", "governor"))  # type: ignore[arg-type]
    reports = Collector(NODE, "boot", lambda: samples.take("reports"), (clock, clock))
    for look in range(200):
        host.tally.read(Totals(completed=1e17 * (look % 2)), 0.0)
        samples.take("governor")
    assert len(decode_reports(UnsentReport.of(reports.cut(0)).text)) == 1
