"""What papers print about their hardware, met by the calibrated truth, and where it is not."""

from statistics import mean

import numpy as np
import pytest

from lab.claims.hetsev.worlds import HETSEV_BATCHES, Replicas, hetsev_pairs, hetsev_replicas
from lab.claims.morak.rules import morak_triples
from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import Resident, board_power_w, execution_ms

TURING = GPUS["rtx-2080ti"]


def test_throughput_latency_and_power_of_googlenet_are_those_printed() -> None:
    for triple in morak_triples():
        assert triple.throughput_rps == pytest.approx(triple.throughput_rps_stated, rel=0.001)
        assert triple.latency_ms == pytest.approx(triple.latency_ms_stated, rel=0.001)
        assert triple.power_w == pytest.approx(triple.power_w_stated, rel=0.001)


def test_no_single_time_is_both_printed_throughput_and_printed_latency() -> None:
    off = [
        1000.0 * triple.replicas * triple.batch / triple.latency_ms_stated / triple.throughput_rps_stated - 1.0
        for triple in morak_triples()
    ]
    assert off == pytest.approx([0.042, -0.022], abs=0.001)


def test_sharing_gains_what_is_printed() -> None:
    alone, shared = morak_triples()
    assert shared.throughput_rps / alone.throughput_rps == pytest.approx(1.1625, abs=0.005)
    assert shared.power_w / alone.power_w == pytest.approx(1.026, abs=0.005)
    assert shared.latency_ms < alone.latency_ms


@pytest.mark.parametrize("model", ["googlenet", "mobilenet", "resnet50", "resnet101"])
def test_batch_clock_and_sharing_move_time_and_power_as_described(model: str) -> None:
    def state(
        batch: int, replicas: int = 1, share: int = 100, clock: int = TURING.clock_mhz_sm_max
    ) -> tuple[float, float]:
        one = Resident(model=model, share_pct_sm=share, batch=batch)
        time_ms = execution_ms(TURING, one, clock, [one] * (replicas - 1))
        return time_ms, board_power_w(TURING, [one] * replicas, clock, TURING.tdp_w)

    batches = np.array([16, 32, 64, 128, 256])
    times, watts = np.array([state(int(batch)) for batch in batches]).T
    straight = np.polyval(np.polyfit(batches, times, 1), batches)
    assert float(np.max(np.abs(straight / times - 1.0))) < 0.1
    assert list(watts) == sorted(watts)
    assert batches[2] / times[2] > 0.93 * batches[4] / times[4]
    slow_ms, slow_w = state(64, clock=1350)
    assert slow_ms > times[2]
    assert slow_w < watts[2]
    shared = [state(16, replicas, 25) for replicas in (1, 2, 3, 4)]
    assert [time_ms for time_ms, _ in shared] == sorted(time_ms for time_ms, _ in shared)
    assert [power_w for _, power_w in shared] == sorted(power_w for _, power_w in shared)


def gains(found: tuple[Replicas, ...], replicas: int) -> float:
    return mean(each.throughput_rps[replicas - 1] / each.throughput_rps[0] for each in found)


def test_replicas_gain_as_printed_and_less_each_time() -> None:
    found = hetsev_replicas()
    assert [each.model for each in found] == list(HETSEV_BATCHES)
    assert gains(found, 3) == pytest.approx(1.85, rel=0.1)
    assert gains(found, 3) - gains(found, 2) < gains(found, 2) - 1.0
    # The paper reports 2.76 times the utilisation; ours is nearly full with three, and a little higher alone.
    assert mean(each.utilisation[2] / each.utilisation[0] for each in found) == pytest.approx(2.15, abs=0.1)


def test_a_slower_gpu_leaves_less_to_share() -> None:
    assert gains(hetsev_replicas("t4"), 3) < gains(hetsev_replicas(), 3) - 0.4
    assert mean(pair.increase for pair in hetsev_pairs("t4")) > mean(pair.increase for pair in hetsev_pairs())
