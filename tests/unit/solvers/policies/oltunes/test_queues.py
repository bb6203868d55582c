"""Order of waiting work, and the window that widens, shrinks and recovers."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import GROUP_RESTORED_AFTER, Queues, WindowPace

PRINTED = OltunesParameters()


@dataclass(frozen=True)
class Waiting:
    name: str
    urgent: bool = True
    boost: int = 0
    priority: float = 1.0
    latency_s: float = 1.0
    order: int = 0


def order_of(*waiting: Waiting) -> list[str]:
    queues: Queues[Waiting] = Queues()
    for item in waiting:
        queues.push(item)
    assert len(queues) == len(waiting)
    assert [item.name for item in queues] == [item.name for item in queues.first(len(waiting))]
    return [item.name for item in queues]


def test_the_least_deadline_over_latency_comes_first_then_the_shortest_then_the_oldest() -> None:
    assert order_of(Waiting("calm", priority=9.0), Waiting("soon", priority=0.5), Waiting("next")) == [
        "soon", "next", "calm",
    ]  # fmt: skip
    assert order_of(Waiting("long", latency_s=3.0), Waiting("young", order=2), Waiting("old", order=1)) == [
        "old", "young", "long",
    ]  # fmt: skip


def test_urgent_work_comes_before_patient_and_who_failed_before_everybody() -> None:
    patient = Waiting("patient", urgent=False, priority=0.1)
    assert order_of(patient, Waiting("urgent", priority=9.0)) == ["urgent", "patient"]
    failed = Waiting("failed", urgent=False, boost=1, priority=99.0)
    assert order_of(Waiting("urgent"), patient, failed) == ["failed", "urgent", "patient"]
    queues: Queues[Waiting] = Queues([Waiting("urgent"), failed], [patient])
    assert (queues.boost_max, queues.urgent_part) == (1, 2 / 3)
    queues.take(["failed", "patient"])
    assert [item.name for item in queues] == ["urgent"]


def test_the_window_shrinks_under_urgent_load_and_grows_without() -> None:
    begun = WindowPace.first(PRINTED)
    assert (begun.window_ms, begun.group_max) == (100.0, 4)
    assert begun.after_tick(0.71, PRINTED).window_ms == 90.0
    assert begun.after_tick(0.70, PRINTED).window_ms == 110.0
    assert begun.after_tick(None, PRINTED) == begun
    narrow = wide = begun
    for _ in range(200):
        narrow, wide = narrow.after_tick(1.0, PRINTED), wide.after_tick(0.0, PRINTED)
    assert (narrow.window_ms, wide.window_ms) == (50.0, 1000.0)


def test_a_failure_narrows_window_and_groups_and_ten_successes_bring_one_place_back() -> None:
    failed = WindowPace.first(PRINTED).after_failure(PRINTED)
    assert (failed.window_ms, failed.group_max) == (90.0, 3)
    for _ in range(9):
        failed = failed.after_failure(PRINTED)
    assert (failed.window_ms, failed.group_max) == (50.0, 1)
    grown = failed
    for number in range(1, GROUP_RESTORED_AFTER + 1):
        assert grown.group_max == 1
        grown = grown.after_success(PRINTED)
        assert grown.succeeded == number % GROUP_RESTORED_AFTER
    assert grown.group_max == 2
    whole = WindowPace.first(PRINTED)
    assert whole.after_success(PRINTED) == whole


def test_groups_are_formed_when_a_window_is_over_or_a_group_is_full() -> None:
    pace = WindowPace.first(PRINTED)
    assert pace.wake_s(None, full=False) == 0.0
    assert pace.wake_s(7.0, full=False) == 7.1
    assert pace.wake_s(7.0, full=True) == 7.0
