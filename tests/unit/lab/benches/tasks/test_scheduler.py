"""OLTunes' scheduler of tasks: its order, window, groups, tuning, feedback, and that it goes on from what it wrote."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.library import facts
from lab.benches.tasks.contract import (
    Config,
    Ended,
    Ending,
    InferenceTask,
    Launch,
    OltunesBeliefs,
    PlacedTask,
    SchedulerParameters,
    TaskChoice,
    TaskSeat,
)
from lab.benches.tasks.oltunes import OltunesScheduler, SeatBooks, WaitingTask, offered
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.workload import QualityClass
from solvers.errors import FieldError, InputError
from solvers.models.base import Queries, Samples
from solvers.policies.oltunes.learned import LearnedSolo, predictor
from solvers.policies.oltunes.memory import RETRAINED_AFTER, PendingLessons, SeenOutcome
from solvers.policies.oltunes.queues import Queues, WindowPace
from solvers.policies.oltunes.scores import Character

A100, A30 = GpuTypeName("a100-40gb"), GpuTypeName("a30")
LOW, HIGH = ModelName("resnet18"), ModelName("resnet152")
PLAIN = SchedulerParameters()


def config(batch: int = 8, memory_mib: float = 2048.0, latency_ms: float = 10.0, share: int = 50) -> Config:
    rps = 1000.0 * batch / latency_ms
    return Config(batch=batch, share_pct=share, memory_mib=memory_mib, latency_ms=latency_ms, throughput_rps=rps)


def task(
    name: str, weight: float = 0.8, deadline_s: float = 1.0, model: ModelName = LOW, inputs: int = 64
) -> InferenceTask:
    return InferenceTask(id=name, model=model, latency_weight=weight, deadline_s=deadline_s, inputs=inputs)


def waiting(name: str, *configs: Config, weight: float = 0.8, priority: float = 1.0, order: int = 0) -> WaitingTask:
    choices = tuple(TaskChoice(gpu_type=A100, config=each) for each in configs or (config(),))
    made = task(name, weight)
    return WaitingTask(task=made, at_s=0.0, order=order, choices=choices, priority=priority, latency_s=0.1)


def seat(name: str = "g1", running: tuple[PlacedTask, ...] = (), free: float = 40_000.0, busy: float = 0.0) -> TaskSeat:
    return TaskSeat(
        id=DeviceId(name),
        gpu_type=A100,
        memory_mib_total=40_000.0,
        memory_mib_free=free,
        utilisation_pct=busy,
        running=running,
    )


@cache
def solo() -> LearnedSolo:
    """Taught an invented law: twice the share, half the time."""
    draw = np.random.default_rng(3)
    batch, share = draw.choice([1, 4, 8, 16, 32, 64], 120), draw.choice([20, 50, 100], 120)
    models = [(LOW, HIGH)[int(index)] for index in draw.integers(2, size=120)]
    types = [(A100, A30)[int(index)] for index in draw.integers(2, size=120)]
    latency_ms = 1.0 + 20.0 * batch / share * np.array([1.0 if name == LOW else 4.0 for name in models])
    return predictor("fm_ftrl", facts(), 0).fit(Samples.of(Queries.of(models, types, batch, share), latency_ms))


def scheduler(**changes: Any) -> OltunesScheduler:
    settings: dict[str, Any] = {"learned_at_once": 1000, **changes}
    return OltunesScheduler(OltunesBeliefs(facts(), solo(), SchedulerParameters(**settings)))


def wake_s(some: OltunesScheduler) -> float:
    return float("inf") if some.wake_s is None else some.wake_s


def seats(*names: str) -> tuple[TaskSeat, ...]:
    return tuple(seat(name) for name in names)


def test_queues_go_by_urgency_then_the_shortest_then_who_came_first() -> None:
    late, short, first = waiting("late", priority=5.0), waiting("short", order=3), waiting("first", order=1)
    queues = Queues()
    for each in (late, replace(short, latency_s=0.05), first):
        queues.push(each)
    assert [each.task.id for each in queues.urgent] == ["short", "first", "late"]
    queues.push(waiting("to", weight=0.3))
    assert [each.task.id for each in queues.patient] == ["to"]
    assert queues.urgent_part == 0.75
    queues.push(replace(waiting("failed", weight=0.3, priority=9.0), boost=1))
    assert [each.task.id for each in queues.first(2)] == ["failed", "short", "to"]
    queues.take({"short", "to"})
    assert [each.task.id for each in queues] == ["failed", "first", "late"]


def test_the_window_moves_by_its_step_within_bounds_and_groups_shrink_and_recover() -> None:
    pace = WindowPace.first(PLAIN)
    assert pace.after_tick(0.71, PLAIN).window_ms == 90.0
    assert pace.after_tick(0.7, PLAIN).window_ms == 110.0
    assert pace.after_tick(None, PLAIN) == pace
    assert replace(pace, window_ms=52.0).after_tick(1.0, PLAIN).window_ms == 50.0
    assert replace(pace, window_ms=1000.0).after_tick(0.0, PLAIN).window_ms == 1000.0
    failed = pace.after_failure(PLAIN)
    assert (failed.window_ms, failed.group_max) == (90.0, 3)
    assert replace(pace, group_max=1).after_failure(PLAIN).group_max == 1
    for _ in range(9):
        failed = failed.after_success(PLAIN)
    assert failed.group_max == 3
    assert failed.after_success(PLAIN).group_max == 4


CHARACTERS = {
    LOW: Character(ratio=1.0, quality=QualityClass.LOW),
    HIGH: Character(ratio=1.0, quality=QualityClass.HIGH),
}


def books(parameters: SchedulerParameters = PLAIN, group_max: int = 4) -> SeatBooks:
    return SeatBooks(
        parameters=parameters,
        group_max=group_max,
        affinity_min=parameters.threshold_affinity,
        characters=CHARACTERS,
    )


def formed(some: SeatBooks, where: TaskSeat, *waits: WaitingTask) -> dict[str, Config]:
    """Who joins and with what; whoever joins leaves the queues."""
    queues: Queues[WaitingTask] = Queues()
    for order, each in enumerate(waits):
        queues.push(replace(each, order=order))
    members = some.launch(queues, where)
    found = {each.waiting.name: each.config for each in members}
    assert {each.name for each in queues} == {each.name for each in waits} - set(found)
    return found


def test_groups_take_who_fits_and_gets_on_and_skip_the_others() -> None:
    heavy = replace(waiting("heavy"), task=task("heavy", model=HIGH))
    large, a, b, c = waiting("large", config(memory_mib=50_000.0)), waiting("a"), waiting("b"), waiting("c")
    assert list(formed(books(), seat(), large, a, b, heavy)) == ["a", "heavy"], "two low ones of a kind do not get on"
    assert formed(books(), seat(), large) == {}
    elsewhere = replace(waiting("x"), choices=(TaskChoice(gpu_type=A30, config=config()),))
    assert formed(books(), seat(), elsewhere) == {}
    careless = replace(PLAIN, with_affinity=False)
    assert len(formed(books(careless, group_max=2), seat(), a, b, c)) == 2
    assert list(formed(books(), seat(free=4600.0), a, heavy)) == ["a"], "the margin stays free"


def test_seats_on_offer_are_empty_ones_else_nearly_done_else_the_soonest() -> None:
    def held(name: str, progress: float, inputs: int = 64, busy: float = 90.0) -> TaskSeat:
        running = PlacedTask(task=task(name, inputs=inputs), config=config(), progress=progress)
        return seat(name, (running,), busy=busy)

    empty, done, long, short = seat("e", busy=30.0), held("d", 0.9), held("l", 0.1, 640), held("s", 0.1)
    assert offered([long, empty, done], PLAIN) == (empty,)
    assert offered([long, done, short], PLAIN) == (done,)
    assert offered([long, short], PLAIN) == (short,)
    assert offered([held("f", 0.0, busy=5.0), long], PLAIN)[0].id == "f", "nearly free counts"
    full = replace(long, running=long.running * 4)
    assert offered([full], PLAIN) == ()
    other = replace(empty, gpu_type=A30, id=DeviceId("o"))
    assert {each.id for each in offered([other, short], PLAIN)} == {"o", "s"}, "type by type"


def test_spare_memory_tunes_one_task_patient_ones_first_and_only_for_the_better() -> None:
    careless, plain = replace(PLAIN, with_affinity=False), config()
    better = config(batch=32, memory_mib=8192.0, latency_ms=20.0)
    urgent, patient = waiting("u", plain, better), waiting("p", plain, better, weight=0.3)
    assert formed(books(careless), seat(), urgent, patient) == {"u": plain, "p": better}
    assert formed(books(careless), seat(free=7000.0), urgent, patient) == {"u": plain, "p": plain}, "it must fit"
    assert formed(books(replace(careless, with_tuning=False)), seat(), patient) == {"p": plain}
    assert formed(books(), seat(), urgent) == {"u": better}, "64 inputs are done sooner"


def test_a_task_after_a_quiet_time_goes_at_once_and_others_wait_for_the_window() -> None:
    made = scheduler()
    assert wake_s(made) == float("inf")
    made.arrive(task("a"), 1.0)
    assert wake_s(made) <= 1.0
    launches = made.tick(seats("g1", "g2"), 1.0)
    assert [each.task.id for launch in launches for each in launch.group] == ["a"]
    made.arrive(task("b"), 1.02)
    assert wake_s(made) == pytest.approx(1.0 + made.book.pace.window_ms / 1000.0)
    for name in "cde":
        made.arrive(task(name), 1.03)
    assert wake_s(made) <= 1.03, "enough for a group do not wait"
    with pytest.raises(InputError, match="here already"):
        made.arrive(task("e"), 1.04)
    with pytest.raises(InputError, match="nobody has described"):
        made.arrive(task("f", model=ModelName("nobody-knows")), 1.04)


def test_failed_groups_come_back_first_and_nobody_is_lost() -> None:
    made = scheduler()
    made.arrive(task("a", weight=0.3, deadline_s=50.0), 0.0)
    (launch,) = made.tick(seats("g1"), 0.0)
    made.arrive(task("b", deadline_s=0.1), 0.1)
    made.ended(Ended(tasks=("a",), ending=Ending.FAILED), 0.2)
    assert made.waiting == 2
    (again,) = made.tick(seats("g1"), 0.3)
    assert again.group[0].task.id == "a"
    assert made.book.pace.group_max == 3
    made.ended(Ended(tasks=("a", "nobody"), batch_ms=3.0), 0.4)
    assert made.waiting + len(again.group) == 2
    assert launch.group[0].task == again.group[0].task


def test_predictions_that_miss_train_the_predictor_anew_but_not_at_every_miss() -> None:
    lessons = PendingLessons()
    seen = SeenOutcome(model=LOW, gpu_type=A100, batch=8, share_pct=50, batch_ms=10.0)
    for _ in range(RETRAINED_AFTER - 1):
        lessons = lessons.seen(seen, 20.0, 0.25)
    assert not lessons.due
    lessons = lessons.seen(seen, 20.0, 0.25)
    assert lessons.due
    few = replace(lessons, pending=lessons.pending[:4])
    _, after = few.learned(solo())
    assert (after.due, after.retrainings, after.pending) == (False, 1, ())


def test_impossible_values_are_refused() -> None:
    with pytest.raises(FieldError):
        SchedulerParameters(window_ms_first=10.0)
    with pytest.raises(InputError, match="no predictor"):
        predictor("tea-leaves", facts(), 0)
    with pytest.raises(InputError):
        task("a", weight=1.0)
    with pytest.raises(FieldError):
        seat(free=50_000.0)
    with pytest.raises(FieldError):
        Launch(seat=DeviceId("g"), group=())
