"""What OLTunes' planner keeps between cycles: who came when, who runs where since when, the window, what was learned.

Owns the evaluator's ears. A snapshot tells how far tasks are, so a task's time per batch is measured between the first
and the last look at it while it ran in one configuration; a task that ended between two looks teaches nothing. A task
that stood and stands no more before it was done has lost its group: it goes ahead of everybody, and groups get smaller.
It refuses to place anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.value import value
from solvers.planners.memory import recalled
from solvers.policies.oltunes.evaluating import PendingLessons, SeenOutcome
from solvers.policies.oltunes.feedback import ahead, group_is_done
from solvers.policies.oltunes.learned import LearnedSolo
from solvers.policies.oltunes.planning.parameters import OltunesPlanningParameters
from solvers.policies.oltunes.window import WindowPace

FORM = "oltunes-1"
MS_PER_S = 1000.0


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
    predicted_ms: float
    group: int
    affinity: float | None = None
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
        if found is None or found.form != FORM or found.pace is None:
            return fresh
        if found.predictor != predictor:
            return replace(fresh, pace=found.pace, known=found.known, groups=found.groups)
        return replace(found, pace=replace(found.pace, group_max=min(found.pace.group_max, first.group_max)))

    @property
    def boost_max(self) -> int:
        """Of everybody."""
        return max((item.boost for item in self.known), default=0)


@value
class Heard:
    """What a snapshot tells of tasks."""

    at_s: float
    done: tuple[tuple[WorkloadId, int], ...]
    waiting: tuple[WorkloadId, ...]
    """Tasks that still have work, in order."""


def hear(
    memory: OltunesMemory,
    heard: Heard,
    standing: Mapping[WorkloadId, list[Assignment]],
    parameters: OltunesPlanningParameters,
) -> OltunesMemory:
    """The memory after a snapshot: newcomers are noted, those who are done are judged, those who lost their place are
    put ahead.
    """
    pace = memory.pace
    assert pace is not None
    known = {item.task: item for item in memory.known}
    done = dict(heard.done)
    lessons = memory.lessons
    lost: set[int] = set()
    kept: list[Known] = []
    for task in heard.waiting:
        item = known.pop(task, None) or Known(task=task, since_s=heard.at_s)
        flight = item.flight
        if flight is not None and _stands(flight, standing.get(task, ())):
            item = replace(item, flight=flight.looked_at(ProgressLook(at_s=heard.at_s, done=done.get(task, 0))))
        elif flight is not None:
            if flight.stood:
                lost.add(flight.group)
                item = replace(item, boost=ahead(memory.boost_max))
            item = replace(item, flight=None)
        kept.append(item)
    flying = {item.flight.group for item in kept if item.flight is not None}
    for item in known.values():
        if item.flight is None or not item.flight.stood:
            continue
        measured_ms = item.flight.measured_ms()
        if measured_ms is not None:
            lessons = lessons.seen(_seen(item.flight, measured_ms), item.flight.predicted_ms, parameters.theta)
        if group_is_done(item.flight.group, flying | lost):
            flying.add(item.flight.group)
            pace = pace.after_success(parameters.scheduler)
    for _ in lost:
        pace = pace.after_failure(parameters.scheduler)
    return replace(memory, known=tuple(kept), lessons=lessons, pace=pace)


def _stands(flight: Flight, standing: Iterable[Assignment]) -> bool:
    place = (flight.device, flight.batch, flight.share_pct)
    return any((item.device, item.batch, item.share_pct_sm) == place for item in standing)


def _seen(flight: Flight, measured_ms: float) -> SeenOutcome:
    return SeenOutcome(
        model=flight.model,
        gpu_type=flight.gpu_type,
        batch=flight.batch,
        share_pct=flight.share_pct,
        batch_ms=measured_ms,
    )


def learned(memory: OltunesMemory, solo: LearnedSolo) -> tuple[OltunesMemory, LearnedSolo]:
    """One step of learning for every task that was judged; training again where predictions missed by theta."""
    if not memory.lessons.pending:
        return memory, solo
    taught, lessons = memory.lessons.learned(solo)
    return replace(memory, lessons=lessons), taught
