"""A device's fixed point, and the fluid mode of its stretch against the request level.

Violations and completions are compared as parts of what arrived: on average within half a point, also at the edge of
capacity; where tenants are worse is stated here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lab.world.arrivals import Source, Steady, arrival_times_s
from lab.world.device import DeviceLoad, Tenant, Trainee, busy_part, iterations_done, settle
from lab.world.queues import ReplicaServer, Stretch, serve_requests
from lab.world.truth import answer_shift_ms
from solvers.sim.serving.serving import serve as fluid_serve
from solvers.sim.truth.catalogue import GPUS, MODELS
from solvers.sim.truth.truth import Resident, execution_curve_ms
from tests.unit.lab.world import answers

V100 = GPUS["v100"]
VISION = Tenant(model="resnet50", share_pct_sm=50, batch=8, rate_rps=250.0)
JOB = Trainee(model="resnet50", share_pct_sm=50, iteration_ms_reference=100.0, gpu_reference=V100)


def load(*tenants: Tenant, **rest: Any) -> DeviceLoad:
    made = DeviceLoad(gpu=V100, clock_mhz_sm=V100.clock_mhz_sm_max, power_limit_w=V100.tdp_w, tenants=tenants)
    return replace(made, **rest)


def test_the_state_is_a_fixed_point_of_its_own_busy_parts() -> None:
    found = settle(load(VISION, replace(VISION, model="vgg19", rate_rps=120.0)))
    again = [busy_part(rate, table) for rate, table in zip((250.0, 120.0), found.exec_ms, strict=True)]
    assert found.busy == pytest.approx(again, abs=1e-3)
    assert all(0.05 < part < 1.0 for part in found.busy)


def test_times_are_those_of_the_truth() -> None:
    found = settle(load(VISION, replace(VISION, model="vgg19", rate_rps=120.0)))
    first, second = (
        Resident(model=model, share_pct_sm=50, batch=8, busy=busy)
        for model, busy in zip(("resnet50", "vgg19"), found.busy, strict=True)
    )
    assert found.exec_ms[0] == pytest.approx(execution_curve_ms(V100, first, found.clock_mhz_sm, [second]), rel=1e-4)
    assert found.exec_ms[1] == pytest.approx(execution_curve_ms(V100, second, found.clock_mhz_sm, [first]), rel=1e-4)


def test_answers_are_shifted_as_the_truth_says_and_only_where_it_does() -> None:
    turing = GPUS["rtx-2080ti"]
    first, second = (Tenant(model="googlenet", share_pct_sm=50, batch=batch, rate_rps=1e9) for batch in (16, 32))
    device = replace(load(first, second), gpu=turing, clock_mhz_sm=turing.clock_mhz_sm_max)
    found, slow = settle(device), settle(replace(device, slow=2.0))
    one, other = (Resident(model="googlenet", share_pct_sm=50, batch=each.batch) for each in (first, second))
    wanted = [answer_shift_ms(turing, one, [other]), answer_shift_ms(turing, other, [one])]
    assert found.answer_shift_ms == pytest.approx(wanted)
    assert slow.answer_shift_ms == pytest.approx([2.0 * each for each in wanted])
    idle = settle(replace(device, tenants=(first, replace(second, rate_rps=0.0))))
    assert idle.answer_shift_ms[0] == pytest.approx(answer_shift_ms(turing, one))
    assert settle(load(VISION, VISION, trainees=(JOB,))).answer_shift_ms == (0.0, 0.0)


def test_neighbours_slow_each_other_and_the_more_the_busier_they_are() -> None:
    alone = settle(load(VISION)).exec_ms[0][-1]
    idle = settle(load(VISION, replace(VISION, rate_rps=0.0))).exec_ms[0][-1]
    calm = settle(load(VISION, replace(VISION, rate_rps=50.0))).exec_ms[0][-1]
    full = settle(load(VISION, replace(VISION, rate_rps=5000.0))).exec_ms[0][-1]
    assert alone == idle < calm < full < 1.3 * alone


def test_a_power_limit_lowers_the_clock_and_so_lengthens_times() -> None:
    busy = replace(VISION, model="resnet50-trt", share_pct_sm=100, rate_rps=5000.0)
    free, tight = settle(load(busy)), settle(load(busy, power_limit_w=170.0))
    assert tight.clock_mhz_sm < free.clock_mhz_sm == V100.clock_mhz_sm_max
    assert tight.exec_ms[0][-1] > free.exec_ms[0][-1]
    assert tight.power_w <= 170.0 < free.power_w


def test_training_runs_beside_inference_and_both_pay() -> None:
    alone, mixed = settle(load(trainees=(JOB,))), settle(load(VISION, trainees=(JOB,)))
    assert mixed.iteration_ms[0] > alone.iteration_ms[0] > 100.0
    assert mixed.exec_ms[0][0] > settle(load(VISION)).exec_ms[0][0]
    assert iterations_done(mixed, 60.0) == pytest.approx((60_000.0 / mixed.iteration_ms[0],))


def test_an_empty_device_idles() -> None:
    found = settle(load())
    assert (found.exec_ms, found.busy, found.iteration_ms) == ((), (), ())
    assert found.power_w == V100.idle_w


@dataclass(frozen=True)
class Compared:
    """Both modes of one tenant, as parts of what arrived."""

    load: float
    completed_off: float
    violations_off: float
    busy_off: float


def random_load(draw: np.random.Generator) -> DeviceLoad:
    gpu = GPUS[str(draw.choice(["v100", "t4", "a100", "a30", "rtx-4090"]))]
    shares = ((100,), (60, 40), (40, 30, 30))[int(draw.integers(3))]
    tenants = []
    for share in shares:
        tenant = Tenant(
            model=str(draw.choice(sorted(MODELS))), share_pct_sm=share, batch=int(draw.integers(1, 17)), rate_rps=0.0
        )
        alone = settle(load(tenant, gpu=gpu, clock_mhz_sm=gpu.clock_mhz_sm_max, power_limit_w=gpu.tdp_w))
        carries_rps = 1000.0 * tenant.batch / alone.exec_ms[0][-1]
        tenants.append(replace(tenant, rate_rps=carries_rps * float(draw.uniform(0.1, 1.8))))
    return load(*tenants, gpu=gpu, clock_mhz_sm=gpu.clock_mhz_sm_max, power_limit_w=gpu.tdp_w)


def compare(device: DeviceLoad, draw: np.random.Generator) -> list[Compared]:
    state, found = settle(device), []
    for index, tenant in enumerate(device.tenants):
        table, span_s = state.exec_ms[index], max(60.0, 4000.0 / tenant.rate_rps)
        limit_ms = table[-1] * float(draw.uniform(2.0, 5.0))
        times = arrival_times_s(
            Steady(rate_rps=tenant.rate_rps), Source(name=str(index), seed=int(draw.integers(99))), 0.0, span_s
        )
        stretch = Stretch(
            from_s=0.0, until_s=span_s, arrivals_s=times, servers=(ReplicaServer(exec_ms=table),), limit_ms=limit_ms
        )
        single = serve_requests(stretch, draw)
        # The rate that really came, so that only the modes differ.
        came = replace(tenant, rate_rps=len(times) / span_s)
        fluid = fluid_serve(0.0, came.rate_rps * span_s, span_s, table, limit_ms)
        late = answers.late(single, limit_ms) + np.count_nonzero(single.dropped)
        found.append(
            Compared(
                load=came.rate_rps * table[-1] / 1000.0 / tenant.batch,
                completed_off=abs(answers.completed(single) - fluid.completed) / len(times),
                violations_off=abs(late - fluid.violated - fluid.dropped) / len(times),
                busy_off=abs(single.busy_s[0] / span_s - state.busy[index]),
            )
        )
    return found


def test_the_fluid_mode_agrees_with_single_requests_within_five_per_cent() -> None:
    draw = np.random.default_rng(11)
    seen = [each for _ in range(60) for each in compare(random_load(draw), draw)]
    edge = [each for each in seen if 0.83 < each.load < 1.3]
    assert len(seen) - len(edge) > 60
    assert len(edge) > 20
    for group in (edge, seen):
        for off in ("completed_off", "violations_off"):
            far = np.array([getattr(each, off) for each in group])
            assert float(np.mean(far)) <= 0.01
            assert float(np.quantile(far, 0.95)) <= 0.03
            assert float(np.max(far)) <= 0.06
    assert float(np.mean([each.busy_off for each in seen])) <= 0.02
