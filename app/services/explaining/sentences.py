"""Reasons, prices, candidates, relaxations and owners of knobs as sentences for people: for every code, kept complete
by a test. Whatever a sentence says stands in the value; which are told is chosen elsewhere.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice

from solvers.cycle.owners import KNOBS, KnobOwner, StandingOwners, knob_owners
from solvers.cycle.record import Authorship, HoldReason
from solvers.domain.device import Device
from solvers.domain.evidence import Candidate, Fact, Reason, ReasonCode, Relaxation, Resource, ShadowPrice
from solvers.domain.ids import WorkloadId
from solvers.domain.ownership import Owners
from solvers.domain.plan import Assignment, PlannerEnding, Unplaced
from solvers.domain.policy import Policy, Term
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.workload import ServiceMode, WorkloadKind
from solvers.planners.registry import pursued

_REASONS: Mapping[ReasonCode, str] = {
    ReasonCode.CHEAPEST_FEASIBLE: "{subject} is the cheapest choice that keeps the SLO",
    ReasonCode.KEPT_STANDING: "{subject} stays as it is: it still keeps the SLO and changing it would not pay",
    ReasonCode.KEPT_AT_RISK: "{subject} stays as it is, though nothing shows that it keeps the SLO",
    ReasonCode.NEAREST_KNOWN: "{subject} is the cheapest choice near the SLO, which nothing known keeps",
    ReasonCode.PINNED_BY_MODE: "{subject} is left alone because its mode does not allow changes here",
    ReasonCode.REJECTED_ALTERNATIVE: "{subject} was looked at and rejected",
    ReasonCode.NO_PROFILE: "nothing is known about {subject}: no profile",
    ReasonCode.SLO_UNREACHABLE: "{subject} cannot keep the SLO at any share, batch and clock known",
    ReasonCode.NO_DEVICE_OF_TYPE: "the fleet has no usable device of type {subject}",
    ReasonCode.TYPE_NOT_ALLOWED: "{subject} is not among the GPU types allowed",
    ReasonCode.NO_SHARE_LEFT: "{subject} has too little SM share left",
    ReasonCode.NO_MEMORY_LEFT: "{subject} has too little memory left",
    ReasonCode.ROOM_UNUSED: "{subject} has room that this plan does not use: the next one may",
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

_ENDINGS: Mapping[PlannerEnding, str] = {
    PlannerEnding.FINISHED: "which finished",
    PlannerEnding.WORK: "which its counted work ended",
    PlannerEnding.DEADLINE: "which its deadline ended",
    PlannerEnding.KILLED: "which was killed at its deadline: this is the best that it had found",
    PlannerEnding.FAILED: "which failed: this is the best that it had found",
}


def answered_words(found: Authorship) -> str:
    """Who made a plan, and how it came about."""
    if found.planner is None:
        said = f"nobody: no planner gave a plan; {found.asked} was asked first"
    elif found.planner != found.asked:
        said = f"{found.planner}, standing in for {found.asked}"
    else:
        own = f" with the plan of {found.by}" if found.by is not None else ""
        said = f"{found.planner}{own}, {_ENDINGS[found.ending]}"
    return "; ".join((said, *found.failures))


def given_words(assignments: Sequence[Assignment], unplaced: Iterable[Unplaced], *, pooled: bool) -> str:
    """What a bound takes as given: what its lane may not move, where each pool plans for itself who has which GPUs, and
    how much its jobs do: a plan that trains less may be cheaper by more than that is worth.
    """
    kinds = {item.kind for item in assignments} | {item.kind for item in unplaced}
    held = {item.workload for item in assignments if any(why.code is ReasonCode.PINNED_BY_MODE for why in item.reasons)}
    one = "1 workload that is not on auto left as it is"
    several = f"{len(held)} workloads that are not on auto left as they are"
    return (
        (" of its pools" if pooled else "")
        + (" that trains as much" if WorkloadKind.JOB in kinds else "")
        + (f" with {one if len(held) == 1 else several}" if held else "")
    )


def gap_words(cost_usd_per_h: float | None, bound_usd_per_h: float | None, given: str) -> str:
    """How far from the best a plan can be, and from the best of which plans, as `given_words` say. Nothing for who does
    not see its cost.
    """
    if cost_usd_per_h is None:
        return ""
    if cost_usd_per_h <= 0:
        return "nothing is cheaper"
    if bound_usd_per_h is None or bound_usd_per_h <= 0:
        return "how far from the optimum was not proven"
    above = 100 * max(0.0, cost_usd_per_h / bound_usd_per_h - 1)
    return f"at most {above:,.1f} % above the optimum{given}, which costs ${bound_usd_per_h:,.2f}/h or more"


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


def sentence(reason: Reason, pool: str | None = None) -> str:
    """A reason in words. `pool`: of the policy that decides, where several have devices of their own."""
    facts = [fact for fact in reason.facts if fact.name not in _BASIS]
    source = next((fact.value for fact in reason.facts if fact.name == "profile_source"), None)
    unmeasured = "" if source is None else f" Nobody measured this configuration here: it is {source}."
    numbers = {fact.name: fact.value for fact in facts if isinstance(fact.value, float | int)}
    words = _by_numbers(reason, numbers, pool) or _REASONS[reason.code].format(subject=reason.subject)
    if too_large(reason):
        facts = [fact for fact in facts if not fact.name.startswith("memory_mib")]
    return words + facts_text(facts) + "." + unmeasured


def _by_numbers(reason: Reason, numbers: Mapping[str, float], pool: str | None) -> str | None:
    """What the numbers of a reason say more exactly than its code; None where they do not."""
    subject = reason.subject
    if reason.code is ReasonCode.WAITS_IN_LINE and "rate_rps_short" in numbers:
        return (
            f"{subject} has all replicas that its planner gives it, and they serve only part of its rate as they begin;"
            " a longer latency limit, anti_affinity soft or off, more devices, other settings of the planner or another"
            " planner would help"
        )
    if reason.code is ReasonCode.COSTLIER and "usd_per_h_worth" in numbers:
        return f"{subject} would cost more than its work there is worth"
    if reason.code is ReasonCode.REPLICAS_MIN and "replicas_missing" in numbers:
        return f"{subject} has fewer replicas than it must have"
    if reason.code is ReasonCode.NO_DEVICE_OF_TYPE and pool is not None:
        return f"the pool of policy {pool} has no usable device of type {subject}"
    if reason.code is ReasonCode.NO_MEMORY_LEFT and too_large(reason):
        needed, there = numbers["memory_mib_needed"], numbers["memory_mib_device"]
        if there <= 0:
            return f"one replica needs {needed:.0f} MiB, and memory_margin_mib leaves nothing of any {subject}"
        return f"one replica needs {needed:.0f} MiB, and no {subject} has more than {there:.0f} MiB to plan with"
    return _rejected(subject, numbers) if reason.code is ReasonCode.REJECTED_ALTERNATIVE else None


def too_large(reason: Reason) -> bool:
    """Whether a reason says that no device of its type can ever hold a replica."""
    numbers = {fact.name: fact.value for fact in reason.facts}
    needed, there = numbers.get("memory_mib_needed"), numbers.get("memory_mib_device")
    return isinstance(needed, float | int) and isinstance(there, float | int) and needed > there


def _rejected(subject: str, numbers: Mapping[str, float]) -> str | None:
    """Why what was looked at was not taken."""
    head = f"{subject} was looked at and rejected"
    less = numbers.get("usd_per_h_less_at_shadow_prices")
    if less is not None:
        cheaper = "it would be cheaper in parts of devices, but no plan was found that gains by it"
        return f"{head}: {cheaper if less > DUST_USD else 'it would cost the same'}"
    room, chosen = numbers.get("room_usd_per_h"), numbers.get("chosen_room_usd_per_h")
    if room is None or chosen is None:
        return None
    if "rate_rps_short" in numbers:
        return f"{head}: with as many replicas as it may have, it would serve too little"
    if room >= chosen:
        return f"{head}: it takes no less room, by share or memory, whichever is more"
    margin_pct = numbers.get("stay_margin_pct")
    if margin_pct is not None and chosen - room <= chosen * margin_pct / 100:
        return f"{head}: what stands is left only for what saves more than {margin_pct:.0f} %"
    return f"{head}: it is cheaper, but there was no room for all of its replicas"


def hold_sentence(reason: HoldReason) -> str:
    """Why a gate held a plan back, in words."""
    return f"{_HOLDS[reason]}."


def mode_sentence(workload: str, mode: ServiceMode, plan_id: str | None, told: Iterable[str] = ()) -> str | None:
    """Why nothing moves by itself for a workload in this mode, in words; None for a mode in which it does."""
    if mode is ServiceMode.APPROVE and plan_id is not None:
        return f"{workload} is on approve: {'; '.join((f'plan {plan_id} waits for somebody to apply it', *told))}."
    if mode is ServiceMode.APPROVE:
        return f"{workload} is on approve, and no plan for it waits to be applied now."
    if mode is ServiceMode.SHADOW and plan_id is not None:
        return f"{workload} is on shadow: its plans are only recorded, the newest is {plan_id}."
    if mode is ServiceMode.SHADOW:
        return f"{workload} is on shadow: its plans are only recorded, and there is none yet."
    return off_sentence(workload) if mode is ServiceMode.OFF else None


def off_sentence(workload: str) -> str:
    return f"{workload} is off: nobody plans for it."


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
            return f"{label} {four_digits(fact.value)}{unit}"
    return f"{_words(fact.name)} {four_digits(fact.value)}"


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ")


_PRICES: Mapping[Resource, tuple[str, float]] = {
    Resource.GPU: ("one more GPU of type {subject} would save {usd} at shadow prices", 1.0),
    Resource.POWER_W: ("10 W more under the cap {subject} would save {usd} at shadow prices", 10.0),
    Resource.MEMORY_GIB: ("1 GiB more on every {subject} in use would save {usd} at shadow prices", 1.0),
    Resource.LATENCY_MS: ("10 ms more in the SLO of {subject} would save {usd} at shadow prices", 10.0),
    Resource.RATE_RPS: ("one request/s less of {subject} would save {usd} at shadow prices", 1.0),
    Resource.QUOTA_GPU: ("one GPU more in the quota of {subject} would save {usd} at shadow prices", 1.0),
    Resource.REPLICA: ("one replica more allowed to {subject} would save {usd} at shadow prices", 1.0),
    Resource.REPLICA_LEAST: ("one replica fewer that {subject} must have would save {usd} at shadow prices", 1.0),
    Resource.BUDGET_USD: ("$1/h more in the budget of {subject} would save {usd} at shadow prices", 1.0),
    Resource.GPU_TYPE: ("{subject} among the types allowed would save {usd} at shadow prices", 1.0),
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
    text = template.format(subject=price.subject, usd=f"${_number(float(f'{price.usd_per_h * units:.3g}'))}/h")
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


def candidate_sentence(item: Candidate, pool: str | None = None) -> str:
    """One candidate in words: how it would be, and why it is not."""
    if not item.feasible:
        return " ".join(sentence(reason, pool) for reason in item.reasons) or f"{item.gpu_type} is ruled out."
    knobs = f"{_number(item.replicas)} x {item.share_pct_sm} % of {item.gpu_type}, batch {item.batch}"
    clock = f", {item.clock_mhz_sm} MHz" if item.clock_mhz_sm else ""
    latency = f", {_number(item.latency_ms)} ms" if item.latency_ms is not None else ""
    how = f"{knobs}{clock}{latency} for ${_number(item.usd_per_h)}/h"
    if item.chosen:
        return f"{item.workload} has {how}."
    if item.usd_per_h_more is None:
        return f"{how} would keep the SLO, but nothing of it is free."
    if abs(item.usd_per_h_more) <= DUST_USD:
        return f"{how} would keep the SLO and cost the same at shadow prices."
    if item.usd_per_h_more > 0:
        return f"{how} would keep the SLO but cost ${_number(item.usd_per_h_more)}/h more{_scarce(item)}."
    return f"{how} would keep the SLO{_cheaper(item)}."


DUST_USD = 1e-6
"""What rounding leaves of equal costs."""


def _own_prices(item: Candidate) -> tuple[float, float] | None:
    """What a candidate and what was chosen cost by their own prices, where that is said."""
    facts = {fact.name: fact.value for reason in item.reasons for fact in reason.facts}
    here, chosen = facts.get("usd_per_h_here"), facts.get("usd_per_h_chosen")
    return (here, chosen) if isinstance(here, float) and isinstance(chosen, float) else None


def _scarce(item: Candidate) -> str:
    """Where it is no dearer by its own price, whose room it would take."""
    own = _own_prices(item)
    if own is not None and own[0] <= own[1]:
        return f", because what is scarce on {item.gpu_type} is worth more to others"
    return ""


def _cheaper(item: Candidate) -> str:
    """Why what is cheaper in parts of devices was not taken: it is not when whole, or no plan that gains was found."""
    less, own, whole = -(item.usd_per_h_more or 0.0), _own_prices(item), math.ceil(item.replicas)
    said = f" and be cheaper by ${_number(less)}/h at shadow prices"
    whole_usd = item.usd_per_h * whole / item.replicas if item.replicas > 0 else item.usd_per_h
    if whole_usd - item.usd_per_h > less:
        return f"{said}, but only in parts: {_count(whole, 'replica')} would cost ${_number(whole_usd)}/h"
    if own is not None and own[0] > own[1]:
        said += f", though dearer by its own price (${_number(own[0])}/h instead of ${_number(own[1])}/h)"
    return f"{said}, but of whole devices, and from what stands, no plan was found that gains by it"


def _count(number: int, what: str) -> str:
    return f"{number} whole {what}{'' if number == 1 else 's'}"


def four_digits(amount: float) -> str:
    """Four digits, or all that are whole."""
    return f"{amount:.4g}" if abs(amount) < 9999.5 else f"{amount:.0f}"


def _number(amount: float) -> str:
    return f"{amount:.6g}" if abs(amount) < 1e6 else f"{amount:.0f}"


NEARLY = 0.95
"""Of what a policy looks back: reports come now and then."""


def demand_sentence(demand: Demand, policy: Policy) -> str:
    """How much of a service must be served, and how far that looks back."""
    rate, whole_s = f"{four_digits(demand.rate_rps_upper)} requests/s must be served now", policy.demand_lookback_s
    if demand.origin is DemandOrigin.DECLARED:
        return f"{rate}, as declared: nobody has counted any lately"
    more = f"; its policy looks back {whole_s:.0f} s at most" if demand.window_s < NEARLY * whole_s else ""
    return f"{rate}, the most in any ten of the last {demand.window_s:.0f} seconds{more}"


def owner_words(owners: Iterable[KnobOwner]) -> dict[str, str]:
    """Owner of each knob, short: who by name, and which policy's."""
    return {item.knob.value: f"{item.policy}: {item.by} {item.name}" for item in owners}


def owner_sentences(owners: Owners, standing: StandingOwners, workload: str, places: Mapping[str, str]) -> list[str]:
    """Who owns what on the devices that host a workload, alike devices together, and what else than the policy's terms
    its plans are judged by. `places` are names of devices.
    """
    hosts = sorted(
        device for device, items in standing.on_device.items() if any(item.workload == workload for item in items)
    )
    by_owner: dict[tuple[KnobOwner, ...], list[str]] = defaultdict(list)
    for device in hosts:
        by_owner[knob_owners(owners, device, standing)].append(places.get(device, str(device)))
    sentences = []
    for knobs, devices in by_owner.items():
        ordered = sorted(knobs, key=lambda item: (item.by, item.name))
        for (by, name), group in groupby(ordered, key=lambda item: (item.by, item.name)):
            same = sorted(group, key=lambda item: KNOBS.index(item.knob))
            verb = "are" if len(same) > 1 else "is"
            what = _listed([item.knob.value for item in same])
            sentences.append(
                f"{what} on {_listed(sorted(devices))} {verb} owned by policy {same[0].policy}: {by} {name}"
            )
    policy = owners.policy_for(WorkloadId(workload))
    planner = standing.planner_of(policy)
    terms = pursued(policy, planner)
    if hosts and Term.COST not in terms:
        sentences.append(
            f"policy {policy.name} names no objective, and {planner} does not pursue cost: "
            f"its plans need only be no worse in {_listed([term.value for term in terms])}"
        )
    return sentences


PROBLEMS_TOLD_MAX = 50
_PROCESS = re.compile(r"(?<![\w./-])[a-z0-9._-]+/[a-z0-9._-]+#\d+")


def problem_sentences(
    problems: Mapping[str, Sequence[str]], about: str = "", project: str | None = None
) -> tuple[str, ...]:
    """What nodes say stands in their way: a command that they do not start for others, a process that dies. `about`:
    only of processes whose names begin so. `project`: as it may hear it, without the names of others' processes.
    """
    told = (f"node {node}: {text}" for node, texts in problems.items() for text in texts if f" {about}" in f" {text}")

    def known(name: re.Match[str]) -> str:
        return name[0] if name[0].startswith(f"{project}/") else "a process of another project"

    heard = told if project is None else (_PROCESS.sub(known, text) for text in told)
    return tuple(islice(heard, PROBLEMS_TOLD_MAX))


def places_of(devices: Iterable[Device]) -> dict[str, str]:
    return {device.id: f"{device.node} GPU {device.index}" for device in devices}


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
