"""Every code NVML can answer is one of our errors, as agents.errors documents them."""

from __future__ import annotations

import re

import pynvml
import pytest

from agents import errors
from agents.devices.nvml.binding import ERRORS, error_of

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
