"""What was measured (or simulated, or scaled) about a model on a GPU type: points over batch × SM share × clock ×
neighbours, pairs of models measured side by side, and steps of LLMs token by token. Interpolation, belief and how
latencies follow from steps are in `solvers.models`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import check_name, check_not_negative, check_positive, check_range, check_text, value
from solvers.errors import FieldError

BATCH_MAX = 65536
SHARE_PCT_MIN = 0.01
CLOCK_MHZ_MIN, CLOCK_MHZ_MAX = 1.0, 100_000.0
LATENCY_MS_MIN, LATENCY_MS_MAX = 1e-6, 1e9
THROUGHPUT_RPS_MIN, THROUGHPUT_RPS_MAX = 1e-9, 1e12
POWER_W_MAX = 1e6
MEMORY_MIB_MIN, MEMORY_MIB_MAX = 1e-3, 1e9
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

    model: ModelName
    gpu_type: GpuTypeName
    batch: int
    share_pct_sm: int
    clock_mhz_sm: int
    latency_ms_mean: float
    latency_ms_p99: float | None = None
    memory_mib: float | None = None
    """None: not measured. Planning needs it, so what it takes then is believed."""
    power_w: float | None = None
    """What the replica adds to the device's idle power while batches run back to back."""
    throughput_rps: float | None = None
    """Inputs per second while batches run back to back; None: as the latency says."""
    l2_util_pct: float | None = None
    dram_util_pct: float | None = None
    neighbours: tuple[ModelName, ...] = ()
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: str = "operator"

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("gpu_type", self.gpu_type)
        check_range("batch", self.batch, 1, BATCH_MAX)
        check_range("share_pct_sm", self.share_pct_sm, 1, 100)
        check_range("clock_mhz_sm", self.clock_mhz_sm, CLOCK_MHZ_MIN, CLOCK_MHZ_MAX)
        check_range("latency_ms_mean", self.latency_ms_mean, LATENCY_MS_MIN, LATENCY_MS_MAX)
        check_range("latency_ms_p99", self.latency_ms_p99, LATENCY_MS_MIN, LATENCY_MS_MAX)
        check_range("memory_mib", self.memory_mib, MEMORY_MIB_MIN, MEMORY_MIB_MAX)
        check_range("power_w", self.power_w, 0, POWER_W_MAX)
        check_range("throughput_rps", self.throughput_rps, THROUGHPUT_RPS_MIN, THROUGHPUT_RPS_MAX)
        check_range("l2_util_pct", self.l2_util_pct, 0, 100)
        check_range("dram_util_pct", self.dram_util_pct, 0, 100)
        check_text("source", self.source)
        if self.latency_ms_p99 is not None and self.latency_ms_p99 < self.latency_ms_mean:
            raise FieldError("latency_ms_p99", "latency_ms_p99 must not be below latency_ms_mean")


@value
class ProfileGrid:
    """A whole table of solo points in compact form: one value for every clock x share x batch, in this nesting, batch
    running fastest; latency 0 where a configuration cannot run. For tables too large to be listed point by point.
    """

    clocks_mhz_sm: tuple[int, ...]
    shares_pct_sm: tuple[int, ...]
    batches: tuple[int, ...]
    latency_ms: tuple[float, ...]
    latency_ms_p99: tuple[float, ...] = ()
    """Empty: as the mean."""
    power_w: tuple[float, ...] = ()
    """What a replica adds to the device's idle power while batches run back to back; empty: not known."""
    memory_mib: tuple[float, ...]
    """By batch."""
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: str = "operator"

    def __post_init__(self) -> None:
        axes = (
            ("clocks_mhz_sm", self.clocks_mhz_sm),
            ("shares_pct_sm", self.shares_pct_sm),
            ("batches", self.batches),
        )
        for field, axis in axes:
            if not axis or list(axis) != sorted(set(axis)) or axis[0] < 1:
                raise FieldError(field, f"{field} must list rising whole numbers from 1")
        check_range("shares_pct_sm", self.shares_pct_sm[-1], 1, 100)
        check_range("batches", self.batches[-1], 1, BATCH_MAX)
        cells = len(self.clocks_mhz_sm) * len(self.shares_pct_sm) * len(self.batches)
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
        if self.latency_ms_p99 and any(
            tail < mean for tail, mean in zip(self.latency_ms_p99, self.latency_ms, strict=True)
        ):
            raise FieldError("latency_ms_p99", "latency_ms_p99 must not be below latency_ms")
        if min(self.memory_mib) <= 0:
            raise FieldError("memory_mib", "memory_mib must be positive")
        check_text("source", self.source)


@value
class Interference:
    """How a model presses on what replicas of one GPU share, and how it suffers from the others' pressure.

    A replica at share p presses with pressure * (p/100)^exponent; beside neighbours its executions take
    1 + sensitivity * (sum of the neighbours' pressures) times as long as alone.
    """

    pressure: float
    exponent: float = 0.5
    sensitivity: float
    origin: ProfileOrigin = ProfileOrigin.MEASURED

    def __post_init__(self) -> None:
        check_range("pressure", self.pressure, 0, 100)
        check_range("exponent", self.exponent, 0, 4)
        check_range("sensitivity", self.sensitivity, 0, 100)

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

    gpu_type: GpuTypeName
    model_a: ModelName
    batch_a: int
    share_pct_a: float
    model_b: ModelName
    batch_b: int
    share_pct_b: float
    latency_ms_a: float | None = None
    latency_ms_b: float | None = None
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: str = "operator"

    def __post_init__(self) -> None:
        check_name("gpu_type", self.gpu_type)
        for side in "ab":
            check_name(f"model_{side}", getattr(self, f"model_{side}"))
            check_range(f"batch_{side}", getattr(self, f"batch_{side}"), 1, BATCH_MAX)
            check_range(f"share_pct_{side}", getattr(self, f"share_pct_{side}"), SHARE_PCT_MIN, 100)
            check_range(f"latency_ms_{side}", getattr(self, f"latency_ms_{side}"), LATENCY_MS_MIN, LATENCY_MS_MAX)
        check_text("source", self.source)
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

    input_tokens_mean: float
    output_tokens_mean: float
    input_tokens_p99: float | None = None

    def __post_init__(self) -> None:
        check_range("input_tokens_mean", self.input_tokens_mean, 1, TOKENS_MAX)
        check_range("output_tokens_mean", self.output_tokens_mean, 1, TOKENS_MAX)
        check_range("input_tokens_p99", self.input_tokens_p99, 1, TOKENS_MAX)
        if self.input_tokens_p99 is not None and self.input_tokens_p99 < self.input_tokens_mean:
            raise FieldError("input_tokens_p99", "input_tokens_p99 must not be below input_tokens_mean")


@value
class TokenProfile:
    """Steps of one model on a whole GPU of one type. A decode step gives one token to each of B sequences that have
    cached C tokens together and takes fixed + per_sequence * B + per_token * C; a prefill of T prompt tokens takes
    fixed + per_token * T + per_token_squared * T * T.
    """

    model: ModelName
    gpu_type: GpuTypeName
    decode_fixed_ms: float
    decode_per_sequence_ms: float
    decode_per_token_ms: float
    prefill_fixed_ms: float
    prefill_per_token_ms: float
    prefill_per_token_squared_ms: float = 0.0
    memory_mib_weights: float
    kv_cache_mib_per_token: float
    sequences_max: int | None = None
    """The most that its server runs at once; None: no bound of its own."""
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: str = "operator"

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("gpu_type", self.gpu_type)
        for field in (
            "decode_fixed_ms", "decode_per_sequence_ms", "decode_per_token_ms", "prefill_fixed_ms",
            "prefill_per_token_ms", "prefill_per_token_squared_ms",
        ):  # fmt: skip
            check_not_negative(field, getattr(self, field))
            check_range(field, getattr(self, field), 0, STEP_MS_MAX)
        check_positive("memory_mib_weights", self.memory_mib_weights)
        check_positive("kv_cache_mib_per_token", self.kv_cache_mib_per_token)
        check_range("sequences_max", self.sequences_max, 1, SEQUENCES_MAX)
        check_text("source", self.source)
        if self.decode_fixed_ms <= 0:
            raise FieldError("decode_fixed_ms", "decode_fixed_ms must be positive")
