"""What may be declared although it can hardly be meant: warnings, told when it is applied and no error.

They hold against the fleet as it is and what is believed now: an SLO below the best of any device, a rate (a task's
is what its deadline needs) beyond all devices together, weights larger than any memory, tokens of which nothing can be
known, a power cap below what idle devices draw, a way to pay for GPUs at which they have no price and others do. An
empty fleet promises nothing, so it warns of none of these; whatever the fleet, of a promise that says something in
vain, and of a pool that names what nobody knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np
from sqlalchemy.orm import Session

from app import kinds, library
from app.errors import Fault
from app.services.beliefs.completion import token_profile
from app.store import documents, nodes
from app.store.nodes import FleetPart
from solvers.domain.arrays import Floats
from solvers.domain.codec import from_plain
from solvers.domain.device import GpuType, Node, PowerCap, PriceKind
from solvers.domain.policy import Policy, Pool
from solvers.domain.profile import TokenLengths
from solvers.domain.workload import (
    ModelVariant,
    OfflineTask,
    Service,
    Slo,
    SloKind,
    SloScope,
    TrainingJob,
    Work,
)
from solvers.errors import FieldError
from solvers.models.base import Quantity, Queries
from solvers.models.serving.token_plans import LONG_PART, TokenPromise, TokenServing, choices
from solvers.models.suite import Suite
from solvers.problems.needs import limit_ms, task_rate_rps
from solvers.problems.promise import PERCENTILE_MAX, Promise, settle

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
UNKNOWN_SHOWN = 3


def doubts(session: Session, value: object, suite: Suite | None) -> tuple[Fault, ...]:
    """What to warn of in a value that may be stored; without a suite only what needs no belief."""
    match value:
        case PowerCap():
            return tuple(_of_cap(session, value))
        case Policy():
            paid = () if value.price_kind is None else _of_prices(session, value.price_kind)
            return (*paid, *(() if value.pool is None else _of_pool(session, value.pool)))
        case Node():
            return tuple(_of_prices(session, value.price_kind, value))
        case Service() | TrainingJob() | OfflineTask():
            allowed = [
                part
                for part in nodes.fleet_parts(session)
                if part.gpu_type in value.gpu_types_allowed or not value.gpu_types_allowed
            ]
            vain = () if isinstance(value, TrainingJob) else _of_slo(value.slo)
            return (*vain, *_of_work(session, value, allowed, suite))
    return ()


def _of_cap(session: Session, cap: PowerCap) -> Iterator[Fault]:
    parts = nodes.fleet_parts(session, **{cap.scope.value: cap.subject} if cap.scope.value != "cluster" else {})
    idle_w = sum(part.idle_w for part in parts)
    if cap.limit_w < idle_w:
        detail = f"{cap.limit_w:g} W is less than the {idle_w:g} W that the idle GPUs of it draw: it cannot be kept"
        yield Fault(pointer="/limit_w", code="cap-below-idle", detail=detail)


def _of_pool(session: Session, pool: Pool) -> Iterator[Fault]:
    told = (("devices", kinds.DEVICE, pool.devices), ("nodes", kinds.NODE, pool.nodes))
    for field, kind, named in (*told, ("gpu_types", kinds.GPU_TYPE, pool.gpu_types)):
        unknown = sorted(set[str](named).difference(documents.names(session, kind))) if named else []
        if unknown:
            more = f" and {len(unknown) - UNKNOWN_SHOWN:,} more" if len(unknown) > UNKNOWN_SHOWN else ""
            detail = f"there is no {kind.words} {', '.join(unknown[:UNKNOWN_SHOWN])}{more}"
            yield Fault(pointer=f"/pool/{field}", code="pool-unknown", detail=detail)


def _of_prices(session: Session, kind: PriceKind, node: Node | None = None) -> Iterator[Fault]:
    """Of types that have prices, but none at which these GPUs would be paid for."""
    for part in nodes.fleet_parts(session, node=None if node is None else node.id):
        sheet = _gpu_type(session, part)
        prices = () if sheet is None else sheet.prices
        regions = {row.region for row in prices if row.kind is kind}
        if prices and (regions.isdisjoint({node.region, "default"}) if node is not None else not regions):
            where = f" in {node.region}" if node is not None else ""
            detail = f"{part.gpu_type} has no {kind.value} price{where}: its GPUs are planned and billed as free"
            yield Fault(pointer="/price_kind", code="price-missing", detail=detail)


def _gpu_type(session: Session, part: FleetPart) -> GpuType | None:
    stored = documents.find(session, kinds.GPU_TYPE, (part.gpu_type,))
    return None if stored is None else from_plain(GpuType, stored.spec)


def _of_slo(slo: Slo) -> Iterator[Fault]:
    end_to_end = slo.kind is SloKind.LATENCY and slo.scope is SloScope.END_TO_END
    if slo.percentile > PERCENTILE_MAX and (end_to_end or slo.kind is SloKind.TOKENS):
        detail = f"{slo.percentile:g} is planned as {PERCENTILE_MAX:g}: no plan promises every request"
        yield Fault(pointer="/slo/percentile", code="percentile-unplanned", detail=detail)
    if slo.scope is SloScope.EXECUTION and slo.kind in (SloKind.TOKENS, SloKind.THROUGHPUT):
        detail = f"an SLO of kind {slo.kind.value} covers no execution alone: this is not read"
        yield Fault(pointer="/slo/scope", code="scope-unread", detail=detail)


@dataclass(frozen=True, slots=True)
class _BestOfType:
    """What one replica that has a whole device of a type to itself is believed to do at best."""

    model: str
    gpu_type: str
    latency_ms: Floats
    """By batch."""
    rate_rps: float


def _of_work(session: Session, work: Work, fleet: Sequence[FleetPart], suite: Suite | None) -> Iterator[Fault]:
    names = (work.model, *work.alternatives) if isinstance(work, Service) else (work.model,)
    found = [documents.find(session, kinds.MODEL, (name,)) for name in names]
    models = [from_plain(ModelVariant, stored.spec) for stored in found if stored is not None]
    if not fleet or not models:
        return
    largest, needed = max(part.memory_mib_max for part in fleet), min(item.memory_mib_weights for item in models)
    if needed > largest:
        detail = f"its weights need {needed / 1024:.1f} GiB and the largest device has {largest / 1024:.1f} GiB"
        yield Fault(pointer="/model", code="memory-too-small", detail=detail)
    elif isinstance(work, Service) and work.tokens is not None:
        yield from _of_tokens(work.tokens, models)
        yield from _of_steps(work, work.tokens, models, {part: _gpu_type(session, part) for part in fleet})
    elif not isinstance(work, TrainingJob) and suite is not None:
        best = _bests(suite, [item.name for item in models], fleet)
        if isinstance(work, Service) and best:
            yield from _of_latency(work.slo, best)
        if best:
            yield from _of_rate(work, sum(part.gpus * _rate_rps(part, best) for part in fleet))


def _of_tokens(lengths: TokenLengths, models: Sequence[ModelVariant]) -> Iterator[Fault]:
    if all(item.kv_cache_mib_per_token is None for item in models):
        detail = f"{models[0].name} does not say kv_cache_mib_per_token: nothing is known of its times by token"
        yield Fault(pointer="/model", code="tokens-unknown", detail=detail)
    longest = lengths.input_tokens_p99 or 0.0
    if LONG_PART * longest + (1 - LONG_PART) > lengths.input_tokens_mean:
        detail = f"two in a hundred prompts of {longest:g} tokens make a mean above {lengths.input_tokens_mean:g}"
        yield Fault(pointer="/tokens/input_tokens_p99", code="lengths-contradict", detail=detail)


def _of_steps(
    service: Service, lengths: TokenLengths, models: Sequence[ModelVariant], fleet: dict[FleetPart, GpuType | None]
) -> Iterator[Fault]:
    """Of a promise of tokens, and of the rate at which whole GPUs are believed to keep it."""
    first_ms, between_ms = service.slo.first_token_ms or math.inf, service.slo.inter_token_ms or math.inf
    promise = TokenPromise(
        lengths=lengths,
        first_token_ms=first_ms,
        inter_token_ms=between_ms,
        percentile=min(service.slo.percentile, PERCENTILE_MAX),
        utilisation_max=1.0,
    )
    known = (*library.load_gpu_types(), *fleet.values())
    sheets: dict[str, GpuType] = {item.name: item for item in known if item is not None}
    found: list[tuple[FleetPart, TokenServing]] = []
    for (part, sheet), model in product(fleet.items(), models):
        # Of steps that nothing can take nothing is known.
        with suppress(FieldError):
            profile = None if sheet is None else token_profile(model, sheet, sheets, caution_std=0.0)
            found += [(part, item) for item in (() if profile is None else choices(profile, promise))]
    fitting = [(part, item) for part, item in found if item.memory_mib <= part.memory_mib_max]
    if found and not fitting:
        least, largest = min(item.memory_mib for _, item in found), max(part.memory_mib_max for part in fleet)
        detail = f"one request of such lengths needs {least / 1024:.1f} GiB, its network included,"
        detail += f" and the largest device has {largest / 1024:.1f} GiB"
        yield Fault(pointer="/tokens", code="memory-too-small", detail=detail)
    elif fitting and not any(item.rate_rps for _, item in fitting):
        best_ms = min(item.first_token_ms for _, item in fitting), min(item.inter_token_ms for _, item in fitting)
        detail = f"{best_ms[0]:.3g} ms to the first token and {best_ms[1]:.3g} ms between tokens are the best that any"
        detail += " device is believed to do, alone and hardly used; it is served as near as is known"
        missed = "first_token_ms" if first_ms < best_ms[0] else "inter_token_ms"
        yield Fault(pointer=f"/slo/{missed}", code="slo-unreachable", detail=detail)
    elif fitting:
        most = {part: max(item.rate_rps for at, item in fitting if at is part) for part, _ in fitting}
        yield from _of_rate(service, sum(part.gpus * rate_rps for part, rate_rps in most.items()))


def _of_latency(slo: Slo, best: Sequence[_BestOfType]) -> Iterator[Fault]:
    limit, end_to_end = limit_ms(slo), slo.scope is not SloScope.EXECUTION
    promise = Promise(limit_ms=0.0, percentile=slo.percentile, end_to_end=end_to_end)
    answers = [(float(np.nanmin(_answers_ms(promise, item))), item) for item in best]
    fastest_ms, fastest = min(answers, key=lambda item: item[0])
    if slo.kind in (SloKind.LATENCY, SloKind.DEADLINE) and limit is not None and limit < fastest_ms:
        field = "latency_ms" if slo.kind is SloKind.LATENCY else "deadline_s"
        takes = "answers within" if end_to_end else "takes"
        detail = f"{limit:g} ms is less than the best that any device is believed to do: {fastest.model} {takes}"
        detail += f" {fastest_ms:.3g} ms on {fastest.gpu_type}, alone and hardly used; it is served as near as is known"
        yield Fault(pointer=f"/slo/{field}", code="slo-unreachable", detail=detail)


def _answers_ms(promise: Promise, item: _BestOfType) -> Floats:
    """By batch, at hardly any load."""
    return settle(promise, np.array(BATCHES, dtype=np.float64), item.latency_ms, item.latency_ms).latency_ms


def _of_rate(work: Service | OfflineTask, most_rps: float) -> Iterator[Fault]:
    wanted, pointer = (
        (work.rate_rps_declared, "/rate_rps_declared") if isinstance(work, Service) else (task_rate_rps(work), "/slo")
    )
    if wanted > most_rps:
        detail = f"{wanted:,.4g} requests/s are more than all devices that may serve it"
        detail += f" are believed to do together ({most_rps:,.4g}/s)"
        yield Fault(pointer=pointer, code="rate-unservable", detail=detail)


def _rate_rps(part: FleetPart, best: Sequence[_BestOfType]) -> float:
    return max((item.rate_rps for item in best if item.gpu_type == part.gpu_type), default=0.0)


def _bests(suite: Suite, models: Sequence[str], fleet: Sequence[FleetPart]) -> list[_BestOfType]:
    asked = [(model, part.gpu_type, batch) for model in models for part in fleet for batch in BATCHES]
    names, types, batches = zip(*asked, strict=True)
    queries = Queries.of(names, types, batches, [100.0] * len(asked), [math.nan] * len(asked))
    answer = suite.predict(queries, Quantity.LATENCY_MS).mean.reshape(-1, len(BATCHES))
    rates = 1000.0 * np.array(BATCHES) / answer
    return [
        _BestOfType(model, gpu_type, row, float(np.nanmax(rate)))
        for (model, gpu_type, _), row, rate in zip(asked[:: len(BATCHES)], answer, rates, strict=True)
        if np.isfinite(row).any()
    ]
