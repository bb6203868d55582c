"""NVIDIA DeepLearningExamples: published inference tables of T4, V100, A30 and A100, whole GPUs.

Licences by directory: Apache-2.0, BSD-3 or MIT. Read are Triton's offline tables (one client, so no queueing) and
those tables of classification networks in which every batch occurs once; where several variants stand below one
heading, the source does not say which row is which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sources.rows import (
    A30,
    A100_40GB,
    A100_80GB,
    T4,
    V100,
    MeasuredCell,
    name_of,
    number,
    samples_of,
    table,
)
from solvers.models.base import Samples

FOLDER = "nvidia-dle-inference"
GPU_TYPES = {"V100": V100, "T4": T4, "A30": A30, "A100": A100_80GB}
AVERAGE = {
    "Latency Avg": "latency", "Avg latency (ms) - mixed precision": "latency", "Latency Avg (ms)": "latency",
    "Latency 99%": "p99", "99% latency (ms) - mixed precision": "p99", "Latency 99% (ms)": "p99",
}  # fmt: skip


def read(data: Path) -> Samples:
    """Latency (mean and p99) by model with backend and precision, GPU type and batch."""
    return samples_of([*_triton(data), *_frameworks(data)])


def _triton(data: Path) -> Iterator[MeasuredCell]:
    for row in table(data, FOLDER, "triton_latency.csv"):
        if row["mode"] != "offline" or number(row["concurrency"]) > 1:
            continue
        parts = [part for part in row["model_dir"].split("/")[2:] if part != "triton"]
        backend = row["backend_precision"].replace("NVIDIA TensorRT", "trt").replace("ONNX Runtime", "onnx")
        backend = backend.replace("Backend accelerator TensorRT", "trt").replace(" with ", "-").replace("Dataset: ", "")
        yield MeasuredCell(
            model=name_of("-".join([*parts, backend])),
            gpu_type=GPU_TYPES[row["gpu"]],
            batch=number(row["batch"]),
            latency_ms=number(row["avg_ms"]),
            latency_ms_p99=number(row["p99_ms"]),
        )


def _frameworks(data: Path) -> Iterator[MeasuredCell]:
    found: dict[tuple[str, str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in table(data, FOLDER, "framework_latency_long.csv"):
        column = AVERAGE.get(row["metric"])
        if "/Classification/" not in row["model_dir"] or column is None or row["gpu"] not in GPU_TYPES:
            continue
        headings = row["section"].split(" > ")
        model, gpu_type = _model(row["model_dir"], headings), _gpu_type(row["gpu"], headings)
        found[(model, gpu_type, number(row["batch"]))][column].append(number(row["value"]))
    ambiguous = {(model, gpu) for (model, gpu, _), columns in found.items() if max(map(len, columns.values())) > 1}
    for (model, gpu_type, batch), columns in found.items():
        if (model, gpu_type) not in ambiguous and columns["latency"]:
            p99 = columns["p99"][0] if columns["p99"] else float("nan")
            yield MeasuredCell(
                model=model, gpu_type=gpu_type, batch=batch, latency_ms=columns["latency"][0], latency_ms_p99=p99
            )


def _model(folder: str, headings: list[str]) -> str:
    framework, *_, network = folder.split("/")
    variant = next((part.rsplit(" ", 1)[-1] for part in headings if "results for EfficientNet" in part), "")
    precision = "fp32" if "FP32" in headings[-1] else "tf32" if "TF32" in headings[-1] else "amp"
    return name_of("-".join(part for part in (network, variant, framework, precision) if part))


def _gpu_type(gpu: str, headings: list[str]) -> str:
    if gpu == "A100" and any("A100 40GB" in heading for heading in headings[-2:]):
        return A100_40GB
    return GPU_TYPES[gpu]
