"""The terms of InSS' latency and queueing formulas, as plain functions.

Owns t_inf = t_d + t_c + t_f with t_c = t_s + t_r, each term by itself, and Eq. 2 of queueing. Symbols are those of the
paper: t_d, t_f transfer over PCIe; t_s launching of n kernels, each with its own overhead o_sch and the delay int that
neighbours add; t_r running, slowed by the L2 use l of the others; W the length of the queue with the task itself.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Floats


def transfer_ms(mib_per_input: Floats, batch: Floats, pcie_mib_per_ms: Floats) -> Floats:
    """t_d or t_f: a batch's data over the bandwidth of PCIe."""
    return mib_per_input * batch / pcie_mib_per_ms


def kernel_delay_ms(models: Floats, slope_ms: float, offset_ms: float) -> Floats:
    """int: what every launch waits longer with `models` on the device; nothing when alone."""
    return np.where(models <= 1, 0.0, slope_ms * models + offset_ms)


def launch_ms(overhead_ms: Floats, delay_ms: Floats, kernels: Floats) -> Floats:
    """t_s = (o_sch + int) n."""
    return (overhead_ms + delay_ms) * kernels


def run_ms(alone_ms: Floats, cache: Floats, others_l2: Floats) -> Floats:
    """t_r = o_r (1 + alpha_cache times the sum of the others' L2 use, as fractions)."""
    return alone_ms * (1.0 + cache * others_l2)


def task_latency_ms(
    queue: Floats, executing_ms: Floats, batch: Floats, inference_ms: Floats, rate_rps: Floats
) -> Floats:
    """Eq. 2: time from a task's arrival to its answer. `queue` counts the task itself; `executing_ms` is what the batch
    now running still needs. A full batch waits for it and for the batches before; a batch that is not yet full waits
    for the tasks that it lacks, or for the device, whichever takes longer.
    """
    full = executing_ms + np.ceil(queue / batch) * inference_ms
    filling = 1000.0 * np.maximum(batch - queue, 0.0) / rate_rps
    return np.where(queue >= batch, full, np.maximum(executing_ms, filling) + inference_ms)
