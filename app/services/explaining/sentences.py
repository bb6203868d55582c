"""Reasons as sentences for people, from their code and facts.

Owns the wording; one template per code, held complete by a test. It refuses to add knowledge: whatever a sentence
says stands in the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from solvers.cycle.record import HoldReason
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.workload import ServiceMode

_REASONS: Mapping[ReasonCode, str] = {
    ReasonCode.CHEAPEST_FEASIBLE: "{subject} is the cheapest choice that keeps the SLO",
    ReasonCode.KEPT_STANDING: "{subject} stays as it is: it still keeps the SLO and changing it would not pay",
    ReasonCode.PINNED_BY_MODE: "{subject} is left alone because its mode does not allow changes here",
    ReasonCode.REJECTED_ALTERNATIVE: "{subject} was looked at and rejected",
    ReasonCode.NO_PROFILE: "nothing is known about {subject}: no profile",
    ReasonCode.SLO_UNREACHABLE: "{subject} cannot keep the SLO at any share, batch and clock known",
    ReasonCode.NO_DEVICE_OF_TYPE: "the fleet has no usable device of type {subject}",
    ReasonCode.TYPE_NOT_ALLOWED: "{subject} is not among the GPU types allowed",
    ReasonCode.NO_SHARE_LEFT: "{subject} has too little SM share left",
    ReasonCode.NO_MEMORY_LEFT: "{subject} has too little memory left",
    ReasonCode.POWER_CAP: "a power cap stands in the way on {subject}",
    ReasonCode.ANTI_AFFINITY: "{subject} is barred by neighbour rules",
    ReasonCode.TAINTED: "{subject} carries a taint that is not tolerated",
    ReasonCode.REPLICAS_MAX: "{subject} may not have more replicas",
    ReasonCode.REPLICAS_MIN: "{subject} has more replicas than its load needs, because its minimum says so",
    ReasonCode.CLIENTS_MAX: "{subject} already has as many processes as it can share itself among",
    ReasonCode.BUDGET: "the budget of {subject} does not allow it",
    ReasonCode.QUOTA: "the project's quota stands in the way for {subject}",
    ReasonCode.FILLS_SPARE_SHARE: "{subject} runs in share that nobody else needs now",
    ReasonCode.WAITS_IN_LINE: "{subject} waits in line",
    ReasonCode.COSTLIER: "{subject} would keep the SLO but costs more",
    ReasonCode.ACCURACY_TOO_LOW: "{subject} is not known to be as accurate as the service asks",
    ReasonCode.SOLVER_FAILED: "the solver of planner {subject} failed, so its first answer stands",
    ReasonCode.NEIGHBOURS_PRESSURE: "neighbours on {subject} would slow each other down too much",
}

_HOLDS: Mapping[HoldReason, str] = {
    HoldReason.NO_PLAN: "no planner produced a plan",
    HoldReason.FATAL_FINDINGS: "the verifier found something fatal",
    HoldReason.STALE_DATA: "the telemetry is too old to act on",
    HoldReason.NOTHING_TO_CHANGE: "the target already is what the plan asks for",
    HoldReason.SMALL_GAIN: "the gain is smaller than the policy's minimum",
    HoldReason.COOLDOWN: "the last change is too recent",
    HoldReason.CHURN_BUDGET: "the plan would start and stop more replicas than one change may",
    HoldReason.AWAITING_RENTAL: "the plan uses GPUs that have to be rented first",
    HoldReason.AWAITING_APPROVAL: "the plan waits for somebody to apply it",
    HoldReason.SHADOW_ONLY: "the plan was made only to be looked at",
    HoldReason.SUPERSEDED: "another plan was promoted in between",
    HoldReason.LEASE_LOST: "another planner took over in between",
}

_BASIS = ("profile_origin", "profile_source")
"""Facts about what a choice rests on, where that was not measured; they have a sentence of their own."""

# Words of a fact's name that are its unit, longest first; what is left is what the number means.
_UNITS = tuple(
    (re.compile(rf"(?:^|_){words}(?=_|$)"), text)
    for words, text in (
        ("usd_per_h", " $/h"),
        ("pct_sm", " % of the SMs"),
        ("pct", " %"),
        ("rps", " requests/s"),
        ("mib", " MiB"),
        ("mhz", " MHz"),
        ("ms", " ms"),
        ("s", " s"),
        ("w", " W"),
    )
)


def sentence(reason: Reason) -> str:
    """A reason in words."""
    facts = [fact for fact in reason.facts if fact.name not in _BASIS]
    source = next((fact.value for fact in reason.facts if fact.name == "profile_source"), None)
    unmeasured = "" if source is None else f" Nobody measured this configuration here: it is {source}."
    return _REASONS[reason.code].format(subject=reason.subject) + facts_text(facts) + "." + unmeasured


def hold_sentence(reason: HoldReason, facts: Iterable[Fact] = ()) -> str:
    """Why a gate held a plan back, in words."""
    return _HOLDS[reason] + facts_text(facts) + "."


def mode_sentence(workload: str, mode: ServiceMode, plan_id: str | None) -> str | None:
    """Why nothing moves by itself for a workload in this mode, in words; None for a mode in which it does."""
    if mode is ServiceMode.APPROVE and plan_id is not None:
        return f"{workload} is on approve: plan {plan_id} waits for somebody to apply it."
    if mode is ServiceMode.APPROVE:
        return f"{workload} is on approve, and no plan for it waits to be applied now."
    if mode is ServiceMode.SHADOW and plan_id is not None:
        return f"{workload} is on shadow: its plans are only recorded, the newest is {plan_id}."
    if mode is ServiceMode.SHADOW:
        return f"{workload} is on shadow: its plans are only recorded, and there is none yet."
    return f"{workload} is off: nobody plans for it." if mode is ServiceMode.OFF else None


def facts_text(facts: Iterable[Fact]) -> str:
    """Facts in brackets, or nothing."""
    shown = [_shown(fact) for fact in facts]
    return f" ({', '.join(shown)})" if shown else ""


def _shown(fact: Fact) -> str:
    if isinstance(fact.value, str):
        return f"{_words(fact.name)} {fact.value}"
    for pattern, unit in _UNITS:
        if pattern.search(fact.name):
            label = _words(pattern.sub("", fact.name, count=1)) or "cost"
            return f"{label} {fact.value:.4g}{unit}"
    return f"{_words(fact.name)} {fact.value:.4g}"


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ")
