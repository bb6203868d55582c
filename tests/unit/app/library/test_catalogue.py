"""The shipped catalogue: complete, consistent with itself, with the simulated world and with the demo."""

from __future__ import annotations

import pytest

from app.library import load_gpu_types, load_models
from solvers.domain.device import GpuType, PriceKind
from solvers.domain.ids import GpuTypeName
from solvers.sim.truth.catalogue import GPUS

TYPES = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}
MODELS = {model.name: model for model in load_models()}
NAMED = """
k80 p4 p40 p100 t4 v100 v100-16gb rtx-2060 rtx-2060-super rtx-2080ti quadro-rtx-6000 quadro-rtx-8000 a2 a10 a10g a16 a30
a40 a100 a100-40gb a100-pcie-40gb a100-pcie-80gb rtx-3080 rtx-3080ti rtx-3090 rtx-a4000 rtx-a5000 rtx-a6000 l4 l40 l40s
rtx-4090 rtx-6000-ada h100 h100-pcie h100-nvl gh200 h200 b200 rtx-pro-6000
"""


def test_every_common_product_is_listed_once_in_order() -> None:
    names = [gpu_type.name for gpu_type in load_gpu_types()]
    assert len(names) >= 25
    assert names == sorted(set(names))
    assert set(NAMED.split()) <= set(names)
    assert len({gpu_type.product for gpu_type in load_gpu_types()}) == len(names)


_CORES = {("k80",): 192, ("a100", "a30", "p100", "quadro-rtx", "rtx-20", "t4", "v100"): 64}
"""Per SM by the beginning of the name; 128 else."""


@pytest.mark.parametrize("gpu_type", load_gpu_types(), ids=lambda gpu_type: gpu_type.name)
def test_rates_agree_with_cores_and_clocks(gpu_type: GpuType) -> None:
    cores = next((cores for names, cores in _CORES.items() if gpu_type.name.startswith(names)), 128)
    at_highest_clock = 2e-6 * cores * gpu_type.sm_count * gpu_type.clock_mhz_sm_max
    # Data sheets quote the boost clock, which is at or below the highest that can be locked.
    assert 0.55 * at_highest_clock <= gpu_type.fp32_tflops <= 1.06 * at_highest_clock
    if gpu_type.tf32_tflops is not None:
        assert gpu_type.fp32_tflops * 0.95 <= gpu_type.tf32_tflops <= gpu_type.fp16_tflops
    assert gpu_type.idle_w < gpu_type.power_limit_w_min <= gpu_type.tdp_w <= gpu_type.power_limit_w_max


@pytest.mark.parametrize("gpu_type", load_gpu_types(), ids=lambda gpu_type: gpu_type.name)
def test_slices_fit_their_gpu(gpu_type: GpuType) -> None:
    for profile in gpu_type.mig_profiles:
        assert profile.sm_count * profile.instances_max <= gpu_type.sm_count
        assert profile.memory_mib * profile.instances_max <= gpu_type.memory_mib


def test_products_that_can_be_sliced_are() -> None:
    sliced = {name for name, gpu_type in TYPES.items() if gpu_type.mig_profiles}
    assert {"a30", "a100", "a100-pcie-40gb", "h100", "h200", "b200"} <= sliced
    assert not sliced & {"t4", "v100", "l40s", "rtx-4090", "a10g"}


def test_prices_say_where_they_come_from() -> None:
    priced = [gpu_type for gpu_type in load_gpu_types() if gpu_type.prices]
    assert len(priced) >= 15
    for gpu_type in priced:
        assert gpu_type.price_row(PriceKind.ON_DEMAND, "nowhere-known") is not None or all(
            price.region != "default" for price in gpu_type.prices
        )
        for price in gpu_type.prices:
            assert price.usd_per_h > 0
            assert price.source.startswith(("AWS", "Azure", "GCP"))
    t4 = TYPES["t4"].price_row(PriceKind.ON_DEMAND, "us-east-1")
    assert t4 is not None
    assert t4.usd_per_h == 0.526
    spot = TYPES["l4"].price_row(PriceKind.SPOT, "us-central1")
    on_demand = TYPES["l4"].price_row(PriceKind.ON_DEMAND, "us-central1")
    assert spot is not None
    assert on_demand is not None
    assert spot.usd_per_h < on_demand.usd_per_h


@pytest.mark.parametrize("name", sorted(GPUS))
def test_simulated_products_are_these(name: str) -> None:
    truth, listed = GPUS[name], TYPES[GpuTypeName(name)]
    assert listed.product.endswith(truth.product)
    assert (listed.sm_count, listed.memory_mib, listed.tdp_w) == (truth.sm_count, truth.memory_mib, truth.tdp_w)
    assert listed.clocks_mhz_sm == truth.clocks_mhz_sm
    assert listed.memory_bandwidth_gb_per_s == truth.memory_bandwidth_gb_per_s


def test_models_are_consistent() -> None:
    names = list(MODELS)
    assert len(names) >= 70
    assert names == sorted(names)
    assert all(model.gflop_per_input for model in MODELS.values())
    assert MODELS["resnet50"].gflop_per_input == 4.09
    assert MODELS["resnet18"].quality_class.value == "low"
    assert MODELS["resnet152"].quality_class.value == "high"
    assert {layer.kind: layer.count for layer in MODELS["vgg16"].layers} == {"conv": 13, "linear": 3, "pool": 5}


def test_generators_hold_keys_and_values() -> None:
    # Two tensors of 32 layers by 32 heads of 128 numbers of 2 bytes are half a MiB; a fourth of the heads, an eighth.
    assert MODELS["llama-2-7b"].kv_cache_mib_per_token == 0.5
    assert MODELS["llama-3-8b"].kv_cache_mib_per_token == 0.125
    assert MODELS["llama-2-70b"].memory_mib_weights > 130_000
