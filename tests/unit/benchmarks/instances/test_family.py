"""The synthetic family: drawn the same every time, by its published formulas, at once even for large fleets."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.instances.family import BATCHES, CARDS, LOAD_PART, SHARES_PCT, family, family_problem, fleet
from tests.judgement import judge


def test_the_same_seed_draws_the_same_and_another_draws_other() -> None:
    once, again, other = family(64, 20, 3), family(64, 20, 3), family(64, 20, 4)
    assert np.array_equal(once.rate_rps, again.rate_rps)
    assert np.array_equal(once.slo_ms, again.slo_ms)
    assert not np.array_equal(once.rate_rps, other.rate_rps)


@pytest.mark.parametrize("gpus", [8, 64, 256, 1000, 20_000])
def test_every_gpu_of_the_fleet_has_a_type(gpus: int) -> None:
    devices = fleet(gpus)
    assert sum(devices) == gpus
    assert all(abs(count - gpus * card.fleet_part) < 1 for count, card in zip(devices, CARDS, strict=True))


def test_one_cell_is_what_the_formulas_say() -> None:
    drawn, problem = family(64, 20, 1), family_problem(64, 20, 1)
    service, share, batch, card, clock = 7, 0.3, 8, CARDS[4], 0.8
    used = min(share * card.sm_count, drawn.sms_needed[service] * batch**0.85) / card.sm_count
    teraflop = batch * drawn.gflop[service] / 1000
    compute_ms = 1000 * teraflop / (drawn.efficiency[service] * card.fp16_tflops * clock * used)
    bandwidth = card.bandwidth_gb_per_s * min(1, share / 0.45) * (0.5 + 0.5 * clock)
    memory_ms = 1000 * (drawn.weights_gb[service] + batch * drawn.traffic_gb[service]) / bandwidth
    latency_ms = drawn.fixed_ms[service] + compute_ms + memory_ms
    cell = (4 * 3 + 1, service, list(SHARES_PCT).index(30), list(BATCHES).index(batch))
    assert problem.mean_ms[cell] == pytest.approx(latency_ms)
    power_w = (card.tdp_w - card.idle_w) * used * 0.9 * clock**2.2 * drawn.intensity[service]
    assert problem.power_w[cell] == pytest.approx(power_w)
    memory_gb = 0.5 + 1.15 * drawn.weights_gb[service] + batch * drawn.activation_gb[service]
    assert problem.memory_mib[cell[0], service, cell[3]] == pytest.approx(1024 * memory_gb)


def test_all_rates_together_ask_for_most_of_what_the_fleet_could_serve_alone() -> None:
    problem = family_problem(256, 60, 2)
    part = 0.0
    for number, work in enumerate(problem.workloads):
        alone = (judge(problem, kind, [number], [100]) for kind in range(0, problem.kinds, 3))
        best = sum(
            pool.devices * pattern.capacity_rps[0]
            for pool, pattern in zip(problem.pools, alone, strict=True)
            if pattern is not None
        )
        part += work.rate_rps / best
    assert part == pytest.approx(LOAD_PART)
    assert all(work.unserved_usd > 25 for work in problem.workloads)
