"""Checks of what a plan promises of LLM services: first token, next tokens, rate and memory of each replica.

Owns when anything is proven at all: a whole GPU of its own at its highest clock, a token profile, and lengths of
requests; and that the promise holds at the largest number of sequences that the replica may grow to as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from solvers.domain.device import Device
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.plan import Assignment
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.domain.workload import Service, SloKind, WorkloadKind
from solvers.verify.picture import Picture
from solvers.verify.report import promise
from solvers.verify.token_steps import Steps, TokenLimits, memory_mib

PERCENTILE_MAX = 99.99
UTILISATION_MIN = 0.05


@dataclass(frozen=True, slots=True)
class _Known:
    """What a proof needs."""

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
    return limits.rate_rps(Steps.of(known.profile, known.lengths), sequences, item.capacity_rps)


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
