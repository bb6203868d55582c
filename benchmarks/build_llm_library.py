"""Fits the step costs of LLMs that the built-in library ships (`app/library/llm.json`), and says how far off they are.

Owns the reading of three permissively licensed tables: Splitwise (MIT), Helix (Apache-2.0) and aiconfigurator
(Apache-2.0). Only configurations of models and GPU types that the library knows are kept.
Errors are those of a fifth of the measurements that a fit never saw. Run by `make library`, or
`python -m benchmarks.build_llm_library`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, pstdev

import numpy as np

from app.library import load_gpu_types, load_models
from benchmarks.build_library import TARGET
from benchmarks.sources.rows import data_folder, table
from benchmarks.token_fit import ServedSamples, StepFit, StepSamples, fit_served, fit_steps
from solvers.domain.codec import canonical_json
from solvers.errors import InputError
from solvers.models.serving.token_library import Efficiency, LlmEntry, LlmLibrary, Rates
from solvers.models.serving.tokens import StepCosts

VERSION = "1"
HELD_OUT = 5
"""Every fifth measurement judges the fit."""
SERVED_MIN = 12
ERROR_MAX_PCT = 50.0
"""Of the time between tokens: a worse fit is worse than what the size alone says, and is told instead of shipped."""
SPLITWISE_MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
SPLITWISE_GPUS = {"a100-80gb": "a100", "h100-80gb": "h100"}
HELIX_MODELS = {"llama1_30b": ("llama-30b", 60), "llama2_70b": ("llama-2-70b", 80)}
HELIX_GPUS = {
    "a100": ("a100-40gb", 1),
    "l4": ("l4", 1),
    "l4x2": ("l4", 2),
    "t4": ("t4", 1),
    "t4x2": ("t4", 2),
    "t4x4": ("t4", 4),
}
AIC_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
AIC_BITS = {"fp8": 8, "fp8_block": 8, "nvfp4": 4}
"""Of a weight, where a row names its format."""
AIC_GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200"}


def _steps(cells: Iterable[tuple[float, float, float]]) -> StepSamples:
    sequences, tokens, time = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
    return StepSamples(sequences=sequences, tokens_each=tokens, share_pct=np.full(len(time), 100.0), step_ms=time)


def _judged_steps(decode: list[tuple[float, float, float]], prefill: list[tuple[float, float, float]]) -> StepFit:
    """Fit on all cells; errors from a fit without every fifth of them."""
    kept = [[cell for index, cell in enumerate(cells) if index % HELD_OUT] for cells in (decode, prefill)]
    blind = fit_steps(_steps(kept[0]), _steps(kept[1])).costs
    errors = [
        [abs(told(blind, cell) / cell[2] - 1.0) for index, cell in enumerate(cells) if index % HELD_OUT == 0]
        for cells, told in ((decode, _told_decode), (prefill, _told_prefill))
    ]
    fit = fit_steps(_steps(decode), _steps(prefill))
    return replace(
        fit,
        decode_error_pct=100.0 * sum(errors[0]) / len(errors[0]),
        prefill_error_pct=100.0 * sum(errors[1]) / len(errors[1]),
    )


def _told_decode(costs: StepCosts, cell: tuple[float, float, float]) -> float:
    return costs.decode_ms(cell[0], cell[0] * cell[1])


def _told_prefill(costs: StepCosts, cell: tuple[float, float, float]) -> float:
    tokens = cell[0] * cell[1]
    return costs.prefill_fixed_ms + (costs.prefill_per_token_ms + costs.prefill_per_token_squared_ms * cell[1]) * tokens


def splitwise(data: Path) -> Iterator[LlmEntry]:
    """Prompt and token times by prompt length and batch; medians of the repeats."""
    groups: dict[tuple[str, str, int], dict[tuple[int, int], list[tuple[float, float, float]]]] = {}
    for row in table(data, "splitwise-llm-a100-h100", "perf_model.csv"):
        if row["hardware"] in SPLITWISE_GPUS and row["model"] in SPLITWISE_MODELS:
            key = (SPLITWISE_MODELS[row["model"]], SPLITWISE_GPUS[row["hardware"]], int(row["tensor_parallel"]))
            cell = (int(row["prompt_size"]), int(row["batch_size"]))
            times = (float(row["prompt_time"]), float(row["token_time"]), float(row["token_size"]))
            groups.setdefault(key, {}).setdefault(cell, []).append(times)
    for (model, gpu_type, gpus), cells in sorted(groups.items()):
        prefill = [
            (batch, prompt, median(time[0] for time in times)) for (prompt, batch), times in sorted(cells.items())
        ]
        decode = [
            (batch, prompt + times[0][2] / 2, median(time[1] for time in times))
            for (prompt, batch), times in sorted(cells.items())
        ]
        yield _entry((model, gpu_type, gpus), "unstated", _judged_steps(decode, prefill), _SPLITWISE)


def helix(data: Path) -> Iterator[LlmEntry]:
    """Time of one layer by tokens in the batch, times the layers."""
    groups: dict[tuple[str, str], dict[str, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in table(data, "helix-llama-hetero", "layer_times.csv"):
        if row["gpu"] in HELIX_GPUS and row["model"] in HELIX_MODELS and float(row["ms_per_layer"]) > 0:
            time = float(row["ms_per_layer"]) * HELIX_MODELS[row["model"]][1]
            tokens = float(row["batch_tokens"])
            cell = (tokens, 0.0, time) if row["phase"] == "decode" else (1.0, tokens, time)
            groups[row["model"], row["gpu"]][row["phase"]].append(cell)
    for (model, gpu), phases in sorted(groups.items()):
        key = (HELIX_MODELS[model][0], *HELIX_GPUS[gpu])
        yield _entry(key, "vllm kernels", _judged_steps(phases["decode"], phases["prompt"]), _HELIX)


def aiconfigurator(data: Path) -> Iterator[LlmEntry]:
    """What clients saw; of several versions of a runtime the one with most measurements."""
    groups: dict[tuple[str, str, int], dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for row in table(data, "aiconfigurator-silicon", "aggregated.csv"):
        # A blank means that attention is not divided, as 1 does.
        plain = row["pp_size"] == "1" and row["attention_dp_size"] in ("", "1")
        if plain and row["model_path"] in AIC_MODELS and row["system"] in AIC_GPUS:
            key = (AIC_MODELS[row["model_path"]], AIC_GPUS[row["system"]], int(row["tp_size"]))
            runtime = f"{row['backend']} {row['backend_version']} {row['gemm_quant_mode']}"
            names = ("batch_size", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")
            groups[key][runtime].append(tuple(float(row[name]) for name in names))
    for key, runtimes in sorted(groups.items()):
        runtime = max(sorted(runtimes), key=lambda name: len(runtimes[name]))
        cells = sorted(runtimes[runtime])
        if len(cells) >= SERVED_MIN:
            entry = _entry(key, runtime, _judged_served(cells), _AICONFIGURATOR)
            yield replace(entry, weight_bits=AIC_BITS.get(runtime.rpartition(" ")[2], entry.weight_bits))


def _served(cells: list[tuple[float, ...]]) -> ServedSamples:
    batch, prompt, answer, first, between = (np.array(column) for column in zip(*cells, strict=True))
    return ServedSamples(
        sequences=batch, in_tokens=prompt, out_tokens=answer, first_token_ms=first, inter_token_ms=between
    )


def _judged_served(cells: list[tuple[float, ...]]) -> StepFit:
    blind = fit_served(_served([cell for index, cell in enumerate(cells) if index % HELD_OUT])).costs
    errors = []
    for batch, prompt, answer, _, between in cells[::HELD_OUT]:
        told = blind.decode_ms(batch, batch * (prompt + answer / 2)) + batch / answer * blind.prefill_ms(prompt)
        errors.append(abs(told / between - 1.0))
    return replace(fit_served(_served(cells)), decode_error_pct=100.0 * sum(errors) / len(errors))


def _entry(key: tuple[str, str, int], runtime: str, fit: StepFit, origin: tuple[str, str]) -> LlmEntry:
    model, gpu_type, gpus = key
    return LlmEntry(
        model=model,
        gpu_type=gpu_type,
        gpus=gpus,
        runtime=runtime,
        costs=_rounded(fit.costs),
        decode_error_pct=round(fit.decode_error_pct, 2),
        prefill_error_pct=round(fit.prefill_error_pct, 2),
        samples=fit.samples,
        source=origin[0],
        licence=origin[1],
    )


def _rounded(costs: StepCosts) -> StepCosts:
    """Six digits say all that such fits know, and read the same on every machine."""
    numbers = {name: float(f"{getattr(costs, name):.6g}") for name in StepCosts.__dataclass_fields__}
    return StepCosts(**numbers)


_SPLITWISE = ("Splitwise (Patel et al., ISCA 2024), Mutinifni/splitwise-sim 8f99e7d", "MIT")
_HELIX = ("Helix (Mei et al., ASPLOS 2025), Thesys-lab/Helix-ASPLOS25 148b733", "Apache-2.0")
_AICONFIGURATOR = ("NVIDIA aiconfigurator silicon sample, ai-dynamo/aiconfigurator 095f58a", "Apache-2.0")


def efficiency(entries: list[LlmEntry]) -> Efficiency:
    """Medians over the entries of what they reach of their GPUs' data sheets."""
    models = {model.name: model for model in load_models()}
    gpu_types = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}
    reached: list[tuple[float, float, float]] = []
    for entry in entries:
        model = models[entry.model]
        rates = Rates.of(gpu_types[entry.gpu_type], entry.gpus, entry.narrower(model))
        ideal_ms = model.memory_mib_weights * 2**20 / 1e9 / rates.gb_per_s * 1000.0
        prompt_ms = 2.0 * model.parameters_million * 1e6 / (rates.tflops * 1e12) * 1000.0
        fixed = entry.costs.decode_fixed_ms
        if fixed > 0 and entry.costs.prefill_per_token_ms > 0:
            part = entry.costs.decode_per_sequence_ms / fixed
            reached.append((ideal_ms / fixed, prompt_ms / entry.costs.prefill_per_token_ms, part))
    return Efficiency(
        bandwidth=round(median(row[0] for row in reached), 4),
        compute=round(median(row[1] for row in reached), 4),
        prefill_fixed_ms=round(median(entry.costs.prefill_fixed_ms for entry in entries), 3),
        decode_per_sequence_part=round(median(row[2] for row in reached), 5),
        bandwidth_spread=round(pstdev(math.log(row[0]) for row in reached), 3),
        compute_spread=round(pstdev(math.log(row[1]) for row in reached), 3),
    )


def build(data: Path) -> LlmLibrary:
    """The library of LLMs from the folder of public measurements."""
    known = {model.name for model in load_models()}
    entries: dict[tuple[str, str, int], LlmEntry] = {}
    for entry in (*splitwise(data), *helix(data), *aiconfigurator(data)):
        key = (entry.model, entry.gpu_type, entry.gpus)
        if entry.decode_error_pct > ERROR_MAX_PCT:
            print(f"left out: {entry.model} on {entry.gpus} {entry.gpu_type}, {entry.decode_error_pct} % off")
        elif entry.model in known and (key not in entries or entry.decode_error_pct < entries[key].decode_error_pct):
            entries[key] = entry
    if not entries:
        raise InputError(f"there is no LLM measurement in {data}")
    kept = [entries[key] for key in sorted(entries)]
    return LlmLibrary(version=VERSION, efficiency=efficiency(kept), entries=tuple(kept))


def text(data: Path) -> str:
    """The file: one entry a line, so that differences can be read."""
    library = build(data)
    head = canonical_json(replace(library, entries=())).removesuffix("}")
    opening = head.replace('"entries":[],', '"entries":[\n')
    rest = opening.split('"entries":[\n')
    lines = ",\n".join(canonical_json(entry) for entry in library.entries)
    return f'{rest[0]}"entries":[\n{lines}\n],\n{rest[1]}}}\n'


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file anew."""
    argparse.ArgumentParser(prog="python -m benchmarks.build_llm_library", description=__doc__).parse_args(argv)
    try:
        made = text(data_folder())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    (TARGET / "llm.json").write_text(made, encoding="utf-8")
    print(f"llm.json: {len(made)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
