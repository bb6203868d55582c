"""Tallies: nothing is counted twice, both modes fill the same ones, percentiles are within their step."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.sim.arrivals import Source, Steady, arrival_times_s
from solvers.sim.metrics import DeviceTally, ServiceTally, score, tally_fluid, tally_requests
from solvers.sim.requests import Outcome, Server, Stretch, serve_requests
from solvers.sim.serving import serve

TABLE = (10.0, 12.0, 14.0, 16.0)
LIMIT_MS = 40.0
PATTERN, SOURCE = Steady(rate_rps=150.0), Source(name="test", seed=1)


def run(from_s: float, until_s: float, before: Outcome | None = None) -> Outcome:
    stretch = Stretch(
        from_s=from_s,
        until_s=until_s,
        arrivals_s=arrival_times_s(PATTERN, SOURCE, from_s, until_s),
        servers=(Server(exec_ms=TABLE),),
        carried=before.carried if before else (),
        limit_ms=LIMIT_MS,
    )
    return serve_requests(stretch, np.random.default_rng(0))


def test_stretches_add_up_to_the_whole() -> None:
    first = run(0.0, 20.0)
    parts = tally_requests(first, 25.0) + tally_requests(run(20.0, 60.0, first), 25.0)
    whole = tally_requests(run(0.0, 60.0), 25.0)
    assert (parts.completed, parts.late, parts.dropped) == (whole.completed, whole.late, whole.dropped)
    assert whole.completed > 8000.0
    assert 0.0 < whole.late < whole.completed
    assert whole.violation_fraction == (whole.late + whole.dropped) / (whole.completed + whole.dropped)


def test_percentiles_are_at_most_a_step_too_high() -> None:
    outcome = run(0.0, 60.0)
    tally = tally_requests(outcome, None)
    assert tally.late == 0.0
    for percentile in (1.0, 50.0, 95.0, 99.0, 100.0):
        exact = float(np.nanpercentile(outcome.latency_ms, percentile, method="inverted_cdf"))
        found = tally.latency_ms(percentile)
        assert found is not None
        assert exact <= found * (1 + 1e-9) <= exact * 1.0201
    assert ServiceTally().latency_ms(99.0) is None


def test_both_modes_fill_the_same_tally() -> None:
    single = tally_requests(run(0.0, 60.0), LIMIT_MS)
    arrived = len(arrival_times_s(PATTERN, SOURCE, 0.0, 60.0))
    fluid = tally_fluid([serve(0.0, arrived / 2, 60.0, TABLE, LIMIT_MS)] * 2)
    assert fluid.completed + fluid.dropped == pytest.approx(single.completed + single.dropped, rel=0.01)
    assert fluid.latency_ms(50.0) is None
    assert tally_fluid([]).violation_fraction == 0.0


def test_a_run_is_summed_up() -> None:
    services = [ServiceTally(completed=90.0, late=10.0, dropped=10.0), ServiceTally(completed=100.0)]
    held = DeviceTally(rented_s=3600.0, energy_j=3.6e6, cost_usd=2.0, busy_share_s=900.0, iterations=5.0)
    found = score(services, [held, DeviceTally(), held], 10.0)
    assert found.violation_fraction == pytest.approx(0.1)
    assert found.throughput_rps == pytest.approx(18.0)
    assert (found.cost_usd, found.energy_kwh, found.utilisation, found.iterations) == (4.0, 2.0, 0.25, 10.0)
    assert score([], [], 1.0).utilisation == 0.0
