"""What LLM services could do on a class of devices, and what their standing replicas can be shown to do.

A need's token profiles are read in the terms of `options` and `appraisal`: a grid of one row, the whole device. Only
whole GPUs at their highest clock count, because that is what token profiles speak of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Whole
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.plan import Assignment
from solvers.domain.policy import Policy
from solvers.models.serving.token_plans import TokenPromise, TokenServing, choices, serving
from solvers.models.table import Grid
from solvers.problems.fleet import DeviceClass
from solvers.problems.needs import Need
from solvers.problems.promise import PromiseOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Every number of sequences on a whole device."""

    grid: Grid
    outcome: PromiseOutcome
    limits_mib: Whole


def token_row(need: Need, device_class: DeviceClass, policy: Policy) -> TokenRow | None:
    """The need's own network on a class; None where nothing is known of it."""
    found = token_choices(need, need.model, device_class, policy)
    if not found:
        return None
    latency = np.array([[item.first_token_ms for item in found]])
    rate = np.array([[item.rate_rps for item in found]])
    limits = np.array([item.memory_mib for item in found], dtype=np.int64)
    known = np.ones(rate.shape, dtype=np.bool_)
    grid = Grid(
        clock_mhz_sm=device_class.clock_mhz_sm,
        batches=np.array([item.sequences for item in found], dtype=np.int64),
        shares_pct=np.array([100], dtype=np.int64),
        latency_ms_mean=latency,
        latency_ms_tail=latency,
        memory_mib=limits.astype(np.float64),
        power_w=np.full(rate.shape, np.nan),
        measured=known,
    )
    outcome = PromiseOutcome(feasible=rate > 0, latency_ms=latency, capacity_rps=rate)
    return TokenRow(grid=grid, outcome=outcome, limits_mib=limits)


def token_choices(need: Need, model: ModelName, device_class: DeviceClass, policy: Policy) -> tuple[TokenServing, ...]:
    """One network of a need on a class, by sequences; nothing where nothing is known."""
    wish = need.tokens
    profile = None if wish is None else wish.profile(model, device_class.gpu_type)
    if wish is None or profile is None or not is_whole(device_class):
        return ()
    return choices(profile, TokenPromise.of(need, wish, policy.utilisation_max))


def standing_serving(
    need: Need, standing: Assignment, device_class: DeviceClass, policy: Policy
) -> TokenServing | None:
    """What a standing replica can be shown to do with as many sequences as it runs; None when that is nothing, or when
    it may grow to what its memory does not hold or its promise does not bear.
    """
    wish, envelope = need.tokens, standing.envelope
    profile = None if wish is None else wish.profile(standing.model, device_class.gpu_type)
    whole = is_whole(device_class) and standing.share_pct_sm == 100
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
    first, between = (
        min((item.first_token_ms for item in found), default=math.inf),
        min((item.inter_token_ms for item in found), default=math.inf),
    )
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


def is_whole(device_class: DeviceClass) -> bool:
    """Whether a device is a whole GPU, at a clock that was not lowered."""
    return device_class.gpu_part >= 1.0 and device_class.sm_part >= 1.0 and not device_class.clock_lowered
