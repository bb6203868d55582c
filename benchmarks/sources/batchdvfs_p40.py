"""BatchDVFS: CNNs on a Tesla P40 over batch and SM clock, medians of control steps. No licence stated.

Throughput includes decoding JPEG files, so light models are bound by their input; medians of fewer than five steps are
left out, because the first steps of a run contain warm-up. Jobs 1 to 15 read ImageNet and 16 to 30 Caltech-256, which
makes them different models (`inceptionv1.caltech`).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.sources.rows import IDLE_W, P40, MeasuredCell, name_of, number, samples_of, table
from solvers.models.base import Samples

FOLDER = "batchdvfs-p40"
STEPS_MIN = 5
LAST_IMAGENET_JOB = 15


def read(data: Path) -> Samples:
    """Latency, throughput and power by model, batch and clock; the whole GPU."""
    return samples_of(
        MeasuredCell(
            model=name_of(row["model"]) + (".caltech" if int(row["job"]) > LAST_IMAGENET_JOB else ""),
            gpu_type=P40,
            batch=number(row["batch"]),
            clock_mhz=number(row["sm_clock_mhz"]),
            latency_ms=1000.0 * number(row["batch"]) / number(row["median_throughput_img_s"]),
            throughput_rps=number(row["median_throughput_img_s"]),
            power_w=number(row["median_power_w"]) - IDLE_W[P40],
        )
        for row in table(data, FOLDER, "by_batch_clock.csv")
        if int(row["n"]) >= STEPS_MIN
    )
