"""The desk: takes a device only when it is free, gives it back when it is wanted, loses nothing it measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agents.devices.base import Reservations
from agents.errors import DriverError, NoPermissionError
from agents.log import Log
from agents.loop.collect import Collector
from agents.profiling.desk import DeskParts, ProfilingDesk
from agents.profiling.loads import HttpLoads, LoadMaker, OfferedLoads
from agents.profiling.points import Control, MeasuringPoint
from agents.servers import Servers
from agents.transport import UnreachableError
from agents.wire import ProfileOrder, ProfileSubject
from tests.unit.agents.builders import NODE, worker_spec
from tests.unit.agents.profiling.staging import Saturating, Stage

SUBJECT = ProfileSubject(service="team/svc", project="team", model="resnet50", launch_s=2.0, worker=None)
OTHER = ProfileSubject(service="team/other", project="team", model="bert-base", launch_s=2.0, worker=None)


@dataclass
class Plane(Control):
    """A control plane as the desk sees it."""

    wanted: list[ProfileOrder] = field(default_factory=list)
    asked: list[MeasuringPoint] = field(default_factory=list)
    news: list[dict[str, Any]] = field(default_factory=list)
    points_in: list[Any] = field(default_factory=list)
    pairs_in: list[Any] = field(default_factory=list)
    away: int = 0
    """So many calls are not answered."""
    cancelled_after: int = 10**6

    def __post_init__(self) -> None:
        super().__init__(Servers(("http://127.0.0.1:9",), "node-1").connection())

    def orders(self) -> tuple[ProfileOrder, ...]:
        return tuple(self.wanted)

    def points(self, run: int) -> tuple[MeasuringPoint, ...]:
        done = {(row["batch"], row["share_pct_sm"]) for row in self.points_in}
        return tuple(point for point in self.asked if (point.batch, point.share_pct_sm) not in done)

    def tell(self, run: int, news: dict[str, Any], points: Sequence[Any] = (), pairs: Sequence[Any] = ()) -> bool:
        if self.away > 0:
            self.away -= 1
            raise UnreachableError("nobody answers")
        self.news.append(news)
        self.points_in += points
        self.pairs_in += pairs
        return len(self.news) < self.cancelled_after


class StagedLoads:
    """Load in a test's own time."""

    origin = "simulated"

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def refusal(self, worker: object) -> str:
        return ""

    def begin(self, worker: Any, concurrency: int) -> Saturating:
        self._stage.loads.append(Saturating(self._stage, worker.spec.replica))
        return self._stage.loads[-1]


@dataclass
class Room:
    """A desk with all around it."""

    folder: Path
    plane: Plane = field(default_factory=Plane)
    stage: Stage = field(default_factory=Stage)
    reservations: Reservations = field(default_factory=Reservations)
    taken: set[str] = field(default_factory=set)
    loads: LoadMaker | None = None
    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """What happens after so many seconds."""

    @property
    def uuid(self) -> str:
        return self.stage.uuid

    def desk(self) -> ProfilingDesk:
        return ProfilingDesk(
            DeskParts(
                devices=self.stage.devices,
                reservations=self.reservations,
                occupied=lambda uuid: uuid in self.taken,
                samples=self.stage.devices.collect,
                loads=self.loads or StagedLoads(self.stage),
                control=self.plane,
                token=lambda: "t",
                folder=self.folder,
                log=Log(NODE),
                now_s=self.stage.clock,
                wait_s=self.wait,
            )
        )

    def wait(self, seconds: float) -> None:
        self.stage.wait(seconds)
        for moment_s, act in [item for item in self.later if self.stage.waited_s >= item[0]]:
            self.later.remove((moment_s, act))
            act()

    def order(self, **more: Any) -> None:
        fields: dict[str, Any] = {"run": 7, "uuid": self.uuid, "subject": SUBJECT, "beside": None, "budget_s": 600.0}
        self.plane.wanted = [ProfileOrder(**{**fields, "drain": False, **more})]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


POINTS = [MeasuringPoint(batch=4, share_pct_sm=50), MeasuringPoint(batch=8, share_pct_sm=100)]


def left_clean(room: Room) -> bool:
    free = not room.reservations.is_lent(room.uuid)
    return free and room.stage.devices.workers() == () and all(load.closed for load in room.stage.loads)


def test_a_budget_too_small_for_one_point_is_said(room: Room) -> None:
    room.order(budget_s=30.0)
    room.plane.asked = POINTS
    room.desk().look()
    detail = "nothing was measured: the budget is 30 s, and a first point is reckoned with 40 s"
    assert room.plane.news[-1] == {"state": "failed", "measured": 0, "doubtful": 0, "detail": detail}


def test_an_order_is_measured_and_handed_in(room: Room) -> None:
    room.order()
    room.plane.asked = POINTS
    room.desk().look()
    assert [(row["batch"], row["share_pct_sm"], row["origin"]) for row in room.plane.points_in] == [
        (4, 50, "simulated"),
        (8, 100, "simulated"),
    ]
    assert room.plane.news[-1] == {"state": "done", "measured": 2, "doubtful": 0, "detail": ""}
    assert left_clean(room)


def test_no_report_counts_what_was_measured_as_the_services_own(room: Room) -> None:
    room.order()
    room.plane.asked = POINTS
    seen: list[str] = []

    def look() -> None:
        assert room.stage.devices.workers()
        sampler = Collector(NODE, "boot-1", room.stage.devices.collect, (room.stage.clock, room.stage.clock))
        seen.extend(row.replica for row in sampler.cut(0).replicas)

    room.later += [(second, look) for second in (5.0, 8.0, 9.0)]
    room.desk().look()
    assert (room.later, seen) == ([], [])
    assert room.plane.news[-1]["state"] == "done"


def test_live_traffic_is_not_disturbed(room: Room) -> None:
    room.order()
    room.plane.asked = POINTS
    room.taken.add(room.uuid)
    room.desk().look()
    assert room.plane.news[-1]["state"] == "failed"
    assert "live traffic" in room.plane.news[-1]["detail"]
    assert room.plane.points_in == []


def test_a_device_with_processes_left_is_not_free(room: Room) -> None:
    room.order()
    room.plane.asked = POINTS
    room.stage.devices.start(room.uuid, worker_spec("left-over"))
    room.desk().look()
    assert room.plane.news[-1]["state"] == "failed"
    assert [worker.spec.replica for worker in room.stage.devices.workers()] == ["left-over"]


def test_draining_is_waited_for(room: Room) -> None:
    room.order(drain=True)
    room.plane.asked = POINTS[:1]
    room.taken.add(room.uuid)
    room.later.append((20.0, room.taken.clear))
    room.desk().look()
    assert room.plane.news[0]["detail"] == "waits until the device is drained"
    assert room.plane.news[-1]["state"] == "done"
    assert room.stage.waited_s >= 20.0


def test_a_device_that_is_never_drained_is_given_up(room: Room) -> None:
    room.order(drain=True)
    room.taken.add(room.uuid)
    room.desk().look()
    assert "was not drained" in room.plane.news[-1]["detail"]


def test_a_device_that_is_wanted_back_is_given_back(room: Room) -> None:
    room.order()
    room.plane.asked = POINTS
    room.later.append((12.0, lambda: room.reservations.claim(room.uuid)))
    room.desk().look()
    assert room.plane.news[-1]["state"] == "failed"
    assert room.plane.news[-1]["detail"] == "the target wants the device back"
    assert left_clean(room)


def test_a_cancelled_run_ends(room: Room) -> None:
    room.order()
    room.plane.asked = [MeasuringPoint(batch=1, share_pct_sm=share) for share in range(10, 101, 10)]
    room.plane.cancelled_after = 2
    room.desk().look()
    assert len(room.plane.points_in) == 1
    assert left_clean(room)


def test_what_was_measured_while_nobody_answered_is_handed_in_later(room: Room) -> None:
    room.order()
    room.plane.asked = POINTS
    room.plane.away = 3
    room.desk().look()
    assert sorted(row["batch"] for row in room.plane.points_in) == [4, 8]
    assert room.plane.news[-1]["measured"] == 2


def test_an_agent_that_starts_anew_goes_on_where_it_was(room: Room, tmp_path: Path) -> None:
    room.order()
    room.plane.asked = POINTS
    room.later.append((25.0, lambda: room.reservations.claim(room.uuid)))
    room.desk().look()
    assert len(room.plane.points_in) == 1
    again = Room(tmp_path)
    again.order(uuid=again.uuid)
    again.plane.asked = POINTS
    again.desk().look()
    assert [row["batch"] for row in again.plane.points_in] == [4, 8]
    assert len(again.stage.loads) == 1


def test_pairs_are_measured_alone_and_side_by_side(room: Room) -> None:
    room.order(beside=OTHER, budget_s=150.0)
    room.desk().look()
    assert {row["model"] for row in room.plane.points_in} == {"resnet50", "bert-base"}
    first = room.plane.pairs_in[0]
    assert (first["model_a"], first["model_b"], first["share_pct_a"], first["share_pct_b"]) == (
        "resnet50",
        "bert-base",
        50,
        50,
    )
    alone = next(row for row in room.plane.points_in if row["model"] == "resnet50")
    assert first["latency_ms_a"] > alone["latency_ms_mean"]
    assert left_clean(room)


def test_a_service_without_a_process_is_refused_on_real_devices(room: Room) -> None:
    room.loads = HttpLoads()
    room.order()
    room.desk().look()
    assert "does not say how its process is started" in room.plane.news[-1]["detail"]


def test_an_unknown_device_is_refused(room: Room) -> None:
    room.order(uuid="GPU-other")
    room.desk().look()
    assert "no device GPU-other" in room.plane.news[-1]["detail"]


def test_a_host_without_threads_fails_the_run_and_not_its_points(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    room.loads = OfferedLoads(room.stage.devices)
    room.plane.asked = POINTS
    room.order()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    room.desk().look()
    assert room.plane.news[-1]["state"] == "failed"
    assert "no thread left" in room.plane.news[-1]["detail"]
    assert left_clean(room)
    assert not list(room.folder.rglob("*.jsonl")), "a point that could not be loaded is measured another time"


def no_lower_clock(uuid: str, clock_mhz_sm: int | None) -> None:
    if clock_mhz_sm is not None:
        raise NoPermissionError("nvmlDeviceSetGpuLockedClocks: no permission (NVML 4)")


LOCKED = [replace(POINTS[0], batch=2, clock_mhz_sm=1005), *POINTS]


def test_a_clock_that_this_agent_may_not_set_is_not_tried(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = room.stage.devices.inventory()
    refusing = replace(found, capabilities={"set_clock": "this process may not write to GPUs"})
    monkeypatch.setattr(room.stage.devices, "inventory", lambda: (refusing,))
    monkeypatch.setattr(room.stage.devices, "set_clock", no_lower_clock)
    room.order()
    room.plane.asked = LOCKED
    room.desk().look()
    assert room.plane.news[-1] == {"state": "done", "measured": 3, "doubtful": 0, "detail": ""}
    assert {row["clock_mhz_sm"] for row in room.plane.points_in} == {found.clocks_mhz_sm[-1]}


def test_a_clock_that_is_refused_fails_its_point_alone(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.stage.devices, "set_clock", no_lower_clock)
    room.order()
    room.plane.asked = LOCKED
    room.desk().look()
    assert room.plane.news[-1] == {"state": "done", "measured": 2, "doubtful": 1, "detail": ""}
    assert any("no result" in told["detail"] and "no permission" in told["detail"] for told in room.plane.news)


def test_a_device_that_fails_once_in_between_ends_no_run(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = room.stage.devices.collect
    failures = [DriverError("nvmlDeviceGetUtilizationRates: unknown (NVML 999)")]

    def once() -> Any:
        if failures and room.plane.points_in:
            raise failures.pop()
        return collect()

    monkeypatch.setattr(room.stage.devices, "collect", once)
    room.order()
    room.plane.asked = [*POINTS, MeasuringPoint(batch=16, share_pct_sm=100)]
    room.desk().look()
    assert [row["batch"] for row in room.plane.points_in] == [4, 16]
    assert room.plane.news[-1] == {"state": "done", "measured": 2, "doubtful": 1, "detail": ""}
    assert left_clean(room)


def test_a_run_of_failures_says_why_the_first_of_them_failed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.stage.devices, "set_clock", no_lower_clock)
    room.order()
    low = [replace(POINTS[0], batch=batch, clock_mhz_sm=1005) for batch in (2, 16, 32)]
    room.plane.asked = [replace(low[0], batch=1), POINTS[0], *low, POINTS[1]]
    room.desk().look()
    end = room.plane.news[-1]
    assert (end["state"], end["measured"], end["doubtful"]) == ("failed", 1, 4)
    assert "batch 2, 50 %, 1005 MHz: no result" in end["detail"]
    assert "no permission" in end["detail"]


def test_the_highest_clock_is_no_lock(room: Room) -> None:
    top = room.stage.devices.inventory()[0].clocks_mhz_sm[-1]
    room.order()
    room.plane.asked = [MeasuringPoint(batch=4, share_pct_sm=50, clock_mhz_sm=top)]
    locked: list[int | None] = []
    room.later.append((5.0, lambda: locked.append(room.stage.devices.settings(room.uuid).clock_mhz_sm)))
    room.desk().look()
    assert locked == [None]
    assert [row["clock_mhz_sm"] for row in room.plane.points_in] == [top]
