"""How simulated GPUs behave: published magnitudes, monotonicity, interference, power, derived models."""

import math
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.world.truth import answer_shift_ms, mig_truth
from solvers.sim.truth import truth
from solvers.sim.truth.catalogue import GPUS, MODELS, model_on, model_truth, training_sms
from solvers.sim.truth.truth import (
    GpuTruth,
    Resident,
    board_power_w,
    clock_reached_mhz,
    dynamic_power_w,
    execution_curve_ms,
    execution_ms,
    filled,
    gpu_truth,
    launch_s,
    memory_mib,
    parts,
    serve,
    slowdown,
    sm_count_of_share,
    swap_s,
    training_iteration_ms,
)

V100 = GPUS["v100"]
T4 = GPUS["t4"]
gpus = st.sampled_from(sorted(GPUS.values(), key=lambda gpu: gpu.name))
models = st.sampled_from([*sorted(MODELS), "some-large-net", "x"])


def resident(model: str, share: int, batch: int = 1, busy: float = 1.0) -> Resident:
    return Resident(model=model, share_pct_sm=share, batch=batch, busy=busy)


def alone_ms(model: str, share: int, batch: int, gpu_name: str = "v100") -> float:
    gpu = GPUS[gpu_name]
    return execution_ms(gpu, resident(model, share, batch), gpu.clock_mhz_sm_max)


@pytest.mark.parametrize(
    ("model", "batch", "share", "published_ms", "tolerance"),
    [
        ("resnet50-trt", 8, 40, 13.5, 0.05),
        ("vgg19-trt", 16, 50, 52.7, 0.02),
        ("alexnet-trt", 1, 100, 0.78, 0.19),
        ("resnet50", 8, 20, 32.0, 0.05),
        ("densenet161", 1, 100, 49.4, 0.05),
        ("vgg19", 8, 20, 79.7, 0.05),
    ],
)
def test_published_v100_latencies_are_met(
    model: str, batch: int, share: int, published_ms: float, tolerance: float
) -> None:
    assert alone_ms(model, share, batch) == pytest.approx(published_ms, rel=tolerance)


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("alexnet", 0.97),
        ("densenet121", 1.30),
        ("densenet161", 1.01),
        ("efficientnet", 0.95),
        ("googlenet", 1.03),
        ("inception-v3", 1.27),
        ("mnasnet", 0.98),
        ("mobilenet", 1.44),
        ("resnet18", 0.84),
        ("resnet50", 0.96),
        ("vgg19", 2.07),
    ],
)
def test_a_fifth_of_a_v100_slows_a_single_input_as_much_as_published(model: str, published: float) -> None:
    """RaPP: who waits for the host hardly cares. Single cells there scatter by 30 %, and some rise with the share."""
    assert alone_ms(model, 20, 1) / alone_ms(model, 100, 1) == pytest.approx(published, rel=0.35)


@pytest.mark.parametrize(
    ("model", "published"), [("resnet50-tfs", 1.42), ("mobilenet-tfs", 1.06), ("ssd-resnet50-tfs", 1.12)]
)
def test_a_tenth_of_a_2080ti_slows_tensorflow_serving_as_much_as_published(model: str, published: float) -> None:
    slower = alone_ms(model, 10, 8, "rtx-2080ti") / alone_ms(model, 50, 8, "rtx-2080ti")
    assert slower == pytest.approx(published, rel=0.08)


def test_dynamic_power_over_the_clock_follows_what_was_measured_of_the_chip() -> None:
    """DLBench: an exponent of 0.4 to 0.6 at the upper clocks of a GP102; Zeus: steeper where the voltage falls."""

    def exponent(name: str) -> float:
        gpu, one = GPUS[name], resident("vgg19-trt", 100, 32)
        clock = gpu.clocks_mhz_sm[-6]
        ratio = dynamic_power_w(gpu, one, gpu.clock_mhz_sm_max) / dynamic_power_w(gpu, one, clock)
        return math.log(ratio) / math.log(gpu.clock_mhz_sm_max / clock)

    assert 0.3 < exponent("p40") < 0.65
    assert 1.5 < exponent("v100") < 3.0


def test_a_slow_host_hides_the_gpu_and_a_t4_takes_twice_a_v100_where_it_does_not() -> None:
    assert alone_ms("resnet50", 100, 1, "t4") == pytest.approx(alone_ms("resnet50", 50, 1, "t4"), rel=0.05)
    assert 1.6 < alone_ms("resnet50", 100, 64, "t4") / alone_ms("resnet50", 100, 64) < 2.2


@given(gpu=gpus, model=models, batch=st.integers(1, 64), share=st.integers(1, 99))
def test_more_share_is_never_slower(gpu: GpuTruth, model: str, batch: int, share: int) -> None:
    smaller, larger = (
        execution_ms(gpu, resident(model, each, batch), gpu.clock_mhz_sm_max) for each in (share, share + 1)
    )
    assert larger <= smaller * (1 + 1e-12)


@given(gpu=gpus, model=models, share=st.integers(1, 100), batch=st.integers(2, 64))
def test_larger_batches_take_longer_but_serve_more_per_second(
    gpu: GpuTruth, model: str, share: int, batch: int
) -> None:
    curve = execution_curve_ms(gpu, resident(model, share, batch), gpu.clock_mhz_sm_max)
    assert len(curve) == batch
    assert all(shorter < longer for shorter, longer in pairwise(curve))
    rates = [(size + 1) / time_ms for size, time_ms in enumerate(curve)]
    assert all(lower <= higher * (1 + 1e-9) for lower, higher in pairwise(rates))


@pytest.mark.parametrize("rate_rps", [0.01, 5.0, 2_000.0, 1e6])
def test_a_limit_of_a_million_takes_the_work_of_the_batches_that_run(
    monkeypatch: pytest.MonkeyPatch, rate_rps: float
) -> None:
    worked_out: list[int] = []

    def counting(gpu: GpuTruth, model: Any, load: Resident, clock_mhz_sm: float) -> Any:
        worked_out.append(load.batch)
        return parts(gpu, model, load, clock_mhz_sm)

    monkeypatch.setattr(truth, "parts", counting)
    times_ms = execution_curve_ms(V100, resident("resnet50", 50, 1_048_576), V100.clock_mhz_sm_max)
    served = serve(3.0, rate_rps, 1.0, times_ms, 200.0)
    assert served.completed + served.dropped + served.queue == pytest.approx(3.0 + rate_rps)
    assert len(worked_out) == len(set(worked_out)) + 1 < 2_000


def test_a_curve_is_read_like_the_list_it_stands_for() -> None:
    curve = execution_curve_ms(V100, resident("resnet50", 50, 8), V100.clock_mhz_sm_max, noise=1.5)
    whole = [1.5 * alone_ms("resnet50", 50, size) for size in range(1, 9)]
    assert (list(curve), list(curve[2:5]), curve[-1]) == (whole, whole[2:5], whole[-1])
    with pytest.raises(IndexError):
        curve[8]


@given(gpu=gpus, model=models, share=st.integers(1, 100), batch=st.integers(1, 32), data=st.data())
def test_a_lower_clock_is_slower_and_draws_less(
    gpu: GpuTruth, model: str, share: int, batch: int, data: st.DataObject
) -> None:
    low, high = sorted(data.draw(st.lists(st.sampled_from(gpu.clocks_mhz_sm), min_size=2, max_size=2, unique=True)))
    one = resident(model, share, batch)
    assert execution_ms(gpu, one, low) >= execution_ms(gpu, one, high)
    assert dynamic_power_w(gpu, one, low) <= dynamic_power_w(gpu, one, high) * (1 + 1e-12)
    assert execution_ms(gpu, resident(model, share, 512), low) > execution_ms(gpu, resident(model, share, 512), high)


@given(gpu=gpus, share=st.integers(1, 100))
def test_shares_are_whole_units_of_sms_rounded_down(gpu: GpuTruth, share: int) -> None:
    sms = sm_count_of_share(gpu, share)
    assert sms % gpu.sm_granularity == 0
    assert gpu.sm_granularity <= sms <= gpu.sm_count
    assert sms <= max(gpu.sm_granularity, share * gpu.sm_count / 100)


def test_a_pair_of_busy_neighbours_slows_each_other_as_much_as_published() -> None:
    slowdowns = []
    for first, second in permutations(("alexnet-trt", "resnet50-trt", "vgg19-trt", "ssd-resnet50"), 2):
        one, other = resident(first, 50, 8), resident(second, 50, 8)
        together = execution_ms(V100, one, 1530, (other,))
        slowdowns.append(together / execution_ms(V100, one, 1530))
    assert min(slowdowns) > 1.03
    assert max(slowdowns) < 1.25
    assert sum(slowdowns) / len(slowdowns) == pytest.approx(1.09, abs=0.03)


@given(model=models, neighbours=st.lists(models, min_size=1, max_size=6))
def test_each_further_or_busier_neighbour_slows_more(model: str, neighbours: list[str]) -> None:
    one = resident(model, 10, 4)
    others = [resident(each, 10, 4) for each in neighbours]
    resting = [resident(each, 10, 4, busy=0.0) for each in neighbours]
    half = [resident(each, 10, 4, busy=0.5) for each in neighbours]
    times = [execution_ms(V100, one, 1530, crowd) for crowd in (resting, half, others)]
    assert times[0] == execution_ms(V100, one, 1530)
    assert times[0] < times[1] < times[2]
    assert execution_ms(V100, one, 1530, others[:-1]) < times[2]


def test_training_presses_harder_than_serving() -> None:
    one = resident("resnet50", 50, 8)
    serving = resident("vgg19", 50, 8)
    training = Resident(model="vgg19", share_pct_sm=50, batch=8, training=True)
    assert execution_ms(V100, one, 1530, (training,)) > execution_ms(V100, one, 1530, (serving,))


def test_a_training_iteration_on_the_whole_reference_type_takes_the_reference_time() -> None:
    whole = Resident(model="resnet50", share_pct_sm=100, training=True)
    half = Resident(model="resnet50", share_pct_sm=50, training=True)
    assert training_iteration_ms(V100, whole, 1530, (), 200.0, V100) == pytest.approx(200.0)
    # Half of the SMs are short for its wide kernels alone, and 8 % of an iteration needs none.
    within = filled(80, 37) / filled(40, 37)
    assert 1.0 < within < 1.3
    assert training_iteration_ms(V100, half, 1530, (), 200.0, V100) == pytest.approx(16.0 + 184.0 * within)
    assert training_iteration_ms(T4, whole, 1590, (), 200.0, V100) > 300.0


def test_training_saturates_as_measured_on_mig_slices() -> None:
    """A residual network at a batch of 128 takes 2.2 times as long on a seventh of an A100, not 7 times."""
    whole = Resident(model="resnet50", share_pct_sm=100, training=True)
    a100 = GPUS["a100-40gb"]
    seventh = mig_truth(a100, 14, 4864)
    slower = training_iteration_ms(seventh, whole, 1410, (), 1.0, a100)
    assert 2.0 < slower < 3.5
    bert = replace(whole, model="bert-base")
    assert training_iteration_ms(seventh, bert, 1410, (), 1.0, a100) > 1.5 * slower


@pytest.mark.parametrize(("sms", "memory_mib", "batch", "published_per_s"), [(42, 40192, 16, 1188), (14, 9728, 1, 197)])
def test_published_throughput_of_mig_slices_is_met(
    sms: int, memory_mib: int, batch: int, published_per_s: float
) -> None:
    part = mig_truth(GPUS["a100"], sms, memory_mib)
    each_ms = execution_ms(part, resident("resnet50", 100, batch), part.clock_mhz_sm_max)
    assert 1000.0 * batch / each_ms == pytest.approx(published_per_s, rel=0.1)


def test_a_slice_has_its_part_of_everything_but_the_clock() -> None:
    whole = GPUS["a100"]
    half = mig_truth(whole, 54, whole.memory_mib // 2)
    assert (half.sm_count, half.memory_mib, half.like) == (54, 40960, "a100")
    assert half.memory_bandwidth_gb_per_s == whole.memory_bandwidth_gb_per_s / 2
    assert (half.tdp_w, half.idle_w) == (whole.tdp_w / 2, whole.idle_w / 2)
    assert half.clocks_mhz_sm == whole.clocks_mhz_sm
    assert mig_truth(half, 27, 20480).like == "a100"


def test_processes_without_share_limits_divide_a_full_gpu_and_overlap_on_an_idle_one() -> None:
    """Published with ParvaGPU: on 3 of 7 slices two processes of resnet50 get 1.14 times what one gets, at batch 16."""
    slice_ = mig_truth(GPUS["a100"], 42, 40192)

    def gain(model: str, batch: int, processes: int) -> float:
        one = resident(model, 100, batch)
        alone_ms = execution_ms(slice_, one, 1410)
        return processes * alone_ms / execution_ms(slice_, one, 1410, [one] * (processes - 1))

    assert gain("resnet50", 16, 2) == pytest.approx(1.14, abs=0.08)
    assert gain("resnet50", 128, 4) == pytest.approx(1.0, abs=0.15)
    assert gain("mobilenet", 1, 2) > 1.8


def test_shares_that_fit_do_not_crowd_and_those_that_overlap_do_the_more_the_further() -> None:
    times = [
        execution_ms(V100, resident("resnet50-trt", share, 16), 1530, [resident("vgg19-trt", share, 16)])
        / execution_ms(V100, resident("resnet50-trt", share, 16), 1530)
        for share in (50, 60, 80, 100)
    ]
    assert times[0] < 1.2
    assert times == sorted(times)
    assert times[-1] > 1.5


def test_what_waits_on_its_host_suffers_less_from_a_crowd() -> None:
    crowd = [resident("vgg19", 100, 16)] * 2
    plain, hosted = (resident(model, 100, 8) for model in ("resnet50", "resnet50-tfs"))
    assert slowdown(V100, hosted, 1530, crowd)[0] < slowdown(V100, plain, 1530, crowd)[0]


def test_swapping_is_the_way_over_pcie_and_launching_includes_it() -> None:
    assert swap_s(V100, 9600.0) == pytest.approx(1.0486, rel=1e-3)
    assert swap_s(GPUS["h100"], 9600.0) == pytest.approx(swap_s(V100, 9600.0) / 4)
    assert launch_s("vgg19", V100) - launch_s("vgg19") == pytest.approx(swap_s(V100, 548.0))


def test_power_of_published_v100_states_is_met() -> None:
    for model, batch, share, published_w in (
        ("resnet50-trt", 16, 50, 187.0),
        ("alexnet-trt", 1, 10, 81.0),
        ("vgg19-trt", 1, 10, 82.0),
    ):
        found = board_power_w(V100, [resident(model, share, batch)], 1530, 300.0)
        assert found == pytest.approx(published_w, rel=0.12)


def test_a_type_behaves_like_the_one_it_is_a_variant_of() -> None:
    small, large = GPUS["a100-40gb"], GPUS["a100"]
    assert model_on(small, "resnet50") == model_on(large, "ResNet-50") != model_truth("resnet50")
    assert model_on(V100, "resnet50") == model_truth("resnet50")
    assert training_sms("ResNet-152") == training_sms("resnet50") < training_sms("never-measured")


@given(gpu=gpus, model=models, share=st.integers(10, 100), batch=st.integers(1, 32), part=st.floats(0.0, 1.0))
def test_a_power_limit_lowers_the_clock_until_it_holds(
    gpu: GpuTruth, model: str, share: int, batch: int, part: float
) -> None:
    crowd = [resident(model, share, batch)]
    limit_w = gpu.power_limit_w_min + part * (gpu.tdp_w - gpu.power_limit_w_min)
    clock = clock_reached_mhz(gpu, crowd, gpu.clock_mhz_sm_max, limit_w)
    assert clock in gpu.clocks_mhz_sm
    drawn = board_power_w(gpu, crowd, clock, 1e9)
    assert drawn <= limit_w or clock == gpu.clocks_mhz_sm[0]
    higher = [each for each in gpu.clocks_mhz_sm if each > clock]
    assert not higher or board_power_w(gpu, crowd, higher[0], 1e9) > limit_w


def test_a_saturated_v100_throttles_and_an_empty_one_idles() -> None:
    crowd = [resident("vgg19-trt", 100, 32)]
    assert clock_reached_mhz(V100, crowd, 1530, 300.0) < 1530
    assert board_power_w(V100, [], 1530, 300.0) == V100.idle_w
    assert board_power_w(V100, [resident("vgg19-trt", 100, 32, busy=0.0)], 1530, 300.0) == V100.idle_w + V100.context_w


def test_networks_that_nobody_measured_on_an_h100_are_told_by_others_of_their_software() -> None:
    h100, a100 = GPUS["h100"], GPUS["a100"]
    for name, work, host in (("bert-large", 0.038, 0.2), ("vgg19-trt", 0.51, 0.5), ("zebra-large", 0.39, 0.53)):
        told, base = model_on(h100, name), model_truth(name)
        assert told.work_ms_sm_per_input == pytest.approx(work * base.work_ms_sm_per_input)
        assert told.host_ms == pytest.approx(host * base.host_ms)
    # Tokens one after the other were not measured, and no other type has such factors.
    assert model_on(h100, "gpt2") == model_truth("gpt2")
    assert model_on(a100, "vgg19-trt") == model_truth("vgg19-trt")


def test_neighbours_that_serve_cost_more_on_an_h100_and_a_graph_is_one_launch() -> None:
    h100, one, other = GPUS["h100"], resident("bert-base", 50, 16), resident("mobilenet", 50, 16)
    factor, extra_ms = slowdown(h100, one, 1980, [other])
    assert factor == pytest.approx(1.22, abs=0.03)
    assert extra_ms < 0.01
    assert slowdown(V100, one, 1530, [other])[0] < 1.1


def test_a_neighbour_holds_up_short_graphs_most_on_an_h200_and_two_cost_less_than_twice_one() -> None:
    h200 = GPUS["h200"]

    def slower(model: str, batch: int, *others: str) -> float:
        crowd = [resident(other, 30, 16) for other in others]
        return execution_ms(h200, resident(model, 30, batch), 1980, crowd) / execution_ms(
            h200, resident(model, 30, batch), 1980
        )

    assert slower("mobilenet", 1, "resnet50-trt") - 1.0 > 1.2 * (slower("mobilenet", 16, "resnet50-trt") - 1.0)
    once = slower("resnet50-trt", 16, "bert-base")
    twice = slower("resnet50-trt", 16, "bert-base", "mobilenet")
    assert once < twice < once + 0.6 * (once - 1.0)


@given(model=models, neighbours=st.lists(models, min_size=1, max_size=5), busy=st.floats(0.05, 1.0))
def test_each_further_or_busier_neighbour_slows_more_on_an_h200_too(
    model: str, neighbours: list[str], busy: float
) -> None:
    h200, one = GPUS["h200"], resident(model, 10, 4)
    others = [resident(each, 10, 4) for each in neighbours]
    factors = [
        slowdown(h200, one, 1980, crowd)[0]
        for crowd in (others[:-1], [*others[:-1], replace(others[-1], busy=busy)], others)
    ]
    assert factors == sorted(factors)
    assert factors[0] < factors[2]


def test_no_type_but_the_h200_adds_neighbours_up_otherwise() -> None:
    assert {name for name, gpu in GPUS.items() if gpu.neighbours_norm != 1.0} == {"h200"}
    assert {gpu.slowdown_per_training for name, gpu in GPUS.items() if name != "h200"} == {0.06}


TURING = GPUS["rtx-2080ti"]


def test_copies_lengthen_answers_by_all_on_the_link_and_gaps_shorten_them_by_their_own() -> None:
    one, four = resident("googlenet", 25, 16), [resident("googlenet", 25, 16)] * 4
    copy_ms, gap_ms = 16 * 0.0248, 16 * 0.0498
    assert answer_shift_ms(TURING, one) == pytest.approx(copy_ms - gap_ms)
    assert answer_shift_ms(TURING, one, four[1:]) == pytest.approx(4 * copy_ms - gap_ms)
    half = [replace(each, busy=0.5) for each in four[1:]]
    assert answer_shift_ms(TURING, one, half) == pytest.approx(2.5 * copy_ms - gap_ms)
    # Who copies more than it holds up a smaller copy only until that is through.
    beside = answer_shift_ms(TURING, one, [resident("googlenet", 25, 64)])
    assert beside == pytest.approx(2 * copy_ms - gap_ms)
    assert answer_shift_ms(TURING, one, [resident("resnet50", 25, 16)]) == answer_shift_ms(TURING, one)
    training = Resident(model="googlenet", share_pct_sm=25, batch=16, training=True)
    assert answer_shift_ms(TURING, one, [training]) == answer_shift_ms(TURING, one)


def test_no_other_pair_has_a_shift() -> None:
    every = [(gpu.name, model) for gpu in GPUS.values() for model in [*MODELS, "some-large-net"]]
    ones = {model: resident(model, 50, 16) for _, model in every}
    shifted = {(gpu, model) for gpu, model in every if answer_shift_ms(GPUS[gpu], ones[model], [ones[model]])}
    assert shifted == {("rtx-2080ti", "googlenet")}


def test_memory_is_taken_in_whole_segments() -> None:
    sizes = [memory_mib("resnet50", batch) for batch in range(1, 33)]
    steps = {round(after - before) for before, after in pairwise(sizes)}
    assert steps == {20, 40}
    assert (sizes[-1] - sizes[0]) / 31 == pytest.approx(MODELS["resnet50"].memory_mib_per_input, rel=0.02)
    assert sizes[0] > 600


def test_unknown_models_are_derived_from_their_name_alone() -> None:
    assert model_truth("Zebra-Net") == model_truth("Zebra-Net")
    assert model_truth("zebra-large").work_ms_sm_per_input > model_truth("zebra-nano").work_ms_sm_per_input
    assert model_truth("zebra-a") != model_truth("zebra-b")
    assert model_truth("ResNet-50") is MODELS["resnet50"]
    assert model_truth("inceptionv3") is MODELS["inception-v3"]


def test_unknown_gpus_do_not_exist() -> None:
    assert gpu_truth("T4") is T4
    assert gpu_truth("t5") is None


def test_noise_moves_a_time_and_zero_noise_is_the_mean() -> None:
    one = resident("resnet50", 50, 8)
    mean_ms = execution_ms(V100, one, 1530)
    assert execution_ms(V100, one, 1530, (), 1.0) == pytest.approx(1.03 * mean_ms)
    assert execution_ms(V100, one, 1530, (), -100.0) == pytest.approx(0.5 * mean_ms)
