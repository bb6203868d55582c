"""Prices, candidates and relaxations as sentences for people.

Owns their wording; like the sentences of reasons, these say nothing that the values do not. It refuses to choose which
are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.services.explaining.sentences import sentence
from solvers.domain.insight import Candidate, Relaxation, Resource, ShadowPrice

_PRICES: Mapping[Resource, tuple[str, float]] = {
    Resource.GPU: ("one more GPU of type {subject} would save {usd}", 1.0),
    Resource.POWER_W: ("10 W more under the cap {subject} would save {usd}", 10.0),
    Resource.MEMORY_GIB: ("1 GiB more on every {subject} in use would save {usd}", 1.0),
    Resource.LATENCY_MS: ("10 ms more in the SLO of {subject} would save {usd}", 10.0),
    Resource.RATE_RPS: ("one request/s less of {subject} would save {usd}", 1.0),
    Resource.QUOTA_GPU: ("one GPU more in the quota of {subject} would save {usd}", 1.0),
    Resource.REPLICA: ("one replica more allowed to {subject} would save {usd}", 1.0),
    Resource.REPLICA_LEAST: ("one replica fewer that {subject} must have would save {usd}", 1.0),
    Resource.BUDGET_USD: ("$1/h more in the budget of {subject} would save {usd}", 1.0),
    Resource.GPU_TYPE: ("{subject} among the types allowed would save {usd}", 1.0),
}

_RELAXATIONS: Mapping[Resource, str] = {
    Resource.GPU: "{more} more {subject} ({now} now)",
    Resource.POWER_W: "{more} W more under the cap {subject} ({needed} W instead of {now} W)",
    Resource.MEMORY_GIB: "{subject} with {needed} GiB for replicas instead of {now} GiB",
    Resource.LATENCY_MS: "an SLO of at least {needed} ms instead of {now} ms",
    Resource.RATE_RPS: "{subject}, which has a lower priority, served {needed} requests/s instead of {now}",
    Resource.QUOTA_GPU: "a quota of {needed} GPUs for project {subject} instead of {now}",
    Resource.REPLICA: "up to {needed} replicas of {subject} instead of {now}",
    Resource.REPLICA_LEAST: "at least {needed} replicas of {subject} instead of {now}",
    Resource.BUDGET_USD: "a budget of ${needed}/h for {subject} instead of ${now}/h",
    Resource.GPU_TYPE: "{subject} among the GPU types allowed",
}


def price_sentence(price: ShadowPrice) -> str:
    """What some more of something scarce is worth, in words."""
    template, units = _PRICES[price.resource]
    if not price.binding:
        return f"{_nothing(price)} does not bind."
    text = template.format(subject=price.subject, usd=f"${_number(price.usd_per_h * units)}/h")
    return f"{text[0].upper()}{text[1:]}." if price.resource is not Resource.GPU_TYPE else f"{text}."


def _nothing(price: ShadowPrice) -> str:
    names = {
        Resource.GPU: "The number of {} GPUs",
        Resource.POWER_W: "The power cap {}",
        Resource.MEMORY_GIB: "The memory of {}",
        Resource.LATENCY_MS: "The SLO of {}",
        Resource.RATE_RPS: "The rate of {}",
        Resource.QUOTA_GPU: "The quota of {}",
        Resource.REPLICA: "The most replicas of {}",
        Resource.REPLICA_LEAST: "The fewest replicas of {}",
        Resource.BUDGET_USD: "The budget of {}",
    }
    return names.get(price.resource, "What is allowed to {}").format(price.subject)


def way_sentence(items: Sequence[Relaxation]) -> str:
    """One way out, in words: what would have to give together."""
    return " and ".join(_relaxed(item) for item in items)


def _relaxed(item: Relaxation) -> str:
    return _RELAXATIONS[item.resource].format(
        subject=item.subject,
        now=_number(item.value_now),
        needed=_number(item.value_needed),
        more=_number(item.value_needed - item.value_now),
    )


def candidate_sentence(item: Candidate) -> str:
    """One candidate in words: how it would be, and why it is not."""
    if not item.feasible:
        return " ".join(sentence(reason) for reason in item.reasons) or f"{item.gpu_type} is ruled out."
    knobs = f"{_number(item.replicas)} x {item.share_pct_sm} % of {item.gpu_type}, batch {item.batch}"
    clock = f", {item.clock_mhz_sm} MHz" if item.clock_mhz_sm else ""
    latency = f", {_number(item.latency_ms)} ms" if item.latency_ms is not None else ""
    how = f"{knobs}{clock}{latency} for ${_number(item.usd_per_h)}/h"
    if item.chosen:
        return f"{item.workload} has {how}."
    if item.usd_per_h_more is None:
        return f"{how} would keep the SLO, but nothing of it is free."
    if item.usd_per_h_more > 0:
        return f"{how} would keep the SLO but cost ${_number(item.usd_per_h_more)}/h more{_scarce(item)}."
    return (
        f"{how} would keep the SLO and by shadow prices cost ${_number(-item.usd_per_h_more)}/h less: "
        "only whole devices, or what already stands, speak against it."
    )


def _scarce(item: Candidate) -> str:
    """Where it is no dearer by its own price, whose room it would take."""
    facts = {fact.name: fact.value for reason in item.reasons for fact in reason.facts}
    here, chosen = facts.get("usd_per_h_here"), facts.get("usd_per_h_chosen")
    if isinstance(here, float) and isinstance(chosen, float) and here <= chosen:
        return f", because what is scarce on {item.gpu_type} is worth more to others"
    return ""


def _number(amount: float) -> str:
    return f"{amount:.6g}" if abs(amount) < 1e6 else f"{amount:.0f}"
