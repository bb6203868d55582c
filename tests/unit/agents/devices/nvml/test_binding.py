"""The binding's faults do not reach the agent."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest

from agents import errors
from agents.devices.nvml import binding
from agents.devices.nvml.binding import CODE_RETURNING, ERRORS, NEVER_RAISING, Driver, Nvml, error_of, load_binding
from agents.errors import DeviceTimeoutError, DriverError, LostError, NotSupportedError, OutOfRangeError
from tests.standins.nvml import Missing, NvmlStandIn
from tests.unit.agents.devices.nvml.conftest import impatient
from tests.waiting import LIMIT_S, wait_until


@pytest.fixture
def nvml(host) -> Nvml:
    found = Nvml(load_binding())
    found.call("nvmlInit")
    return found


def handle(nvml: Nvml) -> object:
    return nvml.call("nvmlDeviceGetHandleByIndex", 0)


def test_the_legacy_module_of_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(__file__="/somewhere/pynvml.py"))
    with pytest.raises(DriverError, match=r"/somewhere/pynvml.py is the legacy package.*install nvidia-ml-py"):
        load_binding()


def test_a_missing_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DriverError, match="nvidia-ml-py"):
        load_binding()


def test_importing_the_back_end_does_not_import_the_binding() -> None:
    code = "import sys, agents.devices.nvml, tests.gpu.recorded; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_whatever_a_call_answers_becomes_our_error(nvml: Nvml, host: NvmlStandIn, code: int) -> None:
    gpu = handle(nvml)
    host.fail_reads(host.uuids[0], code)
    with pytest.raises(ERRORS[code][0], match=rf"nvmlDeviceGetName: .*\(NVML {code}\)"):
        nvml.call("nvmlDeviceGetName", gpu)


@pytest.mark.parametrize("name", sorted(NEVER_RAISING))
def test_calls_that_hide_failures_are_refused(nvml: Nvml, name: str) -> None:
    assert hasattr(pynvml, name)
    with pytest.raises(NotSupportedError, match="cannot be trusted"):
        nvml.call(name, handle(nvml), 0, 70000)


@pytest.mark.parametrize("name", sorted(CODE_RETURNING))
def test_codes_that_are_returned_are_raised(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert hasattr(pynvml, name)
    monkeypatch.setattr(pynvml, name, lambda *_: 2)
    with pytest.raises(OutOfRangeError):
        nvml.call(name)
    monkeypatch.setattr(pynvml, name, lambda *_: 0)
    assert nvml.call(name) == 0


def test_nothing_to_report_is_no_error(nvml: Nvml) -> None:
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetProcessUtilization(handle(nvml), 0)
    assert caught.value.value == 0
    assert nvml.call("nvmlDeviceGetProcessUtilization", handle(nvml), 0) == ()


def test_missing_symbols_and_names_are_not_supported(nvml: Nvml, host: NvmlStandIn) -> None:
    host.miss(Missing.EVENT_REASONS)
    with pytest.raises(NotSupportedError, match="NVML 13"):
        nvml.call("nvmlDeviceGetCurrentClocksEventReasons", handle(nvml))
    with pytest.raises(NotSupportedError, match="nvmlDeviceGetAura"):
        nvml.call("nvmlDeviceGetAura", handle(nvml))
    assert nvml.maybe("nvmlDeviceGetAura", handle(nvml)) is None


def test_a_library_older_than_the_binding_is_not_supported(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def mismatched() -> None:
        raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", mismatched)
    with pytest.raises(NotSupportedError):
        nvml.call("nvmlSystemGetDriverVersion")


def test_bytes_that_are_no_text_are_a_driver_error(nvml: Nvml, host: NvmlStandIn) -> None:
    host.host.driver = b"\xff\xfe"
    with pytest.raises(DriverError, match="nvmlSystemGetDriverVersion"):
        nvml.call("nvmlSystemGetDriverVersion")


def test_the_first_name_that_exists_is_taken_and_kept(nvml: Nvml, host: NvmlStandIn) -> None:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    host.miss(Missing.EVENT_REASONS)
    assert nvml.first(names, handle(nvml)) == 1
    host.miss(Missing(0))
    assert nvml.first(names, handle(nvml)) == 1
    assert binding.address(handle(nvml)) == 1
    with pytest.raises(NotSupportedError):
        nvml.first(("nvmlDeviceGetAura",), handle(nvml))


# --- Every code NVML can answer is one of our errors, as agents.errors documents them.


CODES = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}


def documented() -> dict[int, type[errors.DeviceError]]:
    """Codes named in the docstrings of the error tree."""
    found: dict[int, type[errors.DeviceError]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.DeviceError):
            for listed in re.findall(r"\(NVML ([\d, ]+)\)", " ".join((kind.__doc__ or "").split())):
                found |= {int(number): kind for number in listed.split(",")}
    return found


def test_every_code_of_the_binding_is_mapped() -> None:
    assert len(CODES) >= 31
    assert {name for name, value in CODES.items() if value not in ERRORS} == set()
    assert set(ERRORS) == set(CODES.values())


def test_the_error_tree_documents_the_same_codes() -> None:
    assert documented() == {code: kind for code, (kind, _) in ERRORS.items()}


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_an_error_says_call_and_code(code: int) -> None:
    error = error_of(code, "nvmlSomething")
    assert type(error) is ERRORS[code][0]
    assert str(error).startswith("nvmlSomething: ")
    assert str(error).endswith(f"(NVML {code})")


def test_a_code_of_the_future_is_a_driver_error() -> None:
    assert type(error_of(4711, "nvmlSomething")) is errors.DriverError


# --- A driver that hangs costs one device and one thread, never the agent.


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
