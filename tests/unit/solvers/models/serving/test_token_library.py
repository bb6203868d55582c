"""Every rung of belief about an LLM nobody measured, and the shipped coefficients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.library import load_gpu_types, load_llm_library, load_models
from solvers.domain.ids import ModelName
from solvers.domain.workload import ModelVariant
from solvers.models.base import Origin
from solvers.models.serving.token_library import Efficiency, LlmEntry, LlmLibrary, Rates, believed_costs, roofline
from solvers.models.serving.tokens import StepCosts

GPU_TYPES = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}
EFFICIENCY = Efficiency(
    bandwidth=0.5,
    compute=0.5,
    prefill_fixed_ms=10.0,
    decode_per_sequence_part=0.01,
    bandwidth_spread=0.3,
    compute_spread=0.3,
)
ENTRY = LlmEntry(
    model="some-7b",
    gpu_type="a100",
    gpus=1,
    runtime="r",
    costs=StepCosts(
        decode_fixed_ms=14.0,
        decode_per_sequence_ms=0.1,
        decode_per_token_ms=0.0005,
        prefill_fixed_ms=9.0,
        prefill_per_token_ms=0.09,
    ),
    decode_error_pct=3.0,
    prefill_error_pct=8.0,
    samples=40,
    source="somebody",
    licence="MIT",
)
LIBRARY = LlmLibrary(version="1", efficiency=EFFICIENCY, entries=(ENTRY,))


def model(name: str = "some-7b", parameters_million: float = 7_000) -> ModelVariant:
    return ModelVariant(
        name=ModelName(name),
        family="some",
        parameters_million=parameters_million,
        memory_mib_weights=parameters_million * 2e6 / 2**20,
        kv_cache_mib_per_token=0.5,
    )


def test_a_measured_configuration_is_taken_as_it_is() -> None:
    believed = believed_costs(model(), GPU_TYPES["a100"], 1, LIBRARY, GPU_TYPES)
    assert (believed.costs, believed.origin) == (ENTRY.costs, Origin.LIBRARY)
    assert believed.spread == pytest.approx(0.1, rel=0.01)
    assert "somebody" in believed.source


def test_another_gpu_scales_decode_by_bandwidth_and_prefill_by_compute() -> None:
    source, target = GPU_TYPES["a100"], GPU_TYPES["t4"]
    believed = believed_costs(model(), target, 1, LIBRARY, GPU_TYPES)
    assert believed.origin is Origin.SCALED
    assert believed.costs.decode_fixed_ms == pytest.approx(
        14.0 * source.memory_bandwidth_gb_per_s / target.memory_bandwidth_gb_per_s
    )
    assert believed.costs.prefill_per_token_ms == pytest.approx(0.09 * source.fp16_tflops / target.fp16_tflops)
    assert believed.spread > 0.3


def test_more_gpus_are_faster_but_not_by_their_number() -> None:
    one, two = (believed_costs(model(), GPU_TYPES["a100"], gpus, LIBRARY, GPU_TYPES).costs for gpus in (1, 2))
    assert one.decode_fixed_ms / 2 < two.decode_fixed_ms < one.decode_fixed_ms


def test_weights_of_another_format_scale_what_reads_and_multiplies_them() -> None:
    """An entry of eight bits says of sixteen what half the GPU's rates would; of eight it stands as it is."""
    eight = replace(ENTRY, weight_bits=8)
    library = replace(LIBRARY, entries=(eight,))
    wide = believed_costs(model(), GPU_TYPES["a100"], 1, library, GPU_TYPES)
    assert wide.origin is Origin.SCALED
    assert "8 bits" in wide.source
    assert wide.costs.decode_fixed_ms == pytest.approx(2 * 14.0)
    assert wide.costs.prefill_per_token_ms == pytest.approx(2 * 0.09)
    narrow = replace(model(), memory_mib_weights=model().memory_mib_weights / 2)
    assert believed_costs(narrow, GPU_TYPES["a100"], 1, library, GPU_TYPES).costs == ENTRY.costs


def test_an_unknown_model_is_believed_by_its_size() -> None:
    card = GPU_TYPES["a100"]
    small, large = (believed_costs(model("other", size), card, 1, LIBRARY, GPU_TYPES).costs for size in (1_000, 10_000))
    assert large.decode_fixed_ms == pytest.approx(10 * small.decode_fixed_ms)
    # 10 billion parameters of two bytes, at half of the bandwidth
    assert large.decode_fixed_ms == pytest.approx(20 / (0.5 * card.memory_bandwidth_gb_per_s) * 1000)
    assert large.prefill_per_token_ms == pytest.approx(2 * 10e9 / (0.5 * card.fp16_tflops * 1e12) * 1000)
    assert roofline(model("other", 10_000), Rates.of(card, 1), EFFICIENCY) == large


@pytest.mark.parametrize("gpu_type", ["h100", "h200", "b200", "a100"])
def test_no_shipped_model_reads_its_weights_faster_than_the_memory_can(gpu_type: str) -> None:
    shipped, card = load_llm_library(), GPU_TYPES[gpu_type]
    for variant in load_models():
        if variant.kv_cache_mib_per_token is not None:
            told = believed_costs(variant, card, 1, shipped, GPU_TYPES).costs
            least_ms = variant.memory_mib_weights * 2**20 / 1e9 / card.memory_bandwidth_gb_per_s * 1000.0
            assert told.decode_fixed_ms > least_ms, variant.name


def test_shipped_entries_are_known_models_on_known_gpus_with_source_and_error() -> None:
    shipped = load_llm_library()
    names = {variant.name for variant in load_models()}
    assert len(shipped.entries) >= 20
    assert {entry.gpu_type for entry in shipped.entries} <= set(GPU_TYPES)
    assert {entry.model for entry in shipped.entries} <= names
    assert all(entry.licence in {"MIT", "Apache-2.0", "BSD-3-Clause"} for entry in shipped.entries)
    assert all(entry.decode_error_pct < 15 for entry in shipped.entries)
    assert 0.3 < shipped.efficiency.bandwidth < 1.0
    assert 0.2 < shipped.efficiency.compute < 0.8
