"""Token latencies of LLM services: time to first token and between tokens, from the cost of prefill and decode steps.

One replica (a GPU or a tensor-parallel group) batches continuously in steady state. A decode step of B sequences with C
cached tokens takes alpha + beta * B + kappa * C; a prefill of T prompt tokens gamma + delta * T, with a term for
attention over long prompts. What is bound by SMs is divided by the part of the knee that the share reaches; what is
bound by memory is not. Prefills run between decode steps and delay them, so with N sequences of `out` tokens the time
between tokens is

    itl(N) = decode(N) + N / out * prefill,        N = rate * out * itl(N)

which is linear in N and solved exactly. At most `sequences_max` run; a request that finds all places taken waits for
one. Prefills queue among themselves. Rates beyond capacity give infinite latencies. Milliseconds, tokens, MiB,
requests/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated

from solvers.domain.value import (
    NOT_NEGATIVE,
    POSITIVE,
    check_distinct,
    check_not_negative,
    check_positive,
    check_range,
    value,
    within,
)
from solvers.errors import FieldError

RESERVE_MIB = 1024.0
"""Context, activations and fragmentation of a serving process beside weights and cache."""
LOAD_MAX = 0.97
"""Beyond this part of capacity queues grow without telling end."""
_NORMAL = NormalDist()


@value
class StepCosts:
    """What steps take on a whole GPU (or group), and the share from which more SMs gain nothing."""

    decode_fixed_ms: Annotated[float, NOT_NEGATIVE]
    decode_per_sequence_ms: Annotated[float, NOT_NEGATIVE]
    decode_per_token_ms: Annotated[float, NOT_NEGATIVE]
    prefill_fixed_ms: Annotated[float, NOT_NEGATIVE]
    prefill_per_token_ms: Annotated[float, NOT_NEGATIVE]
    prefill_per_token_squared_ms: Annotated[float, NOT_NEGATIVE] = 0.0
    decode_fixed_sm_ms: Annotated[float, NOT_NEGATIVE] = 0.0
    """Part of the fixed time that is bound by SMs; it comes on top of `decode_fixed_ms`."""
    decode_knee_pct: Annotated[float, within(1, 100)] = 100.0
    prefill_knee_pct: Annotated[float, within(1, 100)] = 100.0

    def at_share(self, share_pct: float) -> StepCosts:
        """The costs of a replica that may use this share, as if it had a GPU of its own."""
        check_range("share_pct", share_pct, 1, 100)
        decode = max(1.0, self.decode_knee_pct / share_pct)
        prefill = max(1.0, self.prefill_knee_pct / share_pct)
        return StepCosts(
            decode_fixed_ms=self.decode_fixed_ms + self.decode_fixed_sm_ms * decode,
            decode_per_sequence_ms=self.decode_per_sequence_ms * decode,
            decode_per_token_ms=self.decode_per_token_ms,
            prefill_fixed_ms=self.prefill_fixed_ms,
            prefill_per_token_ms=self.prefill_per_token_ms * prefill,
            prefill_per_token_squared_ms=self.prefill_per_token_squared_ms * prefill,
        )

    def decode_ms(self, sequences: float, cached_tokens: float) -> float:
        """One token for each of `sequences`, over all tokens that they cached."""
        fixed = self.decode_fixed_ms + self.decode_fixed_sm_ms
        return fixed + self.decode_per_sequence_ms * sequences + self.decode_per_token_ms * cached_tokens

    def prefill_ms(self, prompt_tokens: float) -> float:
        variable = self.prefill_per_token_ms + self.prefill_per_token_squared_ms * prompt_tokens
        return self.prefill_fixed_ms + variable * prompt_tokens

    def scaled(self, compute: float, bandwidth: float) -> StepCosts:
        """Costs on a GPU whose compute rate and memory bandwidth are these multiples: prefill follows the first, decode
        the second, fixed prefill time (launching) neither.
        """
        check_positive("compute", compute)
        check_positive("bandwidth", bandwidth)
        return replace(
            self,
            decode_fixed_ms=self.decode_fixed_ms / bandwidth,
            decode_fixed_sm_ms=self.decode_fixed_sm_ms / bandwidth,
            decode_per_sequence_ms=self.decode_per_sequence_ms / compute,
            decode_per_token_ms=self.decode_per_token_ms / bandwidth,
            prefill_per_token_ms=self.prefill_per_token_ms / compute,
            prefill_per_token_squared_ms=self.prefill_per_token_squared_ms / compute,
        )


@value
class LengthBucket:
    """Requests of about the same length; `weight` is their part of all requests, `out_tokens_cv` how much the lengths
    of their answers vary (standard deviation over mean).
    """

    in_tokens: Annotated[int, POSITIVE]
    out_tokens: Annotated[int, POSITIVE]
    weight: Annotated[float, POSITIVE]
    out_tokens_cv: Annotated[float, NOT_NEGATIVE] = 1.0


@value
class TokenMix:
    """Lengths of a service's requests. Weights need not sum to 1."""

    buckets: tuple[LengthBucket, ...]

    def __post_init__(self) -> None:
        if not self.buckets:
            raise FieldError("buckets", "a mix needs at least one bucket")
        check_distinct("buckets", ((bucket.in_tokens, bucket.out_tokens) for bucket in self.buckets))

    def shares(self) -> tuple[tuple[LengthBucket, float], ...]:
        total = sum(bucket.weight for bucket in self.buckets)
        return tuple((bucket, bucket.weight / total) for bucket in self.buckets)

    @property
    def out_tokens_mean(self) -> float:
        return sum(part * bucket.out_tokens for bucket, part in self.shares())

    @property
    def held_variation(self) -> float:
        """Squared coefficient of variation of answer lengths, over all requests."""
        squares = sum(part * bucket.out_tokens**2 * (1 + bucket.out_tokens_cv**2) for bucket, part in self.shares())
        return squares / self.out_tokens_mean**2 - 1.0

    @property
    def cached_tokens_mean(self) -> float:
        """Tokens that a running sequence has cached, on average over its life."""
        life = sum(
            part * bucket.out_tokens * (bucket.in_tokens + bucket.out_tokens / 2) for bucket, part in self.shares()
        )
        return life / self.out_tokens_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLatency:
    """Steady state of a replica. Latencies in ms; infinite beyond capacity."""

    first_token_ms_mean: float
    first_token_ms_tail: float
    """At the asked percentile."""
    inter_token_ms_mean: float
    inter_token_ms_tail: float
    load: float
    """Part of the highest rate that could be sustained."""


_OVERLOADED = TokenLatency(
    first_token_ms_mean=math.inf,
    first_token_ms_tail=math.inf,
    inter_token_ms_mean=math.inf,
    inter_token_ms_tail=math.inf,
    load=math.inf,
)


class _Steady:
    """A mix on a replica: prefills with the parts of requests that need them, and decode's line over sequences."""

    def __init__(self, costs: StepCosts, mix: TokenMix) -> None:
        self.prefills = sorted((costs.prefill_ms(bucket.in_tokens), part) for bucket, part in mix.shares())
        # Of a step whatever the number of sequences.
        self.decode_ms, self.out_tokens = costs.decode_ms(0, 0), mix.out_tokens_mean
        self.decode_ms_per_sequence = costs.decode_ms(1, mix.cached_tokens_mean) - self.decode_ms

    @property
    def prefill_ms(self) -> float:
        return sum(time * part for time, part in self.prefills)

    @property
    def prefill_ms2(self) -> float:
        return sum(time * time * part for time, part in self.prefills)

    def step_ms(self, sequences: float) -> float:
        return self.decode_ms + sequences * (self.decode_ms_per_sequence + self.prefill_ms / self.out_tokens)

    def prefills_ms_tail(self, arrivals: float, beyond: float) -> float:
        """Prefill time of `arrivals` requests (mean of a Poisson number) that is exceeded with chance `beyond`."""
        longest, above = 0.0, 0.0
        for time, part in reversed(self.prefills):
            above += part
            if 1.0 - math.exp(-arrivals * above) > beyond:
                longest = time
                break
        spread = _NORMAL.inv_cdf(1.0 - beyond) * math.sqrt(arrivals * self.prefill_ms2)
        return max(longest, arrivals * self.prefill_ms + spread if longest else 0.0)


def rate_rps_max(costs: StepCosts, mix: TokenMix, sequences: int) -> float:
    """The highest rate of a replica that runs at most this many sequences."""
    steady = _Steady(costs, mix)
    return 1000.0 * sequences / (steady.out_tokens * steady.step_ms(sequences)) if sequences > 0 else 0.0


def token_latency(
    costs: StepCosts, mix: TokenMix, rate_rps: float, sequences: int, percentile: float = 95.0
) -> TokenLatency:
    """Token latencies under Poisson arrivals of `rate_rps` with at most `sequences` running."""
    check_not_negative("rate_rps", rate_rps)
    check_range("percentile", percentile, 1, 99.99)
    capacity = rate_rps_max(costs, mix, sequences)
    if capacity <= 0 or rate_rps >= LOAD_MAX * capacity:
        return _OVERLOADED
    steady, rate, beyond = _Steady(costs, mix), rate_rps / 1000.0, 1.0 - percentile / 100.0
    slope = steady.step_ms(1) - steady.step_ms(0)
    running = rate * steady.out_tokens * steady.decode_ms / (1.0 - rate * steady.out_tokens * slope)
    step = steady.step_ms(running)
    decoding = steady.decode_ms + running * steady.decode_ms_per_sequence
    # A request falls into a step longer than most, waits for its end, then for the prompts that came with it. A long
    # step collects many prompts, which makes the next one long as well: variations echo with `rate * prefill`.
    echo = 1.0 - min(rate * steady.prefill_ms, LOAD_MAX) ** 2
    seen = step + rate * steady.prefill_ms2 / echo
    busy = 1.0 - math.exp(-running)
    company = rate * seen * busy
    mean = busy * seen / 2.0 + company * steady.prefill_ms + steady.prefill_ms + decoding
    own_variance = steady.prefill_ms2 - steady.prefill_ms**2
    deviation = math.sqrt(busy * seen**2 / 12.0 + 2.0 * company * steady.prefill_ms2 / echo + own_variance)
    placed = _PlaceWait.of(rate_rps / capacity, sequences, steady.out_tokens * step, mix.held_variation)
    longest = _own_tail(steady, beyond)
    normal = mean + max(0.0, _NORMAL.inv_cdf(percentile / 100.0)) * deviation
    tail = max(normal, decoding + longest + busy * seen / 2.0)
    return TokenLatency(
        first_token_ms_mean=mean + placed.mean_ms,
        first_token_ms_tail=tail + placed.tail_ms(beyond),
        inter_token_ms_mean=step,
        inter_token_ms_tail=decoding + steady.prefills_ms_tail(rate * step, beyond),
        load=rate_rps / capacity,
    )


def _own_tail(steady: _Steady, beyond: float) -> float:
    """The prefill that a part `beyond` of requests exceeds."""
    above = 0.0
    for time, part in reversed(steady.prefills):
        above += part
        if above > beyond:
            return time
    return steady.prefills[0][0]


@dataclass(frozen=True, slots=True)
class _PlaceWait:
    """Waiting for one of the places: the chance to wait at all and the mean wait of those who do."""

    chance: float
    waiting_ms: float

    @staticmethod
    def of(load: float, places: int, held_ms: float, variation: float) -> _PlaceWait:
        # Sakasegawa's form for many servers, and the usual correction for how much the time held varies.
        chance = load ** (math.sqrt(2.0 * (places + 1)) - 1.0)
        return _PlaceWait(chance, held_ms / places / (1.0 - load) * (1.0 + variation) / 2.0)

    @property
    def mean_ms(self) -> float:
        return self.chance * self.waiting_ms

    def tail_ms(self, beyond: float) -> float:
        """The wait that is exceeded with chance `beyond`."""
        return self.waiting_ms * math.log(self.chance / beyond) if self.chance > beyond else 0.0
