"""A measuring bench for simulated GPUs: one replica alone on a device at its default clock, batches back to back.

Owns the conditions of a measurement. It refuses to average: the caller gets every single time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.errors import ConfigError
from solvers.sim.truth.truth import Resident, clock_reached_mhz, dynamic_power_w, execution_ms, gpu_truth, memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReading:
    """What was seen. The clock is the one asked for: a default clock that the power limit holds down stays the
    default.
    """

    times_ms: tuple[float, ...]
    clock_mhz_sm: int
    memory_mib: float
    power_w_dynamic: float


def measure(model: str, gpu_type: str, share_pct_sm: int, batch: int, noises: Sequence[float]) -> BenchReading:
    """One execution for each of `noises` (standard normal numbers)."""
    gpu = gpu_truth(gpu_type)
    if gpu is None:
        raise ConfigError(f"no simulated GPU type {gpu_type!r}")
    alone = Resident(model=model, share_pct_sm=share_pct_sm, batch=batch)
    clock_mhz = clock_reached_mhz(gpu, [alone], gpu.clock_mhz_sm_max, gpu.tdp_w)
    return BenchReading(
        times_ms=tuple(execution_ms(gpu, alone, clock_mhz, (), noise) for noise in noises),
        clock_mhz_sm=gpu.clock_mhz_sm_max,
        memory_mib=memory_mib(model, batch),
        power_w_dynamic=dynamic_power_w(gpu, alone, clock_mhz),
    )
