"""The binding's faults do not reach the agent."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from agents.devices.nvml import binding
from agents.devices.nvml.binding import CODE_RETURNING, ERRORS, NEVER_RAISING, Nvml, load_binding
from agents.errors import DriverError, NotSupportedError, OutOfRangeError
from tests.standins.nvml import Missing, NvmlStandIn


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
