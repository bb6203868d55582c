"""Orion, reserve-and-pack and AddedLatency's own scheduler of tasks, by the rules they are known for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from app.library import facts
from lab.benches.tasks.contract import (
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
from lab.benches.tasks.first_come import FirstCome, OrionRule, ReserveAndPack
from lab.benches.tasks.schedulers import AddedLatency
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.errors import InputError
from solvers.models.base import Facts, Queries, Samples
from solvers.policies.oltunes.learned import LearnedSolo, predictor

A100, A30 = GpuTypeName("a100-40gb"), GpuTypeName("a30")
COMPUTE, MEMORY = ModelName("resnet152"), ModelName("gpt2")


@cache
def known() -> Facts:
    """One model that computes, one that waits for memory."""
    models = dict(facts().models)
    models[COMPUTE] = replace(models[COMPUTE], compute_memory_ratio=3.0)
    models[MEMORY] = replace(models[MEMORY], compute_memory_ratio=0.5)
    return replace(facts(), models=models)


@cache
def solo() -> LearnedSolo:
    """Half of a GPU is enough for either, by an invented law."""
    batch, share = np.tile([4, 8, 16, 32], 10), np.repeat([10, 20, 30, 40, 50, 60, 70, 80, 90, 100], 4)
    rows = [(model, gpu_type) for model in (COMPUTE, MEMORY) for gpu_type in (A100, A30)]
    models = [model for model, _ in rows for _ in batch]
    types = [gpu_type for _, gpu_type in rows for _ in batch]
    once = batch / np.minimum(share, 50.0)
    slower = np.repeat([1.0, 2.0, 1.0, 2.0], len(batch))
    samples = Samples.of(
        Queries.of(models, types, np.tile(batch, 4), np.tile(share, 4)), 20.0 * np.tile(once, 4) * slower
    )
    return predictor("fm_ftrl", known(), 0).fit(samples)


def first_come(rule: Callable[[Facts], OrionRule | ReserveAndPack]) -> FirstCome:
    return FirstCome(rule(known()), OltunesBeliefs(known(), solo(), SchedulerParameters()))


def task(name: str, model: ModelName = COMPUTE, weight: float = 0.8, *, heavy: bool = False) -> InferenceTask:
    return InferenceTask(
        id=name, model=model, latency_weight=weight, deadline_s=5.0, inputs=4096, batch_declared=8, heavy=heavy
    )


def seat(name: str, gpu_type: GpuTypeName = A100, running: tuple[PlacedTask, ...] = ()) -> TaskSeat:
    memory = sum(each.config.memory_mib for each in running)
    total = float(known().gpu_types[gpu_type].memory_mib)
    return TaskSeat(
        id=DeviceId(name), gpu_type=gpu_type, memory_mib_total=total, memory_mib_free=total - memory, running=running
    )


def places(launches: tuple[Launch, ...]) -> dict[str, str]:
    return {each.task.id: launch.seat for launch in launches for each in launch.group}


def after(seats: tuple[TaskSeat, ...], launches: tuple[Launch, ...]) -> tuple[TaskSeat, ...]:
    """The same seats with what was launched running there."""
    made = []
    for each in seats:
        more = (placed for launch in launches if launch.seat == each.id for placed in launch.group)
        made.append(seat(each.id, each.gpu_type, (*each.running, *more)))
    return tuple(made)


def test_orion_puts_urgent_tasks_on_the_first_gpu_that_their_urgent_kind_leaves_room_on() -> None:
    made = first_come(OrionRule)
    for name in "abcde":
        made.arrive(task(name), 0.0)
    found = places(made.tick((seat("g1"), seat("g2")), 0.0))
    assert found["a"] == found["b"] == "g1", "two of half a GPU fit"
    assert found["c"] == "g2"
    assert made.waiting == 5 - len(found)


def test_orion_lets_patient_tasks_join_another_class_alone_else_they_wait() -> None:
    made = first_come(OrionRule)
    made.arrive(task("lc"), 0.0)
    seats: tuple[TaskSeat, ...] = (seat("g1"),)
    seats = after(seats, made.tick(seats, 0.0))
    made.arrive(task("same", COMPUTE, 0.3), 1.0)
    made.arrive(task("other", MEMORY, 0.3), 1.0)
    launches = made.tick(seats, 1.0)
    assert places(launches) == {"other": "g1"}
    made.ended(Ended(tasks=("lc",), batch_ms=4.0), 2.0)
    assert made.wake_s == 2.0
    gone = (seat("g1", A100, after(seats, launches)[0].running[1:]),)
    assert places(made.tick(gone, 2.0)) == {"same": "g1"}, "nobody urgent runs"


def test_reserve_and_pack_keeps_large_gpus_for_the_heavy_and_packs_the_others_from_the_last() -> None:
    made = first_come(ReserveAndPack)
    seats = (seat("r1", A30), seat("r2", A30), seat("h1"), seat("h2"))
    for name in "abcdefg":
        made.arrive(task(name), 0.0)
    light = places(made.tick(seats, 0.0))
    assert set(light.values()) == {"r1", "r2"}
    assert light["a"] == light["b"] == "r2", "the most used one, the last first"
    assert made.waiting == 7 - len(light)
    fresh = first_come(ReserveAndPack)
    for name in "abcdef":
        fresh.arrive(task(name, heavy=True), 0.0)
    heavy = places(fresh.tick(seats, 0.0))
    assert [heavy[name] for name in "abcd"] == ["h1", "h1", "h2", "h2"]
    assert heavy["e"] == "r2", "others where none of the large ones has room"


def test_ours_takes_the_faster_gpu_spreads_out_and_waits_where_that_is_sooner() -> None:
    made = AddedLatency(OltunesBeliefs(known(), solo(), SchedulerParameters(share_step_pct=50)))
    seats: tuple[TaskSeat, ...] = (seat("slow", A30), seat("fast"))
    made.arrive(task("a"), 0.0)
    first = made.tick(seats, 0.0)
    assert places(first) == {"a": "fast"}
    for name in "bcdefghijk":
        made.arrive(task(name), 0.1)
    found = places(made.tick(after(seats, first), 0.1))
    assert "slow" in found.values()
    assert made.waiting == 10 - len(found)
    assert made.waiting > 0, "the others gain by waiting for an ending"
    assert made.wake_s is None


def test_ours_learns_how_much_slower_a_model_is_than_believed() -> None:
    made = AddedLatency(OltunesBeliefs(known(), solo(), SchedulerParameters(share_step_pct=50)))
    believed = []
    for number in range(8):
        made.arrive(task(str(number)), float(number))
        (launch,) = made.tick((seat("g1"),), float(number))
        believed.append(launch.group[0].config.latency_ms)
        made.ended(Ended(tasks=(str(number),), batch_ms=3.0 * believed[0]), number + 0.5)
    assert believed == sorted(believed)
    assert believed[-1] > 1.5 * believed[0]


@pytest.mark.parametrize("which", ["orion", "mlaas", "added_latency"])
def test_failed_tasks_come_first_and_names_are_not_taken_twice(which: str) -> None:
    def fresh() -> TaskScheduler:
        if which == "added_latency":
            return AddedLatency(OltunesBeliefs(known(), solo(), SchedulerParameters(share_step_pct=50)))
        return first_come(OrionRule) if which == "orion" else first_come(ReserveAndPack)

    made = fresh()
    assert made.name == which
    made.arrive(task("a"), 0.0)
    launched = made.tick((seat("g1"),), 0.0)
    made.arrive(task("b"), 0.1)
    made.ended(Ended(tasks=("a",), ending=Ending.FAILED), 0.2)
    assert made.waiting == 2
    assert places(launched) == {"a": "g1"}
    assert next(iter(places(made.tick((seat("g1"),), 0.3)))) == "a"
    made.arrive(task("b2"), 0.35)
    with pytest.raises(InputError, match="here already"):
        made.arrive(task("b2"), 0.4)
    with pytest.raises(InputError, match="nobody has described"):
        made.arrive(task("c", ModelName("nobody-knows")), 0.4)
