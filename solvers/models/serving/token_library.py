"""Step costs of LLMs that were not measured here: from the built-in library, scaled, or from size and data sheet alone.

The rungs, nearest first: the library's entry for the model on as many GPUs of the type; the same model on another type
or number of GPUs, compute and memory time scaled by data-sheet rates; and the roofline of the model's size with the
efficiencies that the library's entries reach. Each answer says which rung it is and how far off such answers usually
are. Lengths of requests and rates are the matter of `solvers.models.serving.tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from solvers.domain.device import GpuType
from solvers.domain.value import NAME, NOT_NEGATIVE, POSITIVE, TEXT, value
from solvers.domain.workload import ModelVariant
from solvers.models.base import Origin
from solvers.models.serving.tokens import StepCosts


@value
class LlmEntry:
    """Costs that our own code fitted to one public source, for `gpus` GPUs that share the work (tensor parallel) and
    weights of so many bits, which may be fewer than those of the network as it is published.
    """

    model: Annotated[str, NAME]
    gpu_type: Annotated[str, NAME]
    gpus: Annotated[int, POSITIVE]
    runtime: str
    costs: StepCosts
    decode_error_pct: Annotated[float, NOT_NEGATIVE]
    prefill_error_pct: Annotated[float, NOT_NEGATIVE]
    samples: Annotated[int, POSITIVE]
    source: Annotated[str, TEXT]
    licence: Annotated[str, TEXT]
    weight_bits: Annotated[int, POSITIVE] = 16

    def narrower(self, model: ModelVariant) -> float:
        """How often a weight that was measured goes into one of this model's. Weights of a narrower model are taken as
        the measured ones: not every GPU multiplies them faster.
        """
        bits = model.memory_mib_weights * 2**23 / (model.parameters_million * 1e6)
        return max(1.0, 2.0 ** round(math.log2(bits / self.weight_bits)))


@value
class Efficiency:
    """What serving reaches of a data sheet, as medians over the entries, and how far entries lie apart (standard
    deviation of logarithms).
    """

    bandwidth: float
    compute: float
    prefill_fixed_ms: float
    decode_per_sequence_part: float
    """Of the fixed decode step, for every running sequence."""
    bandwidth_spread: float
    compute_spread: float


@value
class LlmLibrary:
    """All entries, the efficiencies they reach, and how far off the scaled rungs were when entries were left out."""

    version: str
    efficiency: Efficiency
    entries: tuple[LlmEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedCosts:
    """Costs with their rung; `spread` is the usual relative error (standard deviation) of step times."""

    costs: StepCosts
    origin: Origin
    source: str
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a group of GPUs offers: dense half-precision TFLOP/s and GB/s, both times the number of GPUs, less what
    these tell each other. Weights of half the bits pass twice as fast.
    """

    tflops: float
    gb_per_s: float

    @staticmethod
    def of(gpu_type: GpuType, gpus: int, narrower: float = 1.0) -> Rates:
        times = gpus * (1.0 - _GROUP_LOSS) ** math.log2(gpus) * narrower
        return Rates(tflops=gpu_type.fp16_tflops * times, gb_per_s=gpu_type.memory_bandwidth_gb_per_s * times)


SCALED_SPREAD = 0.4
"""Entries left out one by one: 0.27 for decode steps, 0.34 for prefills."""
SIZED_SPREAD = 0.5
"""All entries of a model left out: 0.35 for decode steps, 0.37 for prefills; but those are of four models alone."""
_GROUP_LOSS = 0.12
"""Part of the ideal speed-up that every doubling of a group's GPUs loses to communication."""


def roofline(model: ModelVariant, rates: Rates, efficiency: Efficiency) -> StepCosts:
    """Costs by data sheet: a decode step reads all weights, a prompt token takes two operations per parameter."""
    weights_gb = model.memory_mib_weights * 2**20 / 1e9
    decode_ms = weights_gb / (rates.gb_per_s * efficiency.bandwidth) * 1000.0
    prefill_ms = 2.0 * model.parameters_million * 1e6 / (rates.tflops * 1e12 * efficiency.compute) * 1000.0
    cache_gb = (model.kv_cache_mib_per_token or 0.0) * 2**20 / 1e9
    return StepCosts(
        decode_fixed_ms=decode_ms,
        decode_per_sequence_ms=decode_ms * efficiency.decode_per_sequence_part,
        decode_per_token_ms=cache_gb / (rates.gb_per_s * efficiency.bandwidth) * 1000.0,
        prefill_fixed_ms=efficiency.prefill_fixed_ms,
        prefill_per_token_ms=prefill_ms,
    )


def believed_costs(
    model: ModelVariant, gpu_type: GpuType, gpus: int, library: LlmLibrary, gpu_types: Mapping[str, GpuType]
) -> BelievedCosts:
    same = [entry for entry in library.entries if entry.model == model.name and entry.gpu_type in gpu_types]
    for entry in same:
        if (entry.gpu_type, entry.gpus) == (gpu_type.name, gpus) and entry.narrower(model) == 1.0:
            errors = (entry.decode_error_pct, entry.prefill_error_pct)
            spread = max(errors) / 100.0 * math.sqrt(math.pi / 2.0)
            source = f"library: {entry.source}"
            return BelievedCosts(costs=entry.costs, origin=Origin.LIBRARY, source=source, spread=spread)
    wanted = Rates.of(gpu_type, gpus)
    if same:

        def offered(entry: LlmEntry) -> Rates:
            return Rates.of(gpu_types[entry.gpu_type], entry.gpus, entry.narrower(model))

        entry = min(same, key=lambda one: _gap(offered(one), wanted))
        had = offered(entry)
        costs = entry.costs.scaled(wanted.tflops / had.tflops, wanted.gb_per_s / had.gb_per_s)
        width = "" if entry.narrower(model) == 1.0 else f" with weights of {entry.weight_bits} bits"
        source = f"scaled: {entry.model}{width} on {entry.gpus} x {entry.gpu_type}"
        return BelievedCosts(costs=costs, origin=Origin.SCALED, source=source, spread=SCALED_SPREAD)
    costs = roofline(model, wanted, library.efficiency)
    source = f"roofline: {model.parameters_million:g} M parameters on {gpus} x {gpu_type.name}"
    return BelievedCosts(costs=costs, origin=Origin.SCALED, source=source, spread=SIZED_SPREAD)


def _gap(one: Rates, other: Rates) -> float:
    return abs(math.log(one.tflops / other.tflops)) + abs(math.log(one.gb_per_s / other.gb_per_s))
