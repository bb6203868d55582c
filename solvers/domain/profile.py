"""What was measured (or simulated, or scaled) about a model on a GPU type: points over batch × SM share × clock ×
neighbours.

Owns the values and their provenance; interpolation and belief live in `solvers.models`.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import check_name, check_not_negative, check_positive, check_range, check_text, value
from solvers.errors import FieldError


class ProfileOrigin(StrEnum):
    """Where a point comes from."""

    MEASURED = "measured"
    PUBLIC = "public"
    SIMULATED = "simulated"
    SCALED = "scaled"


@value
class ProfilePoint:
    """One configuration and what it gave. Latency is that of executing one batch, without queueing or batch wait."""

    model: ModelName
    gpu_type: GpuTypeName
    batch: int
    share_pct_sm: int
    clock_mhz_sm: int
    latency_ms_mean: float
    latency_ms_p99: float | None = None
    memory_mib: float
    power_w: float | None = None
    """What the replica adds to the device's idle power while batches run back to back."""
    neighbours: tuple[ModelName, ...] = ()
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: str = "operator"

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("gpu_type", self.gpu_type)
        check_range("batch", self.batch, 1, 65536)
        check_range("share_pct_sm", self.share_pct_sm, 1, 100)
        check_positive("clock_mhz_sm", self.clock_mhz_sm)
        check_positive("latency_ms_mean", self.latency_ms_mean)
        check_positive("latency_ms_p99", self.latency_ms_p99)
        check_positive("memory_mib", self.memory_mib)
        check_not_negative("power_w", self.power_w)
        check_text("source", self.source)
        if self.latency_ms_p99 is not None and self.latency_ms_p99 < self.latency_ms_mean:
            raise FieldError("latency_ms_p99", "latency_ms_p99 must not be below latency_ms_mean")

    @property
    def throughput_rps(self) -> float:
        """Inputs per second when batches run back to back."""
        return 1000.0 * self.batch / self.latency_ms_mean


@value
class Profile:
    """All points of one model on one GPU type, ordered by (neighbours, clock, share, batch)."""

    model: ModelName
    gpu_type: GpuTypeName
    points: tuple[ProfilePoint, ...]

    def __post_init__(self) -> None:
        for point in self.points:
            if (point.model, point.gpu_type) != (self.model, self.gpu_type):
                raise FieldError("points", f"a point of {point.model} on {point.gpu_type} is in the wrong profile")
