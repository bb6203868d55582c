"""What only simulated worlds ask of the hardware's truth: when the answer to a batch is there, and slices as devices.

The rest, which simulated nodes of the product ask as well, is in `solvers.sim.truth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solvers.sim.truth.catalogue import GpuTruth, model_on
from solvers.sim.truth.truth import Resident


def answer_shift_ms(gpu: GpuTruth, resident: Resident, neighbours: Sequence[Resident] = ()) -> float:
    """Milliseconds by which a full batch is answered later (or earlier: below 0) than `execution_ms`, which is its
    cycle, for a process that always has the next batch waiting.

    Its inputs are copied while the batch before executes: that is part of its answer's time, but not of the cycle.
    Copies of all processes begin together and share one PCIe link evenly. The host's work between two batches is part
    of the cycle, but not of any answer's time.
    """
    mine_ms = _copy_ms(gpu, resident)
    met_ms = sum(each.busy * min(mine_ms, _copy_ms(gpu, each)) for each in neighbours)
    return mine_ms + met_ms - model_on(gpu, resident.model).gap_ms_per_input * resident.batch


def _copy_ms(gpu: GpuTruth, resident: Resident) -> float:
    if resident.training:
        return 0.0
    per_input_ms = model_on(gpu, resident.model).copy_ms_per_input
    return per_input_ms * resident.batch * 16.0 / gpu.pcie_bandwidth_gb_per_s


def mig_truth(gpu: GpuTruth, sm_count: int, memory_mib: int) -> GpuTruth:
    """A MIG slice as a device of its own: SMs as given, bandwidth in proportion to memory, power in proportion to SMs.
    Slices share no SMs, caches or DRAM banks, so they do not disturb each other; they do share clock and PCIe.
    """
    part = sm_count / gpu.sm_count
    return replace(
        gpu,
        name=f"{gpu.name}:{sm_count}sm",
        sm_count=sm_count,
        memory_mib=memory_mib,
        memory_bandwidth_gb_per_s=gpu.memory_bandwidth_gb_per_s * memory_mib / gpu.memory_mib,
        idle_w=gpu.idle_w * part,
        context_w=gpu.context_w * part,
        tdp_w=gpu.tdp_w * part,
        power_limit_w_min=gpu.power_limit_w_min * part,
        like=gpu.like or gpu.name,
    )
