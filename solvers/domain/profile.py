"""What was measured (or simulated, or scaled) about a model on a GPU type: points over batch × SM share × clock ×
neighbours, pairs of models measured side by side, and steps of LLMs token by token. Interpolation, belief and how
latencies follow from steps are in `solvers.models`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import NAME, NOT_NEGATIVE, POSITIVE, TEXT, check_range, rising, value, within
from solvers.errors import FieldError

BATCH_MAX = 1_048_576
SHARE_PCT_MIN = 0.01
CLOCK_MHZ_MIN, CLOCK_MHZ_MAX = 1.0, 100_000.0
LATENCY_MS_MIN, LATENCY_MS_MAX = 1e-6, 1e9
THROUGHPUT_RPS_MIN, THROUGHPUT_RPS_MAX = 1e-9, 1e12
POWER_W_MAX = 1e6
MEMORY_MIB_MIN, MEMORY_MIB_MAX = 1e-3, 1e9
CELLS_MAX = 100_000
"""Measurements beyond these are slips of the pen: no GPU gives them, and arithmetic about them overflows."""


class ProfileOrigin(StrEnum):
    """Where a point comes from."""

    MEASURED = "measured"
    FITTED = "fitted"
    """Predicted from measurements of this model on this GPU type."""
    PUBLIC = "public"
    """Measured by others, or predicted from what they measured."""
    SIMULATED = "simulated"
    SCALED = "scaled"
    """Predicted from another GPU type, the model's family or its size."""

    @property
    def is_believed(self) -> bool:
        """Whether nobody ran this model on this GPU type here to know it."""
        return self not in (ProfileOrigin.MEASURED, ProfileOrigin.SIMULATED)


@value
class ProfilePoint:
    """One configuration and what it gave. Latency is that of executing one batch, without queueing or batch wait."""

    model: Annotated[ModelName, NAME]
    gpu_type: Annotated[GpuTypeName, NAME]
    batch: Annotated[int, within(1, BATCH_MAX)]
    share_pct_sm: Annotated[int, within(1, 100)]
    clock_mhz_sm: Annotated[int, within(CLOCK_MHZ_MIN, CLOCK_MHZ_MAX)]
    latency_ms_mean: Annotated[float, within(LATENCY_MS_MIN, LATENCY_MS_MAX)]
    latency_ms_p99: Annotated[float | None, within(LATENCY_MS_MIN, LATENCY_MS_MAX)] = None
    memory_mib: Annotated[float | None, within(MEMORY_MIB_MIN, MEMORY_MIB_MAX)] = None
    """None: not measured. Planning needs it, so what it takes then is believed."""
    power_w: Annotated[float | None, within(0, POWER_W_MAX)] = None
    """What the replica adds to the device's idle power while batches run back to back."""
    throughput_rps: Annotated[float | None, within(THROUGHPUT_RPS_MIN, THROUGHPUT_RPS_MAX)] = None
    """Inputs per second while batches run back to back; None: as the latency says."""
    l2_util_pct: Annotated[float | None, within(0, 100)] = None
    dram_util_pct: Annotated[float | None, within(0, 100)] = None
    neighbours: tuple[ModelName, ...] = ()
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: Annotated[str, TEXT] = "operator"

    def __post_init__(self) -> None:
        if self.latency_ms_p99 is not None and self.latency_ms_p99 < self.latency_ms_mean:
            raise FieldError("latency_ms_p99", "latency_ms_p99 must not be below latency_ms_mean")


@value
class ProfileGrid:
    """A whole table of solo points in compact form: one value for every clock x share x batch, in this nesting, batch
    running fastest; latency 0 where a configuration cannot run. For tables too large to be listed point by point.
    """

    clocks_mhz_sm: Annotated[tuple[int, ...], rising()]
    shares_pct_sm: Annotated[tuple[int, ...], rising(100)]
    batches: Annotated[tuple[int, ...], rising(BATCH_MAX)]
    latency_ms: tuple[float, ...]
    latency_ms_p99: tuple[float, ...] = ()
    """Empty: as the mean."""
    power_w: tuple[float, ...] = ()
    """What a replica adds to the device's idle power while batches run back to back; empty: not known."""
    memory_mib: tuple[float, ...]
    """By batch."""
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: Annotated[str, TEXT] = "operator"

    def __post_init__(self) -> None:
        cells = len(self.clocks_mhz_sm) * len(self.shares_pct_sm) * len(self.batches)
        check_range("cells", cells, 1, CELLS_MAX)
        sizes = (
            ("latency_ms", cells),
            ("latency_ms_p99", cells),
            ("power_w", cells),
            ("memory_mib", len(self.batches)),
        )
        for field, size in sizes:
            numbers: tuple[float, ...] = getattr(self, field)
            if field in ("latency_ms_p99", "power_w") and not numbers:
                continue
            if len(numbers) != size:
                raise FieldError(field, f"{field} must list {size} values, not {len(numbers)}")
            if not (min(numbers) >= 0 and max(numbers) <= LATENCY_MS_MAX):
                raise FieldError(field, f"{field} must list numbers from 0 to {LATENCY_MS_MAX:g}")
            if field.startswith("latency") and any(0 < number < LATENCY_MS_MIN for number in numbers):
                raise FieldError(field, f"{field} must list 0 or at least {LATENCY_MS_MIN:g} ms")
        if self.latency_ms_p99 and any(
            tail < mean for tail, mean in zip(self.latency_ms_p99, self.latency_ms, strict=True)
        ):
            raise FieldError("latency_ms_p99", "latency_ms_p99 must not be below latency_ms")
        if min(self.memory_mib) <= 0:
            raise FieldError("memory_mib", "memory_mib must be positive")


@value
class Interference:
    """How a model presses on what replicas of one GPU share, and how it suffers from the others' pressure.

    A replica at share p presses with pressure * (p/100)^exponent; beside neighbours its executions take
    1 + sensitivity * (sum of the neighbours' pressures) times as long as alone.
    """

    pressure: Annotated[float, within(0, 100)]
    exponent: Annotated[float, within(0, 4)] = 0.5
    sensitivity: Annotated[float, within(0, 100)]
    origin: ProfileOrigin = ProfileOrigin.MEASURED

    def pressure_at(self, share_pct_of_gpu: float) -> float:
        """Pressure of a replica with so much of a whole GPU's SMs."""
        return float(self.pressure * (share_pct_of_gpu / 100) ** self.exponent)


@value
class Profile:
    """All points of one model on one GPU type, ordered by (neighbours, clock, share, batch), or the same as a grid.
    Without `interference` the policy's `interference_margin` stands for neighbours. `unlimited` is the same for devices
    in time slices, where nobody's share keeps others off its SMs; it does not follow from the other.
    """

    model: ModelName
    gpu_type: GpuTypeName
    points: tuple[ProfilePoint, ...] = ()
    grid: ProfileGrid | None = None
    interference: Interference | None = None
    unlimited: Interference | None = None

    def __post_init__(self) -> None:
        if self.points and self.grid is not None:
            raise FieldError("grid", "a profile lists points or a grid, not both")
        for point in self.points:
            if (point.model, point.gpu_type) != (self.model, self.gpu_type):
                raise FieldError("points", f"a point of {point.model} on {point.gpu_type} is in the wrong profile")

    def pressing(self, unlimited: bool) -> Interference | None:
        """How the model presses and suffers, with limits on shares or without."""
        return self.unlimited if unlimited else self.interference


@value
class PairPoint:
    """Two replicas side by side on one GPU at its highest clock; how long a batch took each, None: not measured."""

    gpu_type: Annotated[GpuTypeName, NAME]
    model_a: Annotated[ModelName, NAME]
    batch_a: Annotated[int, within(1, BATCH_MAX)]
    share_pct_a: Annotated[float, within(SHARE_PCT_MIN, 100)]
    model_b: Annotated[ModelName, NAME]
    batch_b: Annotated[int, within(1, BATCH_MAX)]
    share_pct_b: Annotated[float, within(SHARE_PCT_MIN, 100)]
    latency_ms_a: Annotated[float | None, within(LATENCY_MS_MIN, LATENCY_MS_MAX)] = None
    latency_ms_b: Annotated[float | None, within(LATENCY_MS_MIN, LATENCY_MS_MAX)] = None
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: Annotated[str, TEXT] = "operator"

    def __post_init__(self) -> None:
        if self.latency_ms_a is None and self.latency_ms_b is None:
            raise FieldError("latency_ms_a", "one of the two latencies must be there")

    def in_order(self) -> PairPoint:
        """The same with its members in rising order of (model, batch, share)."""
        first = (self.model_a, self.batch_a, self.share_pct_a)
        if first <= (self.model_b, self.batch_b, self.share_pct_b):
            return self
        return replace(
            self,
            model_a=self.model_b,
            batch_a=self.batch_b,
            share_pct_a=self.share_pct_b,
            latency_ms_a=self.latency_ms_b,
            model_b=self.model_a,
            batch_b=self.batch_a,
            share_pct_b=self.share_pct_a,
            latency_ms_b=self.latency_ms_a,
        )


# --- LLMs token by token
#
# Times are of one replica that has a whole GPU; nothing is said of parts of a GPU or of groups of them.

TOKENS_MAX = 10_000_000
STEP_MS_MAX = 1e7
SEQUENCES_MAX = 65536


@value
class TokenLengths:
    """How long requests are: tokens of the prompt and of the answer. `input_tokens_p99` says how long the longest two
    in a hundred prompts are; None: all prompts are alike.
    """

    input_tokens_mean: Annotated[float, within(1, TOKENS_MAX)]
    output_tokens_mean: Annotated[float, within(1, TOKENS_MAX)]
    input_tokens_p99: Annotated[float | None, within(1, TOKENS_MAX)] = None

    def __post_init__(self) -> None:
        if self.input_tokens_p99 is not None and self.input_tokens_p99 < self.input_tokens_mean:
            raise FieldError("input_tokens_p99", "input_tokens_p99 must not be below input_tokens_mean")


@value
class TokenProfile:
    """Steps of one model on a whole GPU of one type. A decode step gives one token to each of B sequences that have
    cached C tokens together and takes fixed + per_sequence * B + per_token * C; a prefill of T prompt tokens takes
    fixed + per_token * T + per_token_squared * T * T.
    """

    model: Annotated[ModelName, NAME]
    gpu_type: Annotated[GpuTypeName, NAME]
    decode_fixed_ms: Annotated[float, NOT_NEGATIVE, within(0, STEP_MS_MAX)]
    decode_per_sequence_ms: Annotated[float, NOT_NEGATIVE, within(0, STEP_MS_MAX)]
    decode_per_token_ms: Annotated[float, NOT_NEGATIVE, within(0, STEP_MS_MAX)]
    prefill_fixed_ms: Annotated[float, NOT_NEGATIVE, within(0, STEP_MS_MAX)]
    prefill_per_token_ms: Annotated[float, NOT_NEGATIVE, within(0, STEP_MS_MAX)]
    prefill_per_token_squared_ms: Annotated[float, NOT_NEGATIVE, within(0, STEP_MS_MAX)] = 0.0
    memory_mib_weights: Annotated[float, POSITIVE]
    kv_cache_mib_per_token: Annotated[float, POSITIVE]
    sequences_max: Annotated[int | None, within(1, SEQUENCES_MAX)] = None
    """The most that its server runs at once; None: no bound of its own."""
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: Annotated[str, TEXT] = "operator"

    def __post_init__(self) -> None:
        if self.decode_fixed_ms <= 0:
            raise FieldError("decode_fixed_ms", "decode_fixed_ms must be positive")
