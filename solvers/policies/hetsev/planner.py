"""HetSev as a planner: a controller for each service, one scheduler for all new instances.

What stands and keeps its promise stays; controllers grow and shrink; new instances wait in queues and are placed by
worst fit, never beside an instance of their model; what finds no place waits on, and services that lost the room they
counted on choose again. Replicas that no longer keep their promise are replaced. Nothing is forecast: it sees the mean
of the rates that were.

Queues are k groups of like memory and model, by medians under the L1 distance; groups are served fairly by their weight
(length times median waiting time), and everybody is tried once after the last success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import ModelName, ReplicaId, WorkloadId
from solvers.domain.value import value
from solvers.domain.workload import AntiAffinity
from solvers.planners.base import SERVING, Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept, recalled
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.policies.hetsev.deciding import (
    Action,
    Controlled,
    HetsevDecision,
    HetsevParameters,
    Remembered,
    decide,
    grow,
    opened,
    stood,
)
from solvers.problems.choice import Option
from solvers.problems.fleet import Places
from solvers.problems.needs import Need

ROUNDS_OF_MEDIANS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """One instance without a place, and how long it has been so."""

    workload: WorkloadId
    model: ModelName
    memory_mib: int
    waited_s: float


def weight(waits_s: Sequence[float]) -> float:
    """What a queue counts: its length times its median waiting time."""
    return len(waits_s) * float(np.median(waits_s)) if waits_s else 0.0


def grouped(pending: Sequence[Pending], groups: int, rng: np.random.Generator) -> list[list[int]]:
    """Numbers of like instances together, each group by falling waiting time."""
    if not pending:
        return []
    models = sorted({item.model for item in pending})
    most = max(item.memory_mib for item in pending) or 1
    points = np.array([[item.memory_mib / most, *(float(item.model == name) for name in models)] for item in pending])
    label = _medians(points, groups, rng)
    order = sorted(range(len(pending)), key=lambda number: (-pending[number].waited_s, number))
    return [[number for number in order if label[number] == group] for group in sorted(set(label.tolist()))]


def _medians(points: Floats, groups: int, rng: np.random.Generator) -> NDArray[np.intp]:
    distinct = np.unique(points, axis=0)
    chosen = rng.choice(len(distinct), size=min(groups, len(distinct)), replace=False)
    centres = distinct[np.sort(chosen)]
    label = np.zeros(len(points), dtype=np.intp)
    for _ in range(ROUNDS_OF_MEDIANS):
        nearest = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2).argmin(axis=1)
        moved = bool((nearest != label).any())
        label = nearest
        for group in range(len(centres)):
            if (label == group).any():
                centres[group] = np.median(points[label == group], axis=0)
        if not moved:
            break
    return label


def seat_all(
    pending: Sequence[Pending], queues: Sequence[Sequence[int]], round_size: int, seat: Callable[[int], bool]
) -> list[int]:
    """Try everybody, fairly between queues; the numbers of those that found no place."""
    waiting = [list(queue) for queue in queues]
    tried: set[int] = set()
    while chosen := _round(pending, waiting, tried, round_size):
        for number in chosen:
            if not seat(number):
                tried.add(number)
                continue
            tried.clear()
            waiting = [[other for other in queue if other != number] for queue in waiting]
    return sorted(number for queue in waiting for number in queue)


def _round(pending: Sequence[Pending], waiting: list[list[int]], tried: set[int], size: int) -> list[int]:
    """The next instances: again and again the head of the weightiest queue."""
    left = [[number for number in queue if number not in tried] for queue in waiting]
    chosen: list[int] = []
    while len(chosen) < size and any(left):
        weights = [weight([pending[number].waited_s for number in queue]) for queue in left]
        best = max(range(len(left)), key=lambda at: (bool(left[at]), weights[at], len(left[at]), -at))
        chosen.append(left[best].pop(0))
    return chosen


# --- A cycle


SPEC = PlannerSpec(
    name="hetsev",
    about="counts of instances per GPU type by an integer programme, co-located by worst fit",
    version="2",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT),
    pursues=SERVING,
)
FORM = "hetsev-2"
PASSES = 4
"""How often controllers that are short are asked again after others took the room they counted on."""


@value
class HetsevMemory:
    """What is kept between cycles."""

    form: str = FORM
    services: tuple[Remembered, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """One new instance on its way to a place."""

    need: Need
    option: Option
    since_s: float


@dataclass(slots=True, kw_only=True)
class _HetsevCycle:
    parameters: HetsevParameters
    draft: Draft
    models_on: dict[int, set[ModelName]] = field(default_factory=dict)

    def note_models(self) -> None:
        for settled in self.draft.settled.values():
            for item in settled.placed:
                self.models_on.setdefault(item.seat.device, set()).add(settled.need.model)
        for pinned in self.draft.case.pinned:
            self.models_on.setdefault(self.draft.fleet.index[pinned.device], set()).add(pinned.model)

    def places(self, need: Need, option: Option) -> Places:
        """Devices that may take one more instance."""
        found = self.draft.fleet.room(self.draft.search(need, option))
        if isinstance(found, ReasonCode):
            return np.zeros(0, dtype=np.intp)
        if self.parameters.anti_affinity is not AntiAffinity.HARD:
            return found
        free = [need.model not in self.models_on.get(int(device), ()) for device in found]
        return found[np.array(free, dtype=np.bool_)]

    def room(self, need: Need, option: Option) -> int:
        """How many more instances of an option fit."""
        places, fleet = self.places(need, option), self.draft.fleet
        hard = AntiAffinity.HARD in (self.parameters.anti_affinity, need.affinity.anti_affinity)
        if hard or need.affinity.dedicated:
            return len(places)
        by_share = np.floor(fleet.share_free[places] / option.share_pct)
        by_memory = np.floor(fleet.memory_free[places] / option.memory_mib)
        return int(np.minimum(np.minimum(by_share, by_memory), fleet.clients_free[places]).sum())

    def place(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Fairly between queues, each by worst fit; who found no place."""
        now_s, draft = self.draft.case.snapshot.taken_at_s, self.draft
        pending = [
            Pending(
                workload=item.need.workload,
                model=item.need.model,
                memory_mib=item.option.memory_mib,
                waited_s=max(0.0, now_s - item.since_s),
            )
            for item in waiting
        ]
        queues = grouped(pending, self.parameters.queues, draft.request.streams.stream("hetsev.queues"))
        left = seat_all(pending, queues, self.parameters.round_size, lambda number: self._seat(waiting[number]))
        return [waiting[number] for number in left]

    def _seat(self, item: _Waiting) -> bool:
        settled = self.draft.open(item.need)
        among = self.places(item.need, item.option)
        if self.draft.put(settled, item.option, partial(self._score, item.need), among) is not None:
            return False
        self.models_on.setdefault(settled.placed[-1].seat.device, set()).add(item.need.model)
        return True

    def _score(self, need: Need, places: Places) -> Floats:
        """Worst fit; with soft anti-affinity, devices with the model come last."""
        soft = self.parameters.anti_affinity is AntiAffinity.SOFT
        shunned = [soft and need.model in self.models_on.get(int(device), ()) for device in places]
        return np.asarray(self.draft.worst_fit(places) + 1e12 * np.array(shunned, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class HetSev(Recalling):
    parameters: HetsevParameters = field(default_factory=HetsevParameters)
    spec: PlannerSpec = SPEC

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and the windows and waits to go on with."""
        draft = Draft.of(request, opened(request, self.parameters))
        cycle = _HetsevCycle(parameters=self.parameters, draft=draft)
        before = {item.workload: item for item in _recalled(state)}
        after: dict[WorkloadId, Remembered] = {}
        decisions: dict[WorkloadId, HetsevDecision] = {}
        standing = draft.stand()
        for need in draft.needs:
            draft.keep(need, standing[need.workload], standing[need.workload])
        cycle.note_models()
        waiting: list[_Waiting] = []
        for need in draft.needs:
            remembered = before.get(need.workload, Remembered(workload=need.workload))
            decisions[need.workload], after[need.workload] = self._controlled(cycle, need, remembered)
            waiting += _new(decisions[need.workload], need, remembered, draft.case.snapshot.taken_at_s)
        started = {item.need.workload for item in waiting}
        left = self._placed(cycle, waiting, after)
        for need in draft.needs:
            _explain(draft, need, decisions[need.workload], left)
        acted = {item for item in started if item not in {pending.need.workload for pending in left}}
        acted |= {name for name, decision in decisions.items() if decision.stop}
        # Turns outlast a cycle in which there is no room to ask for.
        turns = {name: known.pending_since_s for name, known in after.items() if known.saturated_since_s is not None}
        turns |= {name: tuple(sorted(each.since_s for each in left if each.need.workload == name)) for name in started}
        found = {need.workload: stood(draft, need) if need.workload in acted else None for need in draft.needs}
        now_s = draft.case.snapshot.taken_at_s
        memory = [_remembered(after[name], turns.get(name, ()), on, now_s) for name, on in found.items()]
        reporter.event("hetsev.decided", started=float(len(waiting) - len(left)), pending=float(len(left)))
        proposal = draft.proposal(SPEC, tuple(_reason(name, decisions[name]) for name in sorted(decisions)))
        return Thought(
            proposal=proposal,
            state=kept(HetsevMemory(services=tuple(sorted(memory, key=lambda item: item.workload)))),
        )

    def _controlled(self, cycle: _HetsevCycle, need: Need, remembered: Remembered) -> tuple[HetsevDecision, Remembered]:
        """The service's decision, with what it stops gone from the books."""
        if not len(cycle.draft.options(need)):
            cycle.draft.refuse(need)
        decision, after = decide(self._service(cycle, need, remembered))
        draft, stopped = cycle.draft, list[Placed]()
        for item in decision.stop:
            placed = draft.open(need).placed
            if not draft.narrows(need, placed, [each for each in placed if each is not item]):
                draft.stop(need, item)
                stopped.append(item)
        return replace(decision, stop=tuple(stopped)), after

    def _service(self, cycle: _HetsevCycle, need: Need, remembered: Remembered) -> Controlled:
        return Controlled(
            draft=cycle.draft,
            need=need,
            running=tuple(cycle.draft.open(need).placed),
            parameters=self.parameters,
            memory=remembered,
            room=cycle.room,
        )

    def _placed(
        self, cycle: _HetsevCycle, waiting: list[_Waiting], after: dict[WorkloadId, Remembered]
    ) -> list[_Waiting]:
        """Place; services that lost the room they counted on choose again among what is left."""
        left, now_s = cycle.place(waiting), cycle.draft.case.snapshot.taken_at_s
        for _ in range(PASSES):
            short: dict[WorkloadId, list[_Waiting]] = {}
            for item in sorted(left, key=lambda item: (item.need.workload, item.since_s)):
                short.setdefault(item.need.workload, []).append(item)
            again: list[_Waiting] = []
            helpless: list[_Waiting] = []
            for name, its in short.items():
                other = grow(self._service(cycle, its[0].need, after[name]))
                again += _turns(other.start, its[0].need, [item.since_s for item in its], now_s)
                helpless += () if other.start else its
            if not again:
                break
            found_none = cycle.place(again)
            left = [*found_none, *helpless]
            if len(found_none) == len(again):
                break
        return left


def _recalled(state: bytes) -> tuple[Remembered, ...]:
    memory = recalled(HetsevMemory, state)
    return () if memory is None else memory.services


def _new(decision: HetsevDecision, need: Need, before: Remembered, now_s: float) -> list[_Waiting]:
    """New instances; as many as waited before go on waiting."""
    return _turns(decision.start, need, before.pending_since_s, now_s)


def _turns(options: Sequence[Option], need: Need, since_s: Sequence[float], now_s: float) -> list[_Waiting]:
    """Instances that take over the turns of those that waited, the longest first; who is one more begins now."""
    turns = (*since_s, *([now_s] * len(options)))
    return [_Waiting(need=need, option=option, since_s=at) for option, at in zip(options, turns, strict=False)]


def _remembered(
    after: Remembered, since_s: tuple[float, ...], stood: tuple[ReplicaId, ...] | None, now_s: float
) -> Remembered:
    """`stood`: what it acted on; None where it did nothing."""
    acted_at_s = after.acted_at_s if stood is None else now_s
    return replace(after, acted_at_s=acted_at_s, acted_on=stood, pending_since_s=since_s)


def _explain(draft: Draft, need: Need, decision: HetsevDecision, left: list[_Waiting]) -> None:
    """Why a service is left short: its window, or no place."""
    settled = draft.open(need)
    for item in left:
        if item.need.workload == need.workload:
            found = draft.places(settled, item.option)
            code = found if isinstance(found, ReasonCode) else ReasonCode.ANTI_AFFINITY
            draft.block(settled, code, item.option)
            return
    options = draft.fixed(need, 1)
    if settled.rate_rps_short and decision.action is not Action.NONE and options:
        found = draft.places(settled, options[0])
        draft.block(settled, found if isinstance(found, ReasonCode) else ReasonCode.ANTI_AFFINITY, options[0])


def _reason(name: WorkloadId, decision: HetsevDecision) -> Reason:
    code = ReasonCode.KEPT_STANDING if decision.action is Action.NONE else ReasonCode.CHEAPEST_FEASIBLE
    facts = (
        Fact(name="action", value=decision.action.value),
        Fact(name="saturation", value=round(min(decision.load, 1e6), 6)),
        Fact(name="started", value=float(len(decision.start))),
        Fact(name="stopped", value=float(len(decision.stop))),
        Fact(name="solver", value=decision.solver),
        Fact(name="objective", value=round(decision.objective, 6)),
        Fact(name="fell_back", value=str(decision.fell_back).lower()),
    )
    return Reason(code=code, subject=name, facts=facts)
