"""What one replica of an LLM service may be given on a whole GPU, by how many sequences it runs at once.

A token profile is read for planning as memory for the weights, a reserve and the cache of so many sequences at full
length, and the highest rate at which the time to the first token and the time between tokens both keep their limits at
the promise's percentile, at no more than `utilisation_max` of what the replica could sustain. Sequences come from a
short ladder, so that all services share one axis. Only whole GPUs at their highest clock count, because that is what
token profiles speak of: nothing of a replica's GPU is left to others.

Planning reads this in the terms of `options` and `appraisal`: a grid of one row, the whole device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.plan import Assignment
from solvers.domain.policy import Policy
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.models.serving.tokens import (
    RESERVE_MIB,
    LengthBucket,
    StepCosts,
    TokenLatency,
    TokenMix,
    rate_rps_max,
    token_latency,
)
from solvers.models.table import Grid, JudgedGrid
from solvers.problems.fleet import DeviceClass
from solvers.problems.needs import Need, TokenNeed
from solvers.problems.promise import PERCENTILE_MAX, UTILISATION_MIN, PromiseOutcome

SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sequences at once that are looked at."""
MEMORY_STEP_MIB = 64
LONG_PART = 0.02
"""Of all prompts are as long as the 99th percentile, where it is told."""
_HALVINGS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPromise:
    """What must be kept."""

    lengths: TokenLengths
    first_token_ms: float
    inter_token_ms: float
    percentile: float
    utilisation_max: float

    @staticmethod
    def of(need: Need, wish: TokenNeed, utilisation_max: float) -> TokenPromise:
        """Of a need whose limit is that of the first token."""
        return TokenPromise(
            lengths=wish.lengths,
            first_token_ms=math.inf if need.limit_ms is None else need.limit_ms,
            inter_token_ms=wish.inter_token_ms,
            percentile=min(need.percentile, PERCENTILE_MAX),
            utilisation_max=utilisation_max,
        )

    def told(self, profile: TokenProfile, sequences: int, rate_rps: float) -> TokenLatency:
        return token_latency(costs_of(profile), mix_of(self.lengths), rate_rps, sequences, self.percentile)

    def kept_by(self, latency: TokenLatency) -> bool:
        return latency.first_token_ms_tail <= self.first_token_ms and latency.inter_token_ms_tail <= self.inter_token_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenServing:
    """A replica that runs at most so many sequences at once. Rate 0: it cannot keep its promise; the latencies are then
    those at hardly any load.
    """

    sequences: int
    rate_rps: float
    first_token_ms: float
    inter_token_ms: float
    memory_mib: int


def choices(profile: TokenProfile, promise: TokenPromise) -> tuple[TokenServing, ...]:
    """Every number of sequences that is looked at, whatever memory there is."""
    most = SEQUENCES[-1] if profile.sequences_max is None else profile.sequences_max
    return tuple(serving(profile, promise, sequences) for sequences in SEQUENCES if sequences <= most)


@lru_cache(maxsize=65536)
def serving(profile: TokenProfile, promise: TokenPromise, sequences: int) -> TokenServing:
    costs, mix = costs_of(profile), mix_of(promise.lengths)
    capacity = rate_rps_max(costs, mix, sequences)

    def told(utilisation: float) -> TokenLatency:
        return token_latency(costs, mix, utilisation * capacity, sequences, promise.percentile)

    low, high = UTILISATION_MIN, promise.utilisation_max
    latency = told(high)
    if promise.kept_by(latency):
        low = high
    else:
        latency = told(low)
        if not promise.kept_by(latency):
            low = high = 0.0
        for _ in range(_HALVINGS if high > low else 0):
            middle = (low + high) / 2
            at_middle = told(middle)
            if promise.kept_by(at_middle):
                low, latency = middle, at_middle
            else:
                high = middle
    return TokenServing(
        sequences=sequences,
        rate_rps=low * capacity,
        first_token_ms=latency.first_token_ms_tail,
        inter_token_ms=latency.inter_token_ms_tail,
        memory_mib=memory_mib(profile, promise.lengths, sequences),
    )


def costs_of(profile: TokenProfile) -> StepCosts:
    """On a whole GPU."""
    return StepCosts(
        decode_fixed_ms=profile.decode_fixed_ms,
        decode_per_sequence_ms=profile.decode_per_sequence_ms,
        decode_per_token_ms=profile.decode_per_token_ms,
        prefill_fixed_ms=profile.prefill_fixed_ms,
        prefill_per_token_ms=profile.prefill_per_token_ms,
        prefill_per_token_squared_ms=profile.prefill_per_token_squared_ms,
    )


def mix_of(lengths: TokenLengths) -> TokenMix:
    """One bucket at the means; or two, the long one of prompts as long as the 99th percentile, with the same mean."""
    mean, out = math.ceil(lengths.input_tokens_mean), math.ceil(lengths.output_tokens_mean)
    long = mean if lengths.input_tokens_p99 is None else math.ceil(lengths.input_tokens_p99)
    if long <= mean:
        return TokenMix(buckets=(LengthBucket(in_tokens=mean, out_tokens=out, weight=1.0),))
    short = max(1, math.ceil((mean - LONG_PART * long) / (1 - LONG_PART)))
    return TokenMix(
        buckets=(
            LengthBucket(in_tokens=short, out_tokens=out, weight=1 - LONG_PART),
            LengthBucket(in_tokens=long, out_tokens=out, weight=LONG_PART),
        )
    )


def memory_mib(profile: TokenProfile, lengths: TokenLengths, sequences: int) -> int:
    """The limit to set: the sequences' caches, each at full length, and not less than the longest prompt that is
    declared takes with its answer, beside weights and reserve.
    """
    mean, answer = math.ceil(lengths.input_tokens_mean), math.ceil(lengths.output_tokens_mean)
    cached = max(sequences * (mean + answer), math.ceil(lengths.input_tokens_p99 or 0.0) + answer)
    needed = profile.memory_mib_weights + RESERVE_MIB + cached * profile.kv_cache_mib_per_token
    return math.ceil(needed / MEMORY_STEP_MIB) * MEMORY_STEP_MIB


# --- In the terms of options and appraisal


def token_row(need: Need, device_class: DeviceClass, policy: Policy) -> JudgedGrid | None:
    """Every number of sequences of the need's own network on a class; None where nothing is known of it."""
    wish = need.tokens
    profile = None if wish is None else wish.profile(need.model, device_class.gpu_type)
    if wish is None or profile is None or not _is_whole(device_class):
        return None
    found = choices(profile, TokenPromise.of(need, wish, policy.utilisation_max))
    if not found:
        return None
    latency = np.array([[item.first_token_ms for item in found]])
    rate = np.array([[item.rate_rps for item in found]])
    limits = np.array([item.memory_mib for item in found], dtype=np.int64)
    grid = Grid(
        clock_mhz_sm=device_class.clock_mhz_sm,
        batches=np.array([item.sequences for item in found], dtype=np.int64),
        shares_pct=np.array([100], dtype=np.int64),
        latency_ms_mean=latency,
        latency_ms_tail=latency,
        memory_mib=limits.astype(np.float64),
        power_w=np.full(rate.shape, np.nan),
        measured=np.ones(rate.shape, dtype=np.bool_),
    )
    outcome = PromiseOutcome(feasible=rate > 0, latency_ms=latency, capacity_rps=rate)
    return JudgedGrid(grid=grid, outcome=outcome, limits_mib=limits)


def standing_serving(
    need: Need, standing: Assignment, device_class: DeviceClass, policy: Policy
) -> TokenServing | None:
    """What a standing replica can be shown to do with as many sequences as it runs; None when that is nothing, or when
    it may grow to what its memory does not hold or its promise does not bear.
    """
    wish, envelope = need.tokens, standing.envelope
    profile = None if wish is None else wish.profile(standing.model, device_class.gpu_type)
    whole = _is_whole(device_class) and standing.share_pct_sm == 100
    if wish is None or profile is None or not whole or standing.batch < 1 or envelope.batch_max < standing.batch:
        return None
    most = profile.sequences_max
    if {envelope.clock_mhz_sm_min, envelope.clock_mhz_sm_max} != {device_class.clock_mhz_sm}:
        return None
    if most is not None and envelope.batch_max > most:
        return None
    promise = TokenPromise.of(need, wish, policy.utilisation_max)
    shown, widest = (serving(profile, promise, sequences) for sequences in (standing.batch, envelope.batch_max))
    if shown.rate_rps <= 0 or widest.rate_rps <= 0 or widest.memory_mib > standing.memory_mib_limit:
        return None
    return shown


def token_miss(need: Need, models: tuple[ModelName, ...], gpu_type: GpuTypeName, policy: Policy) -> Reason:
    """Why a need keeps its promise nowhere on whole GPUs of a type: the best of each latency at hardly any load."""
    wish = need.tokens
    assert wish is not None
    promise = TokenPromise.of(need, wish, policy.utilisation_max)
    known = (wish.profile(model, gpu_type) for model in models)
    found = [item for profile in known if profile is not None for item in choices(profile, promise)]
    first = min((item.first_token_ms for item in found), default=math.inf)
    between = min((item.inter_token_ms for item in found), default=math.inf)
    facts = (
        Fact(name="first_token_ms_best", value=round(first, 3) if math.isfinite(first) else "unknown"),
        Fact(name="first_token_ms_limit", value=promise.first_token_ms),
        Fact(name="inter_token_ms_best", value=round(between, 3) if math.isfinite(between) else "unknown"),
        Fact(name="inter_token_ms_limit", value=promise.inter_token_ms),
    )
    return Reason(code=ReasonCode.SLO_UNREACHABLE, subject=gpu_type, facts=facts)


def token_facts(
    need: Need, model: ModelName, gpu_type: GpuTypeName, sequences: int, rate_rps: float
) -> tuple[Fact, ...]:
    """What a plan says beside the first token of a replica with so many sequences at once and such a rate."""
    wish = need.tokens
    profile = None if wish is None else wish.profile(model, gpu_type)
    if wish is None or profile is None:
        return ()
    between_ms = TokenPromise.of(need, wish, 1.0).told(profile, sequences, rate_rps).inter_token_ms_tail
    told = round(between_ms, 3) if math.isfinite(between_ms) else "unknown"
    facts = (Fact(name="inter_token_ms", value=told),)
    if not profile.origin.is_believed:
        return facts
    origin, source = profile.origin.value, profile.source
    return (*facts, Fact(name="profile_origin", value=origin), Fact(name="profile_source", value=source))


def _is_whole(device_class: DeviceClass) -> bool:
    """Whether a device is a whole GPU, at a clock that was not lowered."""
    return device_class.gpu_part >= 1.0 and device_class.sm_part >= 1.0 and not device_class.clock_lowered
