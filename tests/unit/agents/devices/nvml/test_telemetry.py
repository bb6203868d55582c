"""What devices say reaches the agent, once, and nothing stays behind."""

from __future__ import annotations

import threading

import pynvml
import pytest

from agents.devices.nvml import NvmlBoards
from agents.devices.parts import BoardEvent
from tests.standins.nvml import ECC_DOUBLE, RECOVERY, UNAVAILABLE, Lacks, NvmlStandIn
from tests.unit.agents.devices.nvml.conftest import Clock, Opener, with_gpus
from tests.waiting import wait_until


def awaited(boards: NvmlBoards, count: int = 1) -> tuple[BoardEvent, ...]:
    """So many events, with a deadline."""
    found = list[BoardEvent]()
    wait_until(lambda: found.extend(boards.events()) or len(found) >= count, f"{count} events")
    return tuple(found)


def some_more(waits: list[int]) -> None:
    """Three more waits, with a deadline."""
    before = len(waits)
    wait_until(lambda: len(waits) >= before + 3, "three more waits")


@with_gpus("t4", "h100")
def test_an_xid_is_heard_once(host: NvmlStandIn, opened: Opener, clock: Clock) -> None:
    boards = opened()
    host.xid(host.uuids[1], 79)
    assert awaited(boards) == (BoardEvent(uuid=host.uuids[1], kind="xid", detail=79, at_s=clock.now_s),)
    assert boards.events() == ()


def test_every_kind_has_a_name_and_unasked_ones_stay_silent(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.event(uuid, 0x10, 0)
    for kind, data in ((ECC_DOUBLE, 1), (0x1, 2), (UNAVAILABLE, 0), (RECOVERY, 4)):
        host.event(uuid, kind, data)
    assert [(event.kind, event.detail) for event in awaited(boards, 4)] == [
        ("ecc_double_bit", 1),
        ("ecc_single_bit", 2),
        ("unavailable", 0),
        ("recovery_action", 4),
    ]


@with_gpus("a100-40gb-mig")
def test_a_cut_gpu_speaks_for_its_slices(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    host.xid(host.uuids[0], 48)
    assert {event.uuid for event in awaited(boards, 2)} == {mig.uuid for mig in host.plans[0].migs}


@with_gpus("t4", "t4")
def test_only_chosen_devices_are_listened_to(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened(f"nvml:{host.uuids[0]}")
    host.xid(host.uuids[1], 31)
    host.xid(host.uuids[0], 13)
    assert [(event.uuid, event.detail) for event in awaited(boards)] == [(host.uuids[0], 13)]


def test_a_device_without_events_is_no_failure(host: NvmlStandIn, opened: Opener) -> None:
    host.gpu(host.uuids[0]).lacks |= Lacks.EVENTS
    boards = opened()
    host.xid(host.uuids[0], 13)
    assert boards.events() == ()
    assert boards.reading(host.uuids[0]).healthy
    assert boards.notes[0].startswith("not every device tells events")


def test_a_driver_without_events_is_no_failure(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(3)

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", refuse)
    boards = opened()
    assert boards.events() == ()
    assert "NVML 3" in boards.notes[0]
    boards.close()


def test_a_wait_that_fails_goes_on(host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.devices.nvml.telemetry.PAUSE_S_AFTER_ERROR", 0.001)
    failures, wait = iter(range(3)), pynvml.nvmlEventSetWait

    def stumble(event_set: object, timeout_ms: int) -> object:
        for _ in failures:
            raise pynvml.NVMLError(999)
        return wait(event_set, timeout_ms)

    monkeypatch.setattr(pynvml, "nvmlEventSetWait", stumble)
    boards = opened()
    host.xid(host.uuids[0], 63)
    assert [event.detail for event in awaited(boards)] == [63]
    assert "NVML 999" in boards._events.problem


def test_a_wait_that_returns_early_is_not_an_event(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    early: list[object] = []

    def nothing(event_set: object, timeout_ms: int) -> object:
        early.append(timeout_ms)
        return pynvml.c_nvmlEventData_t()

    monkeypatch.setattr(pynvml, "nvmlEventSetWait", nothing)
    boards = opened()
    wait_until(lambda: len(early) >= 2, "two waits")
    assert boards.events() == ()


def test_closing_ends_the_thread(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    assert "nvml-events" in {thread.name for thread in threading.enumerate()}
    boards.close()
    assert "nvml-events" not in {thread.name for thread in threading.enumerate()}


@with_gpus("t4", "t4")
def test_a_wait_that_finds_a_lost_gpu_says_which(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.devices.nvml.telemetry.PAUSE_S_AFTER_ERROR", 0.001)
    waits: list[int] = []

    def lost(event_set: object, timeout_ms: int) -> None:
        waits.append(timeout_ms)
        raise pynvml.NVMLError(15)

    boards = opened()
    host.lose(host.uuids[1])
    monkeypatch.setattr(pynvml, "nvmlEventSetWait", lost)
    assert [(event.uuid, event.kind) for event in awaited(boards)] == [(host.uuids[1], "unavailable")]
    some_more(waits)
    assert boards.events() == ()
    host.lose(host.uuids[1], lost=False)
    some_more(waits)
    host.lose(host.uuids[1])
    assert [event.uuid for event in awaited(boards)] == [host.uuids[1]]


def test_nobody_taking_events_does_not_fill_the_memory(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    for number in range(30):
        host.xid(host.uuids[0], number)
    assert [event.detail for event in awaited(boards, 30)] == list(range(30))
    assert boards._events._queue.maxlen == 1000
