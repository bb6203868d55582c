"""Boards over simulated GPUs whose time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from agents.devices.nvml import NvmlBoards, open_boards
from agents.devices.nvml.binding import Driver
from tests.standins.nvml import NvmlStandIn
from tests.standins.nvml.double import installed
from tests.waiting import LIMIT_S


class Clock:
    """Time that only passes when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


Opener = Callable[..., NvmlBoards]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(tmp_path, request, clock) -> Iterator[NvmlStandIn]:
    """GPUs on the test's clock; the marker's parameters say which."""
    found = NvmlStandIn(tmp_path / "nvml", getattr(request, "param", ("t4",)), now_s=clock)
    with installed(found.double()):
        yield found
    found.close()


@pytest.fixture
def opened(host, clock) -> Iterator[Opener]:
    """Opens boards and closes them in the end."""
    boards: list[NvmlBoards] = []

    def open_them(selection: str = "nvml:all", timeout_s: float = LIMIT_S) -> NvmlBoards:
        boards.append(open_boards(selection, timeout_s=timeout_s, now_s=clock, event_wait_ms=5))
        return boards[-1]

    yield open_them
    for one in boards:
        one.close()


@contextmanager
def impatient(driver: Driver) -> Iterator[None]:
    """Wait less long for a call that a planted fault holds up; others may take what a busy host takes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(driver, "_timeout_s", 0.05)
        yield


def with_gpus(*gpus: object) -> pytest.MarkDecorator:
    """Which GPUs a test's host has."""
    return pytest.mark.parametrize("host", [gpus], indirect=True, ids=["host"])
