"""A point on simulated GPUs: what comes out is what the device really does, and the device is left as it was."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from agents.devices.base import DeviceSample, WorkerSpec
from agents.devices.fake.host import FakeDevices
from agents.errors import DeviceError, SharingError, StateFileError, WorkerError
from agents.profiling.desk import Errand, proposed_steps, run
from agents.profiling.points import Measured, MeasuringPoint, ResultFile, Subject, pair_points, profile_points
from agents.profiling.session import WINDOWS_MAX, WINDOWS_MIN, MeasurementWindow, StoppedError, interval, judge, measure
from benchmarks.fake_profiles import measure as measure_alone
from tests.unit.agents.builders import worker_spec
from tests.unit.agents.profiling.staging import Stage

SUBJECT = Subject(service="team/svc", model="resnet50", gpu_type="v100", uuid="GPU-1", clock_mhz_sm_max=1530)


def test_a_point_gives_what_the_device_does() -> None:
    stage = Stage()
    clock_mhz = stage.devices.inventory()[0].clocks_mhz_sm[-3]
    (found,) = measure(stage.bench(), [worker_spec(share=40, batch=8)], clock_mhz)
    truth = measure_alone("resnet50", "v100", 40, 8, [0.0])
    assert found.problem == ""
    assert found.usable
    assert found.latency_ms_mean == pytest.approx(truth.times_ms[0], rel=0.08)
    assert found.half_width_pct is not None
    assert found.half_width_pct <= 2.0
    assert found.batch_mean == pytest.approx(8.0, rel=0.1)
    assert found.clock_mhz_sm == clock_mhz
    assert found.sm_count == 32
    assert found.power_w is not None
    assert found.power_w > 0.0
    assert found.memory_mib is not None
    assert found.memory_mib > 0.0


def test_the_device_is_left_without_workers_and_locks() -> None:
    stage = Stage()
    measure(stage.bench(), [worker_spec()], stage.devices.inventory()[0].clocks_mhz_sm[0])
    assert stage.devices.workers() == ()
    assert stage.devices.settings(stage.uuid).clock_mhz_sm is None
    assert all(load.closed for load in stage.loads)


def test_being_stopped_leaves_the_device_as_it_was() -> None:
    stage = Stage(stop_after_s=8.0)
    with pytest.raises(StoppedError):
        measure(stage.bench(), [worker_spec()], stage.devices.inventory()[0].clocks_mhz_sm[0])
    assert stage.devices.workers() == ()
    assert stage.devices.settings(stage.uuid).clock_mhz_sm is None


@pytest.mark.parametrize("verb", ["drain", "stop"])
def test_what_fails_at_the_end_keeps_nothing_else_from_being_given_back(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    stage, asked = Stage(), list[str]()
    call = getattr(stage.devices, verb)

    def failing(worker: str) -> None:
        asked.append(worker)
        if asked == [worker]:
            raise SharingError("the first one fails")
        call(worker)

    monkeypatch.setattr(stage.devices, verb, failing)
    clock_mhz = stage.devices.inventory()[0].clocks_mhz_sm[-3]
    results = measure(stage.bench(), [worker_spec("a", share=40), worker_spec("b", share=40)], clock_mhz)
    assert [result.model for result in results] == ["resnet50", "resnet50"]
    left = [worker.spec.replica for worker in stage.devices.workers()]
    assert (left, len(asked)) == (["a"] if verb == "stop" else [], 2)
    assert stage.devices.settings(stage.uuid).clock_mhz_sm is None


def test_a_device_with_live_workers_is_not_touched() -> None:
    stage = Stage()
    stage.devices.start(stage.uuid, worker_spec("live"))
    with pytest.raises(DeviceError, match="still has workers"):
        measure(stage.bench(), [worker_spec()], None)
    assert [worker.spec.replica for worker in stage.devices.workers()] == ["live"]


def test_two_workers_side_by_side_slow_each_other() -> None:
    stage = Stage()
    alone = measure(stage.bench(), [worker_spec(share=50)], None)[0]
    other = worker_spec("r2", share=50, model="bert-base", workload="team/other")
    pair = measure(stage.bench(), [worker_spec(share=50), other], None)
    assert [item.problem for item in pair] == ["", ""]
    assert alone.latency_ms_mean is not None
    assert pair[0].latency_ms_mean is not None
    assert pair[0].latency_ms_mean > alone.latency_ms_mean
    rows = pair_points(SUBJECT, [(pair[0], pair[1])])
    assert [(row["model_a"], row["model_b"]) for row in rows] == [("resnet50", "bert-base")]


class Stubborn(FakeDevices):
    """Workers that never start."""

    def start(self, uuid: str, spec: WorkerSpec) -> str:
        raise WorkerError(f"{spec.replica}: exit status 1")


class Throttled(FakeDevices):
    """A board that is always too hot."""

    def collect(self) -> tuple[DeviceSample, ...]:
        return tuple(replace(sample, throttle="heat") for sample in super().collect())


def test_a_worker_that_does_not_start_is_a_result_with_its_reason() -> None:
    stage = Stage()
    stage.devices.__class__ = Stubborn
    (found,) = measure(stage.bench(), [worker_spec()], None)
    assert not found.usable
    assert "exit status 1" in found.problem


class Capped(FakeDevices):
    """A board at its power limit."""

    def collect(self) -> tuple[DeviceSample, ...]:
        return tuple(replace(sample, throttle="power_cap") for sample in super().collect())


def test_a_power_limit_is_a_boards_own_way_unless_a_clock_was_asked_for() -> None:
    stage = Stage()
    stage.devices.__class__ = Capped
    (own,) = measure(stage.bench(), [worker_spec()], None)
    assert own.usable
    assert profile_points(SUBJECT, [own])[0]["clock_mhz_sm"] == 1530
    (asked,) = measure(stage.bench(), [worker_spec()], stage.devices.inventory()[0].clocks_mhz_sm[-2])
    assert not asked.usable


def test_a_throttled_board_gives_no_point() -> None:
    stage = Stage()
    stage.devices.__class__ = Throttled
    (found,) = measure(stage.bench(), [worker_spec()], None)
    assert not found.usable
    assert "held down" in found.problem
    assert profile_points(SUBJECT, [found]) == []


def errand(
    points: list[MeasuringPoint], delivered: list[Measured], results: ResultFile, budget_s: float = 3600.0
) -> Errand:
    return Errand(
        budget_s=budget_s,
        steps=lambda before: proposed_steps(lambda: tuple(points), before),
        spec_of=lambda _, point: worker_spec(share=point.share_pct_sm, batch=point.batch),
        deliver=delivered.extend,
        say=lambda _: None,
        results=results,
    )


POINTS = [
    MeasuringPoint(batch=1, share_pct_sm=20),
    MeasuringPoint(batch=8, share_pct_sm=100),
    MeasuringPoint(batch=4, share_pct_sm=50),
]


@pytest.fixture
def file(tmp_path: Path) -> ResultFile:
    return ResultFile(tmp_path / "r.jsonl", SUBJECT)


def test_a_run_measures_every_point_once_and_hands_it_over(file: ResultFile) -> None:
    stage, delivered = Stage(), list[Measured]()
    assert run(stage.bench(), errand(POINTS, delivered, file)) == "complete"
    assert [item.point for item in delivered] == POINTS
    assert [row["batch"] for row in profile_points(SUBJECT, delivered)] == [1, 8, 4]


def test_a_run_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, file: ResultFile) -> None:
    run(Stage().bench(), errand(POINTS[:2], [], file))
    with (tmp_path / "r.jsonl").open("a") as text:
        text.write('{"subject": {"serv')
    stage, delivered = Stage(), list[list[Measured]]()
    run(stage.bench(), replace(errand(POINTS, [], file), deliver=lambda found: delivered.append([*found])))
    assert [[item.point for item in found] for found in delivered] == [POINTS[:2], POINTS[2:]]
    assert len(file.read()) == 3


def test_a_run_ends_with_its_budget(file: ResultFile) -> None:
    stage = Stage()
    assert run(stage.bench(), errand(POINTS, [], file, budget_s=45.0)) == "budget"
    assert 1 <= len(file.read()) < 3
    assert stage.waited_s <= 45.0


def test_a_worker_that_never_works_ends_the_run(file: ResultFile) -> None:
    stage, delivered = Stage(), list[Measured]()
    stage.devices.__class__ = Stubborn
    more = [MeasuringPoint(batch=batch, share_pct_sm=100) for batch in range(1, 9)]
    assert run(stage.bench(), errand(more, delivered, file)) == "failing"
    assert [item.usable for item in file.read()] == [False, False, False]
    assert delivered == []


def test_results_of_another_subject_are_refused(tmp_path: Path) -> None:
    run(Stage().bench(), errand(POINTS[:1], [], ResultFile(tmp_path / "r.jsonl", SUBJECT)))
    other = Subject(service="team/else", model="m", gpu_type="t4", uuid="GPU-2", clock_mhz_sm_max=1590)
    with pytest.raises(StateFileError, match="something else"):
        ResultFile(tmp_path / "r.jsonl", other).read()


# --- Steady state: warming up is cut off, disturbances start anew, tight intervals end it, and hopeless ones say so.


def windows(*means: float) -> list[MeasurementWindow]:
    return [MeasurementWindow(latency_ms_mean=mean) for mean in means]


def test_equal_windows_end_as_soon_as_there_are_enough() -> None:
    assert not judge(windows(*[5.0] * (WINDOWS_MIN - 1))).done
    verdict = judge(windows(*[5.0] * WINDOWS_MIN))
    assert verdict.done
    assert verdict.mean_ms == 5.0
    assert verdict.half_width_pct == 0.0
    assert verdict.from_window == 0


def test_warming_up_does_not_count() -> None:
    means = [9.0, 7.5, 6.2, 5.4, *[5.0, 5.01, 4.99, 5.0, 5.01, 4.99, 5.0, 5.0]]
    verdict = judge(windows(*means))
    assert verdict.done
    assert verdict.from_window >= 3
    assert verdict.mean_ms == pytest.approx(5.0, rel=0.01)


def test_a_disturbance_starts_anew() -> None:
    found = windows(5.0, 5.0, 5.0, 5.0, 5.0)
    found.insert(4, MeasurementWindow(latency_ms_mean=8.0, clean=False))
    verdict = judge(found)
    assert not verdict.done
    assert verdict.mean_ms is None


def test_wide_scatter_goes_on_and_ends_with_the_reason() -> None:
    draw = random.Random(3)
    means = [draw.uniform(1.0, 20.0) for _ in range(WINDOWS_MAX)]
    assert not judge(windows(*means[:10])).done
    verdict = judge(windows(*means))
    assert verdict.done
    assert "only" in verdict.problem
    assert verdict.mean_ms is not None


def test_a_host_that_scatters_gets_what_it_can_show() -> None:
    """Launching kernel by kernel on an H200, means of a second spread by 15 %, whatever ran beside."""
    draw = random.Random(5)
    means = [draw.gauss(6.0, 0.9) for _ in range(WINDOWS_MAX)]
    assert not judge(windows(*means[:-1])).done
    verdict = judge(windows(*means))
    assert verdict.done
    assert not verdict.problem
    assert verdict.mean_ms == pytest.approx(6.0, rel=0.05)
    assert verdict.half_width_pct is not None
    assert 2.0 < verdict.half_width_pct < 10.0


def test_a_board_that_throttles_to_the_end_has_no_result() -> None:
    found = [MeasurementWindow(latency_ms_mean=5.0, clean=False)] * WINDOWS_MAX
    verdict = judge(found)
    assert verdict.done
    assert verdict.mean_ms is None
    assert "held down" in verdict.problem


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 * (1.0 / 3.0) ** 0.5)


def test_the_interval_holds_its_mean_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(400):
        mean, half = interval([draw.gauss(10.0, 1.0) for _ in range(8)])
        held += abs(mean - 10.0) <= half
    assert 0.92 <= held / 400 <= 0.98
