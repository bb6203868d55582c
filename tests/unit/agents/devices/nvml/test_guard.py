"""A driver that hangs costs one device and one thread, never the agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agents.devices.nvml.binding import Driver, Nvml
from agents.errors import DeviceTimeoutError, LostError
from tests.unit.agents.devices.nvml.conftest import impatient
from tests.waiting import LIMIT_S, wait_until


@pytest.fixture
def driver() -> Iterator[Driver]:
    found = Driver(Nvml(None), timeout_s=LIMIT_S)
    yield found
    found.close()


def test_results_and_errors_come_back(driver: Driver) -> None:
    def lost(nvml: Nvml) -> int:
        raise LostError("gone")

    assert driver.run("GPU-a", lambda nvml: 7) == 7
    with pytest.raises(LostError, match="gone"):
        driver.run("GPU-a", lost)
    assert driver.run("", lambda nvml: threading.current_thread().name) == "nvml"


def test_a_hanging_call_times_out_and_marks_its_device(driver: Driver) -> None:
    release = threading.Event()
    with impatient(driver), pytest.raises(DeviceTimeoutError, match="GPU-a: no answer within"):
        driver.run("GPU-a", lambda nvml: release.wait(LIMIT_S))
    assert driver.hung("GPU-a")
    with pytest.raises(DeviceTimeoutError, match="still hangs"):
        driver.run("GPU-a", lambda nvml: 1)
    assert driver.run("GPU-b", lambda nvml: 2) == 2
    release.set()
    wait_until(lambda: not driver.hung("GPU-a"))
    assert driver.run("GPU-a", lambda nvml: 3) == 3


def test_at_most_one_thread_is_lost_per_device(driver: Driver) -> None:
    release = threading.Event()
    before = threading.active_count()
    for _ in range(5):
        for device in ("GPU-a", "GPU-b"):
            with impatient(driver), pytest.raises(DeviceTimeoutError):
                driver.run(device, lambda nvml: release.wait(LIMIT_S))
    assert threading.active_count() <= before + 3
    release.set()
    wait_until(lambda: not driver.hung("GPU-a") and not driver.hung("GPU-b"))


def test_calls_come_one_at_a_time(driver: Driver) -> None:
    busy, most = [0], [0]
    gate = threading.Lock()

    def count(nvml: Nvml) -> None:
        with gate:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        with gate:
            busy[0] -= 1

    slow = Driver(Nvml(None), timeout_s=LIMIT_S)
    threads = [threading.Thread(target=lambda: [slow.run(f"GPU-{n}", count) for n in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    slow.close()
    assert most[0] == 1


def test_whoever_waits_too_long_for_his_turn_is_told(driver: Driver) -> None:
    with driver._turn, impatient(driver), pytest.raises(DeviceTimeoutError, match="busy with another call"):
        driver.run("GPU-a", lambda nvml: 1)
    assert not driver.hung("GPU-a")
    assert driver.run("GPU-a", lambda nvml: 1) == 1
