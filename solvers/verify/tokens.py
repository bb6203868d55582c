"""Checks of what a plan promises of LLM services: first token, next tokens, rate and memory of each replica.

Anything is proven only of a whole GPU of its own at its highest clock, with a token profile and lengths of requests;
and the promise must hold at the largest number of sequences that the replica may grow to as well. Standard library
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from solvers.domain.device import Device
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.plan import Assignment
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.domain.workload import Service, SloKind, WorkloadKind
from solvers.verify.bounds import UTILISATION_MIN
from solvers.verify.picture import Picture, promise

# --- First token, next tokens and sustainable rate of an LLM's replica on a whole GPU, from its steps
#
# The verifier's own reading of the model that docs/reference/serving.md documents, for the lengths that a service
# declares. Milliseconds, tokens, MiB, requests/s.

BUSY_MAX = 0.97
"""Nearer to what can be sustained, queues have no end."""
LONG_PART = 0.02
RESERVE_MIB = 1024
LIMIT_SLACK = 1e-6
HALVINGS = 50


class Steps:
    """One network with one service's requests."""

    def __init__(self, profile: TokenProfile, lengths: TokenLengths) -> None:
        prompts = _prompts(lengths)
        # Tokens of an answer.
        self.answer = math.ceil(lengths.output_tokens_mean)

        def prefill_ms(tokens: int) -> float:
            slope = profile.prefill_per_token_ms + profile.prefill_per_token_squared_ms * tokens
            return profile.prefill_fixed_ms + slope * tokens

        # Rising times of a prompt's prefill, and the part of requests each takes.
        self.prefills = sorted((prefill_ms(tokens), part) for tokens, part in prompts)
        # A decode step whatever the number of sequences, and what every sequence adds to it.
        cached = sum(part * (tokens + self.answer / 2) for tokens, part in prompts)
        self.alone_ms = profile.decode_fixed_ms
        self.each_ms = profile.decode_per_sequence_ms + profile.decode_per_token_ms * cached

    def prefill(self, power: int) -> float:
        """Mean of the prefill's time, or of its square."""
        return sum(part * time**power for time, part in self.prefills)

    def decode_ms(self, sequences: float) -> float:
        return self.alone_ms + self.each_ms * sequences

    def between_ms(self, sequences: float) -> float:
        """Mean time from token to token, the prefills that come between included."""
        return self.decode_ms(sequences) + sequences * self.prefill(1) / self.answer

    def sustained_rps(self, places: int) -> float:
        """The rate that keeps all places taken."""
        return 1000 * places / (self.answer * self.between_ms(places)) if places > 0 else 0.0

    def tails_ms(self, rate_rps: float, places: int, percentile: float) -> tuple[float, float]:
        """First token, and from token to token, at a percentile; infinite where no queue ends."""
        most = self.sustained_rps(places)
        if most <= 0 or not rate_rps < BUSY_MAX * most:
            return math.inf, math.inf
        load, rate, beyond = rate_rps / most, rate_rps / 1000, 1 - percentile / 100
        sigmas = NormalDist().inv_cdf(percentile / 100)
        one, two = self.prefill(1), self.prefill(2)
        grows = self.each_ms + one / self.answer
        running = rate * self.answer * self.alone_ms / (1 - rate * self.answer * grows)
        decode, step = self.decode_ms(running), self.between_ms(running)
        echo = 1 - min(rate * one, BUSY_MAX) ** 2
        seen, busy = step + rate * two / echo, 1 - math.exp(-running)
        others = rate * seen * busy
        mean = busy * seen / 2 + others * one + one + decode
        spread = math.sqrt(busy * seen * seen / 12 + 2 * others * two / echo + two - one * one)
        first = max(mean + max(0.0, sigmas) * spread, decode + self._exceeded(beyond) + busy * seen / 2)
        chance = load ** (math.sqrt(2 * (places + 1)) - 1)
        if chance > beyond:
            first += self.answer * step / places / (1 - load) * math.log(chance / beyond)
        arrive = rate * step
        longest = self._met(arrive, beyond)
        stall = max(longest, arrive * one + sigmas * math.sqrt(arrive * two)) if longest > 0 else 0.0
        return first, decode + stall

    def _exceeded(self, beyond: float) -> float:
        """The prefill that no more than this part of prompts exceed."""
        above = 0.0
        for time, part in reversed(self.prefills):
            above += part
            if above > beyond:
                return time
        return self.prefills[0][0]

    def _met(self, arrive: float, beyond: float) -> float:
        """The longest prefill that one step in so many meets; 0 when there is none."""
        above = 0.0
        for time, part in reversed(self.prefills):
            above += part
            if -math.expm1(-arrive * above) > beyond:
                return time
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    first_ms: float
    between_ms: float
    percentile: float
    utilisation_max: float
    utilisation_min: float

    def hold(self, steps: Steps, rate_rps: float, places: int) -> bool:
        first, between = steps.tails_ms(rate_rps, places, self.percentile)
        return first <= self.first_ms * (1 + LIMIT_SLACK) and between <= self.between_ms * (1 + LIMIT_SLACK)

    def rate_rps(self, steps: Steps, places: int, claimed_rps: float) -> float:
        """A rate at which both are kept: what is claimed where that is one, else the highest; 0 when they hold for a
        nearly idle replica only.
        """
        most = steps.sustained_rps(places)
        low, high = self.utilisation_min * most, self.utilisation_max * most
        if not self.hold(steps, low, places):
            return 0.0
        for rate in (high, min(high, claimed_rps)):
            if low <= rate and self.hold(steps, rate, places):
                return rate
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.hold(steps, middle, places) else (low, middle)
        return low


def memory_mib(profile: TokenProfile, lengths: TokenLengths, sequences: int) -> float:
    """Weights, reserve, and the cache of so many sequences at full length, or of the longest prompt and its answer."""
    answer = math.ceil(lengths.output_tokens_mean)
    together = sequences * (math.ceil(lengths.input_tokens_mean) + answer)
    longest = answer + math.ceil(lengths.input_tokens_p99 or lengths.input_tokens_mean)
    return profile.memory_mib_weights + RESERVE_MIB + profile.kv_cache_mib_per_token * max(together, longest)


def _prompts(lengths: TokenLengths) -> tuple[tuple[int, float], ...]:
    """Lengths of prompts, with their part of all."""
    mean, long = math.ceil(lengths.input_tokens_mean), math.ceil(lengths.input_tokens_p99 or 0.0)
    if long <= mean:
        return ((mean, 1.0),)
    short = max(1, math.ceil((mean - LONG_PART * long) / (1 - LONG_PART)))
    return (short, 1 - LONG_PART), (long, LONG_PART)


# --- Checks

PERCENTILE_MAX = 99.99


@dataclass(frozen=True, slots=True)
class _Known:
    profile: TokenProfile
    lengths: TokenLengths


def token_service(picture: Picture, item: Assignment) -> Service | None:
    """The service of a replica, when it answers token by token."""
    owner = picture.services.get(item.workload) if item.kind is WorkloadKind.SERVICE else None
    return owner if owner is not None and owner.slo.kind is SloKind.TOKENS else None


def token_memory_mib(picture: Picture, service: Service, item: Assignment, device: Device) -> float:
    """What the replica needs at the largest number of sequences; at least its weights."""
    known = _known(picture, service, item, device)
    if known is not None:
        return memory_mib(known.profile, known.lengths, item.envelope.batch_max)
    model = picture.models.get(item.model)
    return 0.0 if model is None else model.memory_mib_weights


def tokens_rps(picture: Picture, service: Service, item: Assignment, device: Device, sequences: int) -> float:
    """A rate at which the replica is proven to keep its promise; 0 where there is none. It is the claimed one if that
    is proven.
    """
    known, slo = _known(picture, service, item, device), service.slo
    alone = len(picture.on_device[device.id]) == 1 and device.mig is None and item.share_pct_sm == 100
    highest = picture.clock_mhz_sm(device) == picture.types[device.gpu_type].clocks_mhz_sm[-1]
    if known is None or not (alone and highest) or slo.first_token_ms is None or slo.inter_token_ms is None:
        return 0.0
    most = known.profile.sequences_max
    if sequences < 1 or (most is not None and sequences > most):
        return 0.0
    limits = TokenLimits(
        first_ms=slo.first_token_ms,
        between_ms=slo.inter_token_ms,
        percentile=min(slo.percentile, PERCENTILE_MAX),
        utilisation_max=picture.policy_at(device.id).utilisation_max,
        utilisation_min=UTILISATION_MIN,
    )
    return limits.rate_rps(Steps(known.profile, known.lengths), sequences, item.capacity_rps)


def check_tokens(picture: Picture, service: Service, item: Assignment, shown_rps: float) -> Iterator[Finding]:
    """Findings about one replica that is proven to keep its promise at `shown_rps`."""
    device, limit_ms, planned_ms = picture.devices[item.device], service.slo.first_token_ms, item.latency_ms_planned
    if shown_rps <= 0:
        yield promise(picture, FindingCode.LATENCY_EXCEEDED, item, first_token_ms="unproven")
        return
    # These are written so that a claim that is not a number breaks the promise.
    if limit_ms is not None and planned_ms is not None and not planned_ms <= limit_ms * (1 + 1e-6):
        yield promise(picture, FindingCode.LATENCY_EXCEEDED, item, latency_ms_planned=planned_ms)
    if not item.capacity_rps <= shown_rps * (1 + 1e-6) + 1e-6:
        yield promise(
            picture, FindingCode.CAPACITY_SHORT, item, capacity_rps_claimed=item.capacity_rps, capacity_rps=shown_rps
        )
    reach = item.envelope.batch_max
    if tokens_rps(picture, service, item, device, reach) <= 0:
        yield promise(picture, FindingCode.ENVELOPE_INVALID, item, batch_max=float(reach))


def _known(picture: Picture, service: Service, item: Assignment, device: Device) -> _Known | None:
    profile = picture.token_profiles.get((item.model, device.gpu_type))
    return None if profile is None or service.tokens is None else _Known(profile, service.tokens)
