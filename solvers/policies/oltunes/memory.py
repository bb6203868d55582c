"""What OLTunes' planner keeps between cycles: who came when, who runs where since when, the window, what was learned.

A snapshot tells how far tasks are, so a task's time per batch is measured between the first and the last look at it
while it ran in one configuration; a task that ended between two looks teaches nothing. A task that stood and stands no
more before it was done has lost its group: it goes ahead of everybody, and groups get smaller. The predictor is taught
by profiles before the first task (points without neighbours at the highest clock; of many, a seeded choice), then by
every task that has ended, and trained anew where it missed by theta. What nobody measured teaches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.profile import ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.models.base import Facts, Queries, Samples
from solvers.models.online.monitor import Trigger, relative_error
from solvers.planners.base import recalled
from solvers.policies.oltunes.learned import LearnedSolo, loaded, predictor
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import MS_PER_S, WindowPace

RETRAINED_AFTER, RETRAINED_PART = 200, 0.1
"""Outcomes, and part of all outcomes, before which training anew would find little that is new; the paper's rule alone
trains at every miss.
"""


@value
class SeenOutcome:
    """One outcome: a configuration, its share of a whole GPU's SMs, and the measured time of its batches."""

    model: ModelName
    gpu_type: GpuTypeName
    batch: int
    share_pct: float
    batch_ms: float


@value
class PendingLessons:
    """What was seen and not learned yet, and relative errors of late."""

    pending: tuple[SeenOutcome, ...] = ()
    errors: tuple[float, ...] = ()
    due: bool = False
    since: int = 0
    """Outcomes since the predictor was trained anew."""
    outcomes: int = 0
    lessons: int = 0
    retrainings: int = 0

    def seen(self, outcome: SeenOutcome, predicted_ms: float, theta: float) -> PendingLessons:
        error = relative_error(predicted_ms, outcome.batch_ms)
        errors, due = Trigger(theta=theta).after(self.errors, error)
        since = self.since + 1
        due = due and since >= max(RETRAINED_AFTER, RETRAINED_PART * self.outcomes)
        return replace(
            self,
            pending=(*self.pending, outcome),
            errors=errors,
            due=self.due or due,
            since=since,
            outcomes=self.outcomes + 1,
        )

    def learned(self, solo: LearnedSolo) -> tuple[LearnedSolo, PendingLessons]:
        """All that is pending, and the latest window again where predictions have missed."""
        taught = solo.update(samples_of(self.pending))
        done = replace(self, pending=(), lessons=self.lessons + 1)
        if not self.due:
            return taught, done
        return taught.retrained(), replace(done, errors=(), due=False, since=0, retrainings=self.retrainings + 1)


def samples_of(seen: Iterable[SeenOutcome]) -> Samples:
    outcomes = tuple(seen)
    queries = Queries.of(
        [each.model for each in outcomes],
        [each.gpu_type for each in outcomes],
        [each.batch for each in outcomes],
        [each.share_pct for each in outcomes],
    )
    return Samples.of(queries, [each.batch_ms for each in outcomes])


FORM = "oltunes-1"


@value
class ProgressLook:
    """How much of a task was done at a moment."""

    at_s: float
    done: int


@value
class Flight:
    """A task in its place. `group` counts groups; `predicted_ms` is of one batch, by the predictor of that cycle."""

    device: DeviceId
    gpu_type: GpuTypeName
    model: ModelName
    batch: int
    share_pct: int
    """Of the device."""
    predicted_ms: float
    group: int
    affinity: float | None = None
    sm_part: float = 1.0
    """Of a whole GPU, that the device is."""
    stood: bool = False
    """Whether a snapshot has shown it there."""
    first: ProgressLook | None = None
    last: ProgressLook | None = None

    def measured_ms(self) -> float | None:
        """Time of a batch as far as it was watched."""
        if self.first is None or self.last is None or self.last.done <= self.first.done:
            return None
        return MS_PER_S * self.batch * (self.last.at_s - self.first.at_s) / (self.last.done - self.first.done)

    def looked_at(self, look: ProgressLook) -> Flight:
        """One more look; before anything was done there is nothing to measure."""
        if look.done <= 0:
            return replace(self, stood=True)
        return replace(self, stood=True, first=self.first or look, last=look)


@value
class Known:
    """A task that is not done. `boost` above 0: it lost its place and goes ahead; the latest loss the furthest."""

    task: WorkloadId
    since_s: float
    boost: int = 0
    flight: Flight | None = None


@value
class OltunesMemory:
    """All of it. `solo` is the predictor as JSON, empty before it learned; `taught` names what it was taught first."""

    form: str = FORM
    predictor: str = ""
    pace: WindowPace | None = None
    lessons: PendingLessons = PendingLessons()
    known: tuple[Known, ...] = ()
    groups: int = 0
    opened_s: float | None = None
    """When tasks were given groups last: their window begins there. None: never."""
    taught: tuple[str, ...] = ()
    solo: str = ""

    @staticmethod
    def of(state: bytes, predictor: str, first: WindowPace) -> OltunesMemory:
        """What was kept; nothing where these bytes are of another kind. Another predictor begins anew."""
        found = recalled(OltunesMemory, state)
        fresh = OltunesMemory(predictor=predictor, pace=first)
        if found is None or found.pace is None:
            return fresh
        if found.predictor != predictor:
            return replace(fresh, pace=found.pace, known=found.known, groups=found.groups)
        return replace(found, pace=replace(found.pace, group_max=min(found.pace.group_max, first.group_max)))

    @property
    def boost_max(self) -> int:
        return max((item.boost for item in self.known), default=0)


def hear(memory: OltunesMemory, snapshot: Snapshot, parameters: OltunesParameters) -> OltunesMemory:
    """The memory after a snapshot: newcomers are noted, those who are done are judged, those who lost their place are
    put ahead.
    """
    pace = memory.pace
    assert pace is not None
    standing = grouped(snapshot.target.assignments, lambda item: item.workload)
    known = {item.task: item for item in memory.known}
    done = {status.workload: status.done for status in snapshot.job_statuses}
    undone = (item for item in snapshot.tasks if done.get(WorkloadId(item.id), 0) < item.inputs_total)
    lessons = memory.lessons
    lost: set[int] = set()
    kept: list[Known] = []
    for task in sorted(WorkloadId(item.id) for item in undone):
        item = known.pop(task, None) or Known(task=task, since_s=snapshot.taken_at_s)
        flight = item.flight
        if flight is not None and _stands(flight, standing[task]):
            look = ProgressLook(at_s=snapshot.taken_at_s, done=done.get(task, 0))
            item = replace(item, flight=flight.looked_at(look))
        elif flight is not None:
            if flight.stood:
                lost.add(flight.group)
                item = replace(item, boost=memory.boost_max + 1)
            item = replace(item, flight=None)
        kept.append(item)
    flying = {item.flight.group for item in kept if item.flight is not None}
    for item in known.values():
        if item.flight is None or not item.flight.stood:
            continue
        measured_ms = item.flight.measured_ms()
        if measured_ms is not None:
            lessons = lessons.seen(_seen(item.flight, measured_ms), item.flight.predicted_ms, parameters.theta)
        if item.flight.group not in flying | lost:
            flying.add(item.flight.group)
            pace = pace.after_success(parameters)
    for _ in lost:
        pace = pace.after_failure(parameters)
    return replace(memory, known=tuple(kept), lessons=lessons, pace=pace)


def _stands(flight: Flight, standing: Iterable[Assignment]) -> bool:
    place = (flight.device, flight.batch, flight.share_pct)
    return any((item.device, item.batch, item.share_pct_sm) == place for item in standing)


def _seen(flight: Flight, measured_ms: float) -> SeenOutcome:
    return SeenOutcome(
        model=flight.model,
        gpu_type=flight.gpu_type,
        batch=flight.batch,
        share_pct=flight.share_pct * flight.sm_part,
        batch_ms=measured_ms,
    )


SEED = 7
_NOTHING = ""


def predictor_of(
    memory: OltunesMemory, snapshot: Snapshot, samples_max: int
) -> tuple[OltunesMemory, LearnedSolo | None]:
    """The predictor by now, and the memory that holds it; None while it has met nothing."""
    facts = Facts(
        gpu_types={item.name: item for item in snapshot.gpu_types}, models={item.name: item for item in snapshot.models}
    )
    if memory.solo == _NOTHING:
        solo = predictor(memory.predictor, facts, SEED)
    else:
        solo = loaded(memory.predictor, json.loads(memory.solo), facts)
    before = memory
    memory, solo = _taught(memory, solo, snapshot, samples_max)
    if memory.lessons.pending:
        solo, lessons = memory.lessons.learned(solo)
        memory = replace(memory, lessons=lessons)
    if memory is not before:
        text = json.dumps(solo.dump(), sort_keys=True, separators=(",", ":"))
        memory = replace(memory, solo=text)
    return memory, solo if memory.solo != _NOTHING else None


def _taught(
    memory: OltunesMemory, solo: LearnedSolo, snapshot: Snapshot, samples_max: int
) -> tuple[OltunesMemory, LearnedSolo]:
    """Profiles that it was not taught yet: the first ones gone over several times, later ones point by point."""
    known = set(memory.taught)
    points: list[ProfilePoint] = []
    names: list[str] = []
    for profile in sorted(snapshot.profiles, key=lambda item: (item.model, item.gpu_type)):
        name = f"{profile.model}/{profile.gpu_type}"
        mine = [] if name in known else _measured(profile.points)
        if mine:
            names.append(name)
            points += mine
    if not points or not samples_max:
        return memory, solo
    if len(points) > samples_max:
        order = np.random.default_rng(SEED).permutation(len(points))[:samples_max]
        points = [points[index] for index in np.sort(order)]
    samples = samples_of(
        SeenOutcome(
            model=point.model,
            gpu_type=point.gpu_type,
            batch=point.batch,
            share_pct=point.share_pct_sm,
            batch_ms=point.latency_ms_mean,
        )
        for point in points
    )
    taught = solo.fit(samples) if memory.solo == _NOTHING else solo.update(samples)
    return replace(memory, taught=tuple(sorted((*memory.taught, *names)))), taught


def _measured(points: tuple[ProfilePoint, ...]) -> list[ProfilePoint]:
    alone = [point for point in points if not point.neighbours and not point.origin.is_believed]
    highest = max((point.clock_mhz_sm for point in alone), default=0)
    return [point for point in alone if point.clock_mhz_sm == highest]
