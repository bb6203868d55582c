"""HetSev's controller of one service: whether to grow or to shrink, and by how many instances of each type.

The service is read as the paper's programme (types are the fixed configuration on each class of devices, and every
other configuration that still runs); two triggers with their windows start it, and the plain rules stand in for it.
Parameters are the paper's values, and for those that it leaves unstated the defaults of our reading.

Where instances share GPUs without limits, devices are put in time slices: those of GPU types on which every model that
may come was measured beside others without limits, without training jobs and without replicas that must stay as they
are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId, ReplicaId, WorkloadId
from solvers.domain.plan import DeviceSetting
from solvers.domain.value import value
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.engines.base import Limits, create
from solvers.planners.base import PlanRequest
from solvers.planners.case import Case
from solvers.planners.counting.scaling import CountScaling, Direction, scale, scale_type_by_type, shrink_by_one
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.planners.traits import Sample, mean_rate_rps, sampled
from solvers.planners.tuning import Counts, Tune, TunedRecord
from solvers.problems.choice import Option
from solvers.problems.needs import Need

LIMITED, UNLIMITED = "limited", "unlimited"


class Resources(StrEnum):
    """What new instances are counted against."""

    TYPES = "types"
    """Room on the very devices of each type, anti-affinity and every owner's rule included."""
    SUMS = "sums"
    """Memory of all GPUs together, as printed; what finds no place then waits."""


@value
class HetsevParameters(TunedRecord):
    """What may be tuned. Times in seconds."""

    saturation: Annotated[
        float,
        Tune("demand over capacity above which a service grows, and below which it stays when it shrinks", 0.05, 1),
    ] = 0.80
    target_saturation: Annotated[
        float, Tune("demand over capacity that growth aims at; 1 grows to the demand itself, as printed", 0.05, 1)
    ] = 0.80
    rate_window_s: Annotated[
        float, Tune("demand is the mean over so long; 0: the busiest moment that the snapshot tells of", 0, 86_400)
    ] = 120.0
    sustained_s: Annotated[float, Tune("how long a service must be saturated before it grows", 0, 86_400)] = 30.0
    cooldown_s: Annotated[
        float,
        Tune(
            "how long an instance must have been dispensable, and nothing have been changed, before it goes", 0, 86_400
        ),
    ] = 300.0
    """Aligned with the window of the Kubernetes autoscaler."""
    risk_per_s: Annotated[
        float, Tune("lambda at a steady rate: part of an instance's cost that a second of its launch counts", 0, 1000)
    ] = 0.05
    rates_remembered: Annotated[
        int, Tune("lambda grows with the coefficient of variation of so many rates", 1, 1000)
    ] = 10
    queues: Annotated[int, Tune("k: groups in which new instances wait for a place", 1, 64)] = 4
    round_size: Annotated[int, Tune("beta: instances that are picked from the queues at a time", 1, 10_000)] = 8
    sharing: Annotated[
        str,
        Tune(
            "limited: instances on a GPU divide its SMs; unlimited: each may use all of them, where that was measured",
            choices=(LIMITED, UNLIMITED),
        ),
    ] = LIMITED
    """The paper limits nobody's SMs."""
    share_pct: Annotated[
        int,
        Tune(
            "SM share of every instance, where limited; 0: of as many as may meet on a GPU, each the same part of it",
            0,
            100,
        ),
    ] = 0
    """Shares are fixed, so the least harm is done by cutting a GPU into as many parts as there can be tenants."""
    tenants_max: Annotated[
        int,
        Tune(
            "so many instances meet on a GPU at most, unless share_pct says so; fewer where there are fewer models",
            1,
            16,
        ),
    ] = 4
    batches: Annotated[
        Counts, Tune("batch of each model, as in resnet50=8,bert=2; without one, the batch that serves most")
    ] = Counts()
    anti_affinity: Annotated[
        AntiAffinity, Tune("whether instances of one model may share a GPU; the owner's own rule holds beside it")
    ] = AntiAffinity.HARD
    allow_substitution: Annotated[
        bool, Tune("whether running instances may be traded for instances of other types")
    ] = False
    resources: Annotated[
        Resources, Tune("what new instances are counted against: room by type, or memory of all GPUs, as printed")
    ] = Resources.TYPES
    engine: Annotated[str, Tune("who solves the integer programme", choices=("highs", "cbc", "cp-sat"))] = "highs"


# --- How instances share GPUs


def opened(request: PlanRequest, parameters: HetsevParameters) -> Case:
    """The request, prepared for instances with limits on their shares or without."""
    limited = Case.of(request)
    own = dict(_time_sliced(limited)) if parameters.sharing == UNLIMITED else {}
    return Case.of(request, own, tenants_of(limited, parameters) - 1) if own else limited


def tenants_of(case: Case, parameters: HetsevParameters) -> int:
    """How many instances can meet on a GPU."""
    if parameters.anti_affinity is not AntiAffinity.HARD:
        return parameters.tenants_max
    models = {need.model for need in case.needs if need.kind is not WorkloadKind.JOB}
    return max(1, min(parameters.tenants_max, len(models | {item.model for item in case.pinned})))


def _time_sliced(case: Case) -> Iterator[tuple[DeviceId, DeviceSetting]]:
    taken = {item.device for item in case.pinned}
    taken |= {item.device for item in case.snapshot.target.assignments if item.kind is WorkloadKind.JOB}
    models = {need.model for need in case.needs if need.kind is not WorkloadKind.JOB}
    profiles = case.beliefs.profiles
    for device in case.snapshot.devices:
        known = (profiles.get((model, device.gpu_type)) for model in models)
        measured = all(profile is None or profile.unlimited is not None for profile in known)
        if measured and device.id not in taken and device.mode is not DeviceMode.DEDICATED:
            held = case.held.get(device.id, DeviceSetting(device=device.id))
            yield device.id, replace(held, mode=DeviceMode.TIME_SLICED)


# --- The controller


DUST = 1e-6
USD_PER_H_LEAST = 0.01
"""Where GPUs cost nothing, fewer of them are still better."""
SAMPLES_MAX = 1000
WHOLE_PCT = 100
FREE_MS = 1e12
"""Limit on latency of what promises none."""


class Action(StrEnum):
    """What a service does in this cycle."""

    NONE = "none"
    OUT = "out"
    IN = "in"


@value
class Remembered:
    """What is kept of one service. Moments in seconds; None: not now."""

    workload: WorkloadId
    rates: tuple[Sample, ...] = ()
    saturated_since_s: float | None = None
    dispensable_since_s: float | None = None
    acted_at_s: float | None = None
    pending_since_s: tuple[float, ...] = ()
    """Of instances that found no place, the longest waiting first."""
    acted_on: tuple[ReplicaId, ...] | None = None
    """What stood when it acted in the last cycle; None where it did nothing."""

    def learning(self, standing: tuple[ReplicaId, ...]) -> Remembered:
        """Knowing what became of the last act: its windows begin anew where it was done, and go on where the plan was
        held, so that services that are short together ask together.
        """
        if self.acted_on is None:
            return self
        if self.acted_on == standing:
            return replace(self, acted_on=None, acted_at_s=None)
        return replace(self, acted_on=None, saturated_since_s=None, dispensable_since_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HetsevDecision:
    """What to start and what to stop, and how it was found."""

    action: Action
    start: tuple[Option, ...] = ()
    stop: tuple[Placed, ...] = ()
    load: float
    solver: str = "none"
    objective: float = 0.0
    fell_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """One service's types: those that may be started first, then what else runs."""

    starts: tuple[Option, ...]
    members: tuple[tuple[Placed, ...], ...]
    """By type: what runs."""
    scaling: CountScaling


Room = Callable[[Need, Option], int]
"""How many more instances of an option there is room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controlled:
    """One service under control: what runs of it, what is remembered, and where to ask for room."""

    draft: Draft
    need: Need
    running: tuple[Placed, ...]
    parameters: HetsevParameters
    memory: Remembered
    room: Room

    @property
    def rate_rps(self) -> float:
        parameters = self.parameters
        if not parameters.rate_window_s or not self.memory.rates:
            return self.need.rate_rps_least
        return mean_rate_rps(self.memory.rates, parameters.rate_window_s)

    @property
    def load(self) -> float:
        """Demand over what runs can serve (the paper's saturation); inf where nothing does."""
        capacity_rps = sum(item.capacity_rps for item in self.running)
        if self.rate_rps <= 0:
            return 0.0
        return self.rate_rps / capacity_rps if capacity_rps > 0 else math.inf

    @property
    def risk_per_s(self) -> float:
        """The paper's lambda: the more, the more the rate varied lately."""
        rates = [item.rate_rps for item in self.memory.rates[-self.parameters.rates_remembered :]]
        mean = float(np.mean(rates)) if rates else 0.0
        return self.parameters.risk_per_s * (1 + (float(np.std(rates)) / mean if mean > 0 else 0.0))


def stood(draft: Draft, need: Need) -> tuple[ReplicaId, ...]:
    """Whatever stands of it, as it was found."""
    return tuple(sorted(item.replica for item in draft.case.standing.get(need.workload, [])))


def decide(service: Controlled) -> tuple[HetsevDecision, Remembered]:
    """What to do now, and what to remember of it."""
    parameters, need = service.parameters, service.need
    before = service.memory.learning(stood(service.draft, need))
    now_s = service.draft.case.snapshot.taken_at_s
    rates = _remembered((*before.rates, sampled(service.draft.case, need)), parameters)
    after = replace(before, rates=rates, saturated_since_s=None, dispensable_since_s=None)
    service = replace(service, memory=after)
    load = service.load
    nothing = HetsevDecision(action=Action.NONE, load=load)
    starved = len(service.running) < need.replicas_floor or math.isinf(load)
    if starved or load > parameters.saturation * (1 + DUST):
        since = now_s if before.saturated_since_s is None else before.saturated_since_s
        after = replace(after, saturated_since_s=since)
        waits = not starved and now_s - since < parameters.sustained_s
        return (nothing if waits else grow(service)), after
    shrinking = programme_of(service, Direction.IN)
    if not shrink_by_one(shrinking.scaling).any():
        return nothing, after
    since = now_s if before.dispensable_since_s is None else before.dispensable_since_s
    after = replace(after, dispensable_since_s=since)
    acted_at_s = -math.inf if before.acted_at_s is None else before.acted_at_s
    waits = now_s - max(since, acted_at_s) < parameters.cooldown_s
    return (nothing if waits else _solved(service, shrinking, Action.IN)), after


def _remembered(rates: tuple[Sample, ...], parameters: HetsevParameters) -> tuple[Sample, ...]:
    """So many rates as the window and the spread ask for."""
    now_s = rates[-1].at_s
    recent = [at for at, item in enumerate(rates) if 0 <= now_s - item.at_s <= parameters.rate_window_s]
    return rates[max(0, min([len(rates) - parameters.rates_remembered, *recent])) :][-SAMPLES_MAX:]


def grow(service: Controlled) -> HetsevDecision:
    """The cheapest growth that brings the load to what is aimed at."""
    free = service.parameters.allow_substitution and bool(service.running)
    return _solved(service, programme_of(service, Direction.FREE if free else Direction.OUT), Action.OUT)


def _solved(service: Controlled, programme: Programme, action: Action) -> HetsevDecision:
    """By the programme; by the plain rule where the engine finds nothing, or nothing better."""
    problem, parameters = programme.scaling, service.parameters
    if not len(problem.usd):
        return HetsevDecision(action=Action.NONE, load=service.load)
    plain = shrink_by_one(problem) if action is Action.IN else scale_type_by_type(problem)
    limits = Limits(time_s=service.draft.request.budget.deadline_s / 4)
    change, answer = scale(problem, create(parameters.engine), limits)
    fell_back = change is None or (
        problem.feasible(plain) and problem.objective(plain) < problem.objective(change) - DUST
    )
    chosen = plain if fell_back or change is None else change
    return HetsevDecision(
        action=action if chosen.any() else Action.NONE,
        start=_started(programme, chosen),
        stop=_stopped(programme, chosen),
        load=service.load,
        solver=f"{parameters.engine}: {answer.status.value}",
        objective=problem.objective(chosen),
        fell_back=fell_back,
    )


def _started(programme: Programme, change: Whole) -> tuple[Option, ...]:
    counted = zip(programme.starts, change[: len(programme.starts)], strict=True)
    return tuple(option for option, count in counted for _ in range(max(0, int(count))))


def _stopped(programme: Programme, change: Whole) -> tuple[Placed, ...]:
    counted = zip(programme.members, change, strict=True)
    return tuple(item for members, count in counted for item in members[len(members) + min(0, int(count)) :])


def programme_of(service: Controlled, direction: Direction) -> Programme:
    """The paper's programme for this service. Resources: room by type or memory in all, as set, and the owner's bounds:
    ceiling and floor, budget, quota.
    """
    draft, need, parameters = service.draft, service.need, service.parameters
    starts = draft.fixed(need, _share_pct(draft, need, parameters), parameters.batches.by_name.get(need.model))
    options = {_key(option): option for option in starts}
    shrinks = direction is Direction.IN
    aimed_at = min(parameters.saturation, parameters.target_saturation) if shrinks else parameters.target_saturation
    members: dict[tuple[int, ...], list[Placed]] = {key: [] for key in options}
    for item in _last_to_first(service):
        if item.option is not None:
            options.setdefault(_key(item.option), item.option)
            members.setdefault(_key(item.option), []).append(item)
    listed = list(options.values())
    counts = np.array([len(members[key]) for key in options], dtype=np.int64)
    growing = np.arange(len(listed)) < len(starts)
    if parameters.resources is Resources.SUMS:
        held = np.array([[option.memory_mib for option in listed]], dtype=np.float64)
        free = 0.0 if shrinks else float(np.maximum(draft.fleet.memory_free, 0.0).sum())
        hardware, room = held, held @ counts + free
    else:
        spare = [service.room(need, option) for option in starts] if not shrinks else [0] * len(starts)
        hardware, room = np.eye(len(listed)), counts + np.array(spare + [0] * (len(listed) - len(starts)))
    needs, limits = _resources(draft, need, listed, counts)
    return Programme(
        starts=tuple(starts),
        members=tuple(tuple(members[key]) for key in options),
        scaling=CountScaling(
            usd=np.array([_usd_per_h(draft, option) for option in listed]),
            launch_s=np.full(len(listed), draft.launch_s(need)),
            rate_rps=np.array([option.capacity_rps for option in listed]),
            latency_ms=np.where(growing, [option.latency_ms for option in listed], np.inf),
            needs=np.concatenate([hardware, needs]),
            limits=np.concatenate([room, limits]),
            running=counts,
            wanted_rps=service.rate_rps / aimed_at,
            limit_ms=FREE_MS if need.limit_ms is None else need.limit_ms * (1 + DUST),
            risk_per_s=service.risk_per_s,
            direction=direction,
        ),
    )


def _last_to_first(service: Controlled) -> list[Placed]:
    """What runs, in the order in which it is stopped last: the oldest first, before them the oldest of every failure
    domain where the owner asks for several.
    """
    items = sorted(service.running, key=lambda item: "" if item.standing is None else item.standing.replica)
    if service.need.domains_floor < 2:
        return items
    domains = [int(service.draft.fleet.failure_domain[item.seat.device]) for item in items]
    known = [domain in domains[:at] for at, domain in enumerate(domains)]
    return [items[at] for at in sorted(range(len(items)), key=known.__getitem__)]


def _share_pct(draft: Draft, need: Need, parameters: HetsevParameters) -> int:
    """What every instance gets: as set, or the largest measured part that lets all possible tenants meet on a GPU."""
    if parameters.share_pct:
        return parameters.share_pct
    shares = draft.options(need).share_pct
    fitting = shares[shares <= WHOLE_PCT // tenants_of(draft.case, parameters)]
    return int(fitting.max()) if len(fitting) else 1


def _key(option: Option) -> tuple[int, ...]:
    return option.device_class, option.share_pct, option.batch, option.memory_mib


def _usd_per_h(draft: Draft, option: Option) -> float:
    """The paper's price: of the memory that the instance holds."""
    kind = draft.fleet.classes[option.device_class]
    return max(kind.usd_per_h, USD_PER_H_LEAST) * option.memory_mib / kind.memory_mib


def _resources(draft: Draft, need: Need, listed: list[Option], counts: Whole) -> tuple[Floats, Floats]:
    """What the owner bounds: instances from above and from below, what they cost, their part of the project's quota."""
    gpus = np.array([draft.fleet.classes[item.device_class].gpu_part * item.share_pct / 100 for item in listed])
    usd = np.array([item.usd_per_h for item in listed])
    ones = np.ones(len(listed))
    quota = draft.fleet.quota_left.get(need.project, FREE_MS) + float(gpus @ counts)
    budget = FREE_MS if need.budget_usd_per_h is None else need.budget_usd_per_h
    # Half an instance of slack keeps whole numbers clear of rounding.
    floor = min(need.replicas_floor, need.replicas_max) - 0.5
    needs = np.stack([ones, -ones, usd, gpus])
    return needs, np.array([need.replicas_max + 0.5, -floor, budget, quota])
