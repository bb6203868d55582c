"""AC-OLT-04: the rules of OLTunes' scheduler, checked on random courses of arrivals, endings and failures.

Owns a cluster that is nothing but chance: seats of random types and room, tasks of random models and limits, groups
that fail or end in any order. After every call the rules are looked at from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from app.library import facts
from lab.benches.tasks.contract import Ended, Ending, InferenceTask, Launch, Running, TaskSeat
from lab.benches.tasks.parameters import SchedulerParameters
from lab.benches.tasks.scheduler import OltunesScheduler
from lab.claims.base import Claim, ClaimClass, ClaimEvidence, Effort, found
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.models.base import Queries, Samples
from solvers.policies.oltunes.learned import LearnedSolo, taught
from solvers.policies.oltunes.parameters import FM_FTRL

TYPES = ("rtx-4090", "a30", "a100-40gb")
MODELS = ("resnet18", "yolov5n", "yolov5x", "bert-base", "resnet152", "gpt2")
STEPS = 40
RUNS_MIN = 200
_CLOSE = 1e-9
PLAIN = SchedulerParameters(learned_at_once=10_000)
"""Learning is none of these rules, and takes most of the time."""


@cache
def _solo() -> LearnedSolo:
    """A predictor that has learned an invented law: rules hold whatever is believed."""
    draw = np.random.default_rng(7)
    rows = 240
    batch, share = draw.choice([1, 4, 8, 16, 32, 64], rows), draw.choice([10, 30, 50, 70, 100], rows)
    model = [MODELS[int(index)] for index in draw.integers(len(MODELS), size=rows)]
    gpu_type = [TYPES[int(index)] for index in draw.integers(len(TYPES), size=rows)]
    latency_ms = 1.0 + 40.0 * batch / share * np.array([1.0 + MODELS.index(name) for name in model])
    return taught(FM_FTRL, facts(), 0, Samples.of(Queries.of(model, gpu_type, batch, share), latency_ms))


@dataclass(slots=True)
class Chance:
    """A cluster by chance, and what was found wrong in it."""

    rng: np.random.Generator
    scheduler: OltunesScheduler
    seats: tuple[TaskSeat, ...]
    arrived: set[str] = field(default_factory=set)
    flying: dict[str, DeviceId] = field(default_factory=dict)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    ticks: int = 0
    failures: int = 0
    now_s: float = 0.0

    def step(self) -> None:
        """Something happens."""
        self.now_s += float(self.rng.exponential(0.05))
        for _ in range(int(self.rng.integers(0, 6))):
            self._arrive()
        self._tick()
        for group in list(self.groups):
            draw = float(self.rng.random())
            if draw < 0.1:
                self._fail(group)
            elif draw < 0.5:
                self._end(group)
        self._nobody_is_lost()

    def _arrive(self) -> None:
        name = f"t{len(self.arrived)}"
        task = InferenceTask(
            id=name,
            model=ModelName(str(self.rng.choice(MODELS))),
            latency_weight=float(self.rng.random()) * 0.99,
            deadline_s=float(self.rng.exponential(2.0)) + 0.01,
            inputs=int(self.rng.integers(1, 500)),
        )
        self.arrived.add(name)
        self.scheduler.arrive(task, self.now_s)

    def _tick(self) -> None:
        before = self.scheduler.book.pace
        launches = self.scheduler.tick(self.seats, self.now_s)
        self.ticks += 1
        for launch in launches:
            self._check_launch(launch, before.group_max)
            self._sit(launch)
        urgent, patient = self.scheduler.queued
        shrinks = urgent + patient > 0 and urgent / (urgent + patient) > PLAIN.rho_lc
        step = 0.0 if urgent + patient == 0 else -PLAIN.window_ms_step if shrinks else PLAIN.window_ms_step
        self._check_window(before.window_ms, step, "a tick")

    def _check_window(self, before_ms: float, step_ms: float, when: str) -> None:
        window_ms = self.scheduler.book.pace.window_ms
        expected = min(max(before_ms + step_ms, PLAIN.window_ms_min), PLAIN.window_ms_max)
        if abs(window_ms - expected) > _CLOSE:
            self.wrong.append(f"after {when} the window is {window_ms} ms, not {expected}")

    def _check_launch(self, launch: Launch, group_max: int) -> None:
        seat = next(each for each in self.seats if each.id == launch.seat)
        if len(launch.group) > min(group_max, PLAIN.group_max):
            self.wrong.append(f"a group has {len(launch.group)} tasks, of {group_max} allowed")
        if launch.memory_mib > seat.memory_mib_free:
            self.wrong.append(f"a group takes {launch.memory_mib} MiB of {seat.memory_mib_free}")
        for each in launch.group:
            if each.task.id in self.flying or each.task.id in self.done or each.task.id not in self.arrived:
                self.wrong.append(f"{each.task.id} is launched, but does not wait")

    def _sit(self, launch: Launch) -> None:
        names = tuple(each.task.id for each in launch.group)
        self.groups.append(names)
        self.flying.update(dict.fromkeys(names, launch.seat))
        running = tuple(Running(task=each.task, config=each.config) for each in launch.group)
        self._seat(launch.seat, running, ())

    def _seat(self, name: DeviceId, more: tuple[Running, ...], less: Sequence[str]) -> None:
        """The seat with these tasks more and those less."""
        made = []
        for seat in self.seats:
            if seat.id != name:
                made.append(seat)
                continue
            stay = tuple(each for each in (*seat.running, *more) if each.task.id not in less)
            moved = sum(each.config.memory_mib for each in seat.running) - sum(each.config.memory_mib for each in stay)
            free = seat.memory_mib_free + moved
            busy = float(self.rng.random()) * 100.0
            made.append(replace(seat, running=stay, memory_mib_free=max(0.0, free), utilisation_pct=busy))
        self.seats = tuple(made)

    def _fail(self, group: tuple[str, ...]) -> None:
        before_ms, allowed = self.scheduler.book.pace.window_ms, self.scheduler.book.pace.group_max
        self.failures += 1
        self._go(group)
        self.scheduler.ended(Ended(tasks=group, ending=Ending.FAILED), self.now_s)
        self._check_window(before_ms, -PLAIN.window_ms_step, "a failure")
        if self.scheduler.book.pace.group_max != max(1, allowed - 1):
            self.wrong.append("a failure does not make groups smaller by one")

    def _end(self, group: tuple[str, ...]) -> None:
        before_ms = self.scheduler.book.pace.window_ms
        self._go(group)
        self.done |= set(group)
        for name in group:
            self.scheduler.ended(Ended(tasks=(name,), batch_ms=5.0), self.now_s)
        self._check_window(before_ms, 0.0, "an ending")

    def _go(self, group: tuple[str, ...]) -> None:
        self.groups.remove(group)
        self._seat(self.flying[group[0]], (), group)
        for name in group:
            del self.flying[name]

    def _nobody_is_lost(self) -> None:
        known = len(self.done) + len(self.flying) + self.scheduler.waiting
        urgent, patient = self.scheduler.queued
        if known != len(self.arrived) or self.scheduler.waiting < urgent + patient:
            self.wrong.append(f"{len(self.arrived)} tasks came, {known} are known")


def _chance(seed: int) -> Chance:
    rng = np.random.default_rng(seed)
    seats = []
    for number in range(int(rng.integers(1, 9))):
        memory_mib = float(rng.integers(4_000, 40_000))
        seat = TaskSeat(
            id=DeviceId(f"g{number}"),
            gpu_type=GpuTypeName(str(rng.choice(TYPES))),
            memory_mib_total=memory_mib,
            memory_mib_free=memory_mib,
        )
        seats.append(seat)
    return Chance(rng=rng, scheduler=OltunesScheduler(facts(), PLAIN, solo=_solo()), seats=tuple(seats))


def rules(effort: Effort) -> ClaimEvidence:
    """As many random courses as examples are asked for, two hundred at least."""
    runs = max(RUNS_MIN, effort.examples)
    wrong: list[str] = []
    ticks = groups = failures = tasks = 0
    for seed in range(runs):
        chance = _chance(seed)
        for _ in range(STEPS):
            chance.step()
        wrong += chance.wrong
        ticks, failures, tasks = ticks + chance.ticks, failures + chance.failures, tasks + len(chance.arrived)
        groups += chance.scheduler.book.groups
    said = f"{runs} random courses: {tasks} tasks, {ticks} ticks, {groups} groups, {failures} of them failed"
    return found(f"{said}; {len(wrong)} breaches", wrong)


CLAIMS = (
    Claim(
        id="AC-OLT-04",
        kind=ClaimClass.PROPERTY,
        stated="window in 50 to 1000 ms, 10 ms per tick, smaller iff LC share > 0.7 or a group failed; groups of 4 "
        "at most within free memory; no task lost or twice",
        judge=rules,
    ),
)
