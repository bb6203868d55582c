"""Task schedulers by name, as contenders of benches of kind `tasks`.

OLTunes, OLTunes with another predictor or without one of its parts, Orion, MLaaS' reserve-and-pack, and the least added
latency. All of them get the same offline profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lab.benches.tasks.contract import (
    MS_PER_S,
    Arrival,
    Config,
    Ended,
    Ending,
    InferenceTask,
    Launch,
    OltunesBeliefs,
    PlacedTask,
    SchedulerParameters,
    TaskScheduler,
    TaskSeat,
)
from lab.benches.tasks.first_come import ArrivalLine, FirstCome, OrionRule, ReserveAndPack
from lab.benches.tasks.oltunes import OltunesScheduler
from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.errors import EngineError
from solvers.models.base import Facts, Samples
from solvers.planners.tuning import Scalar, tuned
from solvers.policies.oltunes.learned import predictor
from solvers.policies.oltunes.parameters import MF, RFR

# --- A scheduler of tasks: each task at once where it adds least to everybody's latency, or not yet
#
# Tasks that together want more SMs than there are share them, and every neighbour costs a little; what ended tasks
# told corrects this. A tick goes through tasks in rising order of their time alone, each to the seat and batch of the
# least cost: its own time there, what it adds to the times of those who sit there, and lateness, weighted. A task that
# would cost less after the next ending waits for it. No plan of the product is made so.


PER_NEIGHBOUR = 0.05
"""Of its time alone, what each neighbour costs a task beside SMs."""
DEMAND_LEAST = 0.05
LEARNING = 0.1
CORRECTION_BOUNDS = (0.5, 2.0)
LATE_WEIGHT = 2.0
"""A second after the deadline counts as so many more."""
LIVES_MAX = 16
"""Tasks on a seat at most: processes cost memory and attention that nobody predicts."""
WHOLE_PCT = 100
HALF_PCT = 50


@dataclass(frozen=True, slots=True)
class TaskAsk:
    config: Config
    run_s: float
    demand: float


@dataclass(slots=True)
class SeatColumns:
    """All seats as columns, changed as tasks are put on them. `left_s` is of all who sit there together."""

    seats: tuple[TaskSeat, ...]
    types: tuple[GpuTypeName, ...]
    type: Whole
    """Of each seat, where in `types`."""
    demand: Floats
    lives: Floats
    left_s: Floats
    soonest_s: Floats
    memory_mib: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedTime:
    model: ModelName
    gpu_type: GpuTypeName
    batch_ms: float


class AddedLatency(ArrivalLine):
    name = "added_latency"

    def __init__(self, beliefs: OltunesBeliefs) -> None:
        super().__init__(beliefs)
        self._believed: dict[str, BelievedTime] = {}
        self._corrections: dict[tuple[ModelName, GpuTypeName], float] = {}
        self._demands: dict[tuple[ModelName, GpuTypeName, int], float] = {}

    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:
        """Everybody for whom now is better than later, those of one seat in one launch."""
        self._due_s = None
        floor = self._floor(seats)
        asked = [(each, self._asks(each.task, floor.types)) for each in self._main]
        asked.sort(key=lambda item: (min((ask.run_s for ask in item[1].values()), default=0.0), item[0].order))
        chosen: dict[int, list[PlacedTask]] = {}
        for arrival, asks in asked:
            place = self._place(arrival, asks, floor, now_s)
            if place is None:
                continue
            ask = asks[seats[place].gpu_type]
            self._put(arrival, ask, place, floor)
            chosen.setdefault(place, []).append(PlacedTask(task=arrival.task, config=ask.config))
        self._launched()
        return tuple(Launch(seat=seats[place].id, group=tuple(group)) for place, group in chosen.items())

    def ended(self, outcome: Ended, now_s: float) -> None:
        """Correct beliefs; who failed goes to the front."""
        super().ended(outcome, now_s)
        for believed in [self._believed.pop(name) for name in outcome.tasks if name in self._believed]:
            if outcome.ending is Ending.DONE and outcome.batch_ms is not None:
                self._correct(believed, outcome.batch_ms)

    def _correct(self, believed: BelievedTime, batch_ms: float) -> None:
        """How much slower than believed tasks of a model run on a type, in the mean of late."""
        key = (believed.model, believed.gpu_type)
        factor = self._corrections.get(key, 1.0)
        moved = factor * (batch_ms / believed.batch_ms) ** LEARNING
        self._corrections[key] = float(np.clip(moved, *CORRECTION_BOUNDS))

    def _floor(self, seats: tuple[TaskSeat, ...]) -> SeatColumns:
        left = [[each.left_s for each in seat.running] for seat in seats]
        demands = [
            sum(self._demand(each.task.model, seat.gpu_type, each.config.batch) for each in seat.running)
            for seat in seats
        ]
        types = tuple(sorted({seat.gpu_type for seat in seats}))
        number = {name: index for index, name in enumerate(types)}
        return SeatColumns(
            seats=seats,
            types=types,
            type=np.array([number[seat.gpu_type] for seat in seats], dtype=np.int64),
            demand=np.array(demands, dtype=np.float64),
            lives=np.array([float(len(some)) for some in left]),
            left_s=np.array([sum(some) for some in left], dtype=np.float64),
            soonest_s=np.array([min(some, default=0.0) for some in left]),
            memory_mib=np.array([seat.memory_mib_free for seat in seats]),
        )

    def _place(
        self, arrival: Arrival, asks: dict[GpuTypeName, TaskAsk], floor: SeatColumns, now_s: float
    ) -> int | None:
        """The seat of the least cost, if waiting for the first ending would not be better."""
        able, run_s, demand = self._columns(asks, floor)
        if not able.any():
            return None
        before = _slower(floor.demand, floor.lives)
        after = _slower(floor.demand + demand, floor.lives + 1.0)
        own_s = run_s * after
        due_s = arrival.at_s + arrival.task.deadline_s
        late_s = np.maximum(0.0, now_s + own_s - due_s)
        cost = np.where(able, own_s + LATE_WEIGHT * late_s + floor.left_s * (after / before - 1.0), np.inf)
        place = int(np.argmin(cost))
        waited_s = floor.soonest_s + run_s
        patient = floor.lives > 0.0
        later = np.where(patient, waited_s + LATE_WEIGHT * np.maximum(0.0, now_s + waited_s - due_s), np.inf)
        soonest = int(np.argmin(later))
        if float(later[soonest]) >= float(cost[place]):
            return place
        # Who waits for an ending has a claim on it: the next one would come after.
        floor.soonest_s[soonest] += run_s[soonest]
        return None

    def _columns(self, asks: dict[GpuTypeName, TaskAsk], floor: SeatColumns) -> tuple[Flags, Floats, Floats]:
        """For each seat: whether the task fits, its time there alone, what part of the SMs it wants."""
        found = [asks.get(gpu_type) for gpu_type in floor.types]
        run_s = np.array([np.inf if ask is None else ask.run_s for ask in found])[floor.type]
        demand = np.array([1.0 if ask is None else ask.demand for ask in found])[floor.type]
        memory = np.array([np.inf if ask is None else ask.config.memory_mib for ask in found])[floor.type]
        able = (memory <= floor.memory_mib) & (floor.lives < LIVES_MAX)
        return able, run_s, demand

    def _put(self, arrival: Arrival, ask: TaskAsk, place: int, floor: SeatColumns) -> None:
        gpu_type = floor.seats[place].gpu_type
        floor.demand[place] += ask.demand
        floor.lives[place] += 1.0
        slower = float(_slower(floor.demand[place : place + 1], floor.lives[place : place + 1])[0])
        floor.soonest_s[place] = min(floor.soonest_s[place], ask.run_s) if floor.lives[place] > 1.0 else ask.run_s
        floor.left_s[place] += ask.run_s
        floor.memory_mib[place] -= ask.config.memory_mib
        self._launch(arrival)
        self._believed[arrival.task.id] = BelievedTime(
            model=arrival.task.model, gpu_type=gpu_type, batch_ms=ask.config.latency_ms * slower
        )

    def _asks(self, task: InferenceTask, types: Sequence[GpuTypeName]) -> dict[GpuTypeName, TaskAsk]:
        """The batch by which the task is done soonest, for each type."""
        found: dict[GpuTypeName, TaskAsk] = {}
        for gpu_type in types:
            if task.gpu_types_allowed and gpu_type not in task.gpu_types_allowed:
                continue
            table = self._beliefs.table(task.model, (gpu_type,))
            whole = np.flatnonzero(table.queries.share_pct == WHOLE_PCT)
            if not len(whole):
                continue
            batch = table.queries.batch[whole]
            run_ms = np.maximum(1.0, np.ceil(task.inputs / batch)) * table.latency_ms[whole]
            row = int(whole[int(np.argmin(run_ms))])
            factor = self._corrections.get((task.model, gpu_type), 1.0)
            alone = table.config(row)
            slowed_ms, slowed_rps = alone.latency_ms * factor, alone.throughput_rps / factor
            config = replace(alone, latency_ms=slowed_ms, throughput_rps=slowed_rps)
            demand = self._demand(task.model, gpu_type, config.batch)
            found[gpu_type] = TaskAsk(config, float(run_ms.min()) * factor / MS_PER_S, demand)
        return found

    def _demand(self, model: ModelName, gpu_type: GpuTypeName, batch: int) -> float:
        """Part of the SMs that a task keeps busy: all of them where half the share takes twice the time."""
        key = (model, gpu_type, batch)
        if key not in self._demands:
            table = self._beliefs.table(model, (gpu_type,))
            rows = table.queries.batch == batch
            whole = table.latency_ms[rows & (table.queries.share_pct == WHOLE_PCT)]
            half = table.latency_ms[rows & (table.queries.share_pct == HALF_PCT)]
            wanted = float(half[0] / whole[0]) - 1.0 if len(whole) and len(half) else 1.0
            self._demands[key] = min(1.0, max(DEMAND_LEAST, wanted))
        return self._demands[key]


def _slower(demand: Floats, lives: Floats) -> Floats:
    """Factor on the times of so many tasks that want so much together."""
    return np.asarray(np.maximum(1.0, demand) * (1.0 + PER_NEIGHBOUR * np.maximum(0.0, lives - 1.0)))


@dataclass(frozen=True, slots=True)
class SchedulerInputs:
    """What every scheduler begins with; `samples` were profiled offline."""

    facts: Facts
    samples: Samples
    seed: int

    def beliefs(self, parameters: SchedulerParameters) -> OltunesBeliefs:
        """What the predictor says that was taught by the samples before the first task."""
        solo = predictor(parameters.predictor, self.facts, self.seed).fit(self.samples)
        return OltunesBeliefs(self.facts, solo, parameters)


Maker = Callable[[SchedulerInputs, Mapping[str, Scalar], str], TaskScheduler[Any]]
"""From what is known, the settings, and the name that errors tell."""


def _oltunes(
    known: SchedulerInputs, settings: Mapping[str, Scalar], name: str, *, plain: SchedulerParameters
) -> TaskScheduler[Any]:
    return OltunesScheduler(known.beliefs(tuned(plain, settings, name)))


def _untuned(
    known: SchedulerInputs,
    settings: Mapping[str, Scalar],
    name: str,
    *,
    make: Callable[[OltunesBeliefs], TaskScheduler[Any]],
    plain: SchedulerParameters,
) -> TaskScheduler[Any]:
    tuned(None, settings, name)
    return make(known.beliefs(plain))


_PLAIN = SchedulerParameters()
_MAKERS: Mapping[str, Maker] = {
    "oltunes": partial(_oltunes, plain=_PLAIN),
    # Neither learns single outcomes: both fit their window again, which pays for many outcomes at once alone.
    "oltunes_mf": partial(_oltunes, plain=replace(_PLAIN, predictor=MF, learned_at_once=128)),
    "oltunes_rfr": partial(_oltunes, plain=replace(_PLAIN, predictor=RFR, learned_at_once=128)),
    "oltunes_no_affinity": partial(_oltunes, plain=replace(_PLAIN, with_affinity=False)),
    "oltunes_fixed_window": partial(_oltunes, plain=replace(_PLAIN, window_ms_step=0.0)),
    "oltunes_no_tuning": partial(_oltunes, plain=replace(_PLAIN, with_tuning=False)),
    "oltunes_alone": partial(_oltunes, plain=replace(_PLAIN, group_max=1)),
    "added_latency": partial(_untuned, make=AddedLatency, plain=SchedulerParameters(share_step_pct=HALF_PCT)),
    "orion": partial(_untuned, make=lambda beliefs: FirstCome(OrionRule(beliefs.facts), beliefs), plain=_PLAIN),
    "mlaas": partial(_untuned, make=lambda beliefs: FirstCome(ReserveAndPack(beliefs.facts), beliefs), plain=_PLAIN),
}
SCHEDULERS = tuple(_MAKERS)
"""Names of contenders that only benches of this kind know; none of them is what `headroom` names elsewhere."""


def scheduler(name: str, known: SchedulerInputs, settings: Mapping[str, Scalar]) -> TaskScheduler[Any]:
    """A scheduler by name. Raises EngineError for a name that schedules no tasks, FieldError for a bad setting."""
    if name not in _MAKERS:
        raise EngineError(f"{name or 'nothing'} schedules no tasks; known are {', '.join(SCHEDULERS)}", planner=name)
    return _MAKERS[name](known, settings, name)
