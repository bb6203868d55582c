"""How parameters of a shape move from one GPU type to another, and how sure that is.

Exponents and spreads fit networks measured with the same software on T4, V100, A30 and A100 (`benchmarks/transfer.py`
prints how well).
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.models.belief import shape

_WORK_GAIN = (0.45, 0.5)
"""How a time falls with the GPU's rate of arithmetic and with its memory bandwidth."""
_WEIGHTS_GAIN = (0.0, 0.9)
_HOST_GAIN = (0.15, 0.1)
"""Newer GPUs stand in newer hosts; that is all a host's time has to do with them."""
_INPUT_GAIN = 0.8


def covariance(common: float, single: tuple[float, ...] = (0.0,) * shape.COUNT) -> Floats:
    """Of parameters whose times all err together by `common`, and each by its own; on the learned scale."""
    times = np.zeros(shape.COUNT)
    times[shape.TIMES] = 1.0
    return np.diag(np.square(single)) + common**2 * np.outer(times, times)


_SPREAD = covariance(0.12, (0.22, 0.22, 0.27, 0.14, 0.22, 0.2, 0.2, 0.15, 0.1, 0.1))
_SPREAD_PER_DISTANCE = 0.1


def _rates(gpu_type: GpuType) -> Floats:
    # Precision is not known here, so the rates of ordinary and of tensor cores count alike.
    matrix = max(gpu_type.fp16_tflops, gpu_type.tf32_tflops or 0.0, gpu_type.fp32_tflops)
    return np.log([np.sqrt(gpu_type.fp32_tflops * matrix), gpu_type.memory_bandwidth_gb_per_s])


def shift(of: GpuType, to: GpuType) -> Floats:
    """What to add to parameters on the learned scale when a model moves."""
    gain = _rates(to) - _rates(of)
    found = np.zeros(shape.COUNT)
    found[0:2] = -gain @ np.array(_HOST_GAIN)
    found[2] = -_INPUT_GAIN * np.log(to.pcie_bandwidth_gb_per_s / of.pcie_bandwidth_gb_per_s)
    found[shape.WORK] = -gain @ np.array(_WORK_GAIN)
    found[shape.WEIGHTS] = -gain @ np.array(_WEIGHTS_GAIN)
    found[shape.FILL] = -np.log(to.sm_count / of.sm_count)
    return found


def spread(of: GpuType, to: GpuType) -> Floats:
    """Covariance that moving adds: none to itself, more between products that have little in common."""
    if of.name == to.name:
        return np.zeros((shape.COUNT, shape.COUNT))
    apart = float(np.linalg.norm(_rates(to) - _rates(of)))
    return _SPREAD + covariance(_SPREAD_PER_DISTANCE * apart)
