"""Setters through the socket: same verbs, same errors, and reasons where nobody answers."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agents.devices.parts import SETTINGS, ComputeMode, Setters
from agents.errors import DeviceError, DeviceTimeoutError, DriverError, NoPermissionError, OutOfRangeError
from agents.helper.client import HelperSetters, error_of
from agents.helper.protocol import HelperAnswer, encode_answer
from agents.helper.server import HelperRules
from tests.unit.agents.helper.conftest import Opener
from tests.unit.agents.helper.doubles import GPUS, Held
from tests.waiting import wait_until

RULES = HelperRules(uids=frozenset({os.getuid()}))
GPU = GPUS[0]


@pytest.fixture
def setters(folder: Path) -> Iterator[HelperSetters]:
    found = HelperSetters(folder / "helper.sock", timeout_s=10.0)
    yield found
    found.close()


def test_every_verb_reaches_the_device(listening: Opener, setters: HelperSetters) -> None:
    helper = listening(RULES)
    as_setters: Setters = setters
    as_setters.lock_clock(GPU, 900)
    as_setters.limit_power(GPU, 62.5)
    as_setters.set_compute_mode(GPU, ComputeMode.EXCLUSIVE_PROCESS)
    as_setters.set_persistence(GPU, True)
    assert helper.office.boards.held[GPU] == Held(
        clock=900, power=62.5, mode=ComputeMode.EXCLUSIVE_PROCESS, persistence=True
    )
    as_setters.lock_clock(GPU, None)
    as_setters.limit_power(GPU, None)
    assert (helper.office.boards.held[GPU].clock, helper.office.boards.held[GPU].power) == (None, None)
    assert as_setters.refusals() == {}
    helper.office.setters.reasons = {"set_power": "laptop", "unheard_of": "x"}
    assert as_setters.refusals() == {"set_power": "laptop"}


def test_without_a_helper_every_verb_is_refused_with_the_reason(setters: HelperSetters, folder: Path) -> None:
    refusals = setters.refusals()
    assert set(refusals) == set(SETTINGS)
    assert len(set(refusals.values())) == 1
    assert refusals["set_clock"].startswith(
        f"agent runs without privilege and no helper answers at {folder / 'helper.sock'}: "
    )
    with pytest.raises(NoPermissionError, match="no helper answers"):
        setters.lock_clock(GPU, 900)


def test_who_is_not_listed_learns_it(listening: Opener, setters: HelperSetters) -> None:
    listening(HelperRules(uids=frozenset({os.getuid() + 1})))
    for _ in range(3):
        with pytest.raises(NoPermissionError, match="may not use this helper"):
            setters.lock_clock(GPU, 900)
    assert "may not use this helper" in setters.refusals()["set_power"]


def _kinds(kind: type[DeviceError] = DeviceError) -> list[type[DeviceError]]:
    return [kind] + [each for below in kind.__subclasses__() for each in _kinds(below)]


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_every_device_error_comes_back_as_itself(
    listening: Opener, setters: HelperSetters, kind: type[DeviceError]
) -> None:
    helper = listening(RULES)
    helper.office.fail(kind("as the driver says"))
    with pytest.raises(DeviceError, match="as the driver says") as raised:
        setters.lock_clock(GPU, 900)
    assert type(raised.value) is kind


def test_other_errors_become_the_drivers() -> None:
    assert type(error_of(HelperAnswer(number=1, code="state-unusable", message="disk"))) is DriverError
    assert type(error_of(HelperAnswer(number=None, code="protocol", message="version"))) is DriverError


def test_devices_out_of_the_list_and_values_out_of_range_are_refused(listening: Opener, setters: HelperSetters) -> None:
    listening(RULES)
    with pytest.raises(DeviceError, match="no such device") as raised:
        setters.lock_clock("GPU-other", 900)
    assert raised.value.code == "not-found"
    with pytest.raises(OutOfRangeError, match="901 MHz"):
        setters.lock_clock(GPU, 901)


def test_it_finds_a_helper_that_was_started_again(listening: Opener, setters: HelperSetters) -> None:
    helper = listening(RULES)
    setters.lock_clock(GPU, 900)
    wait_until(lambda: helper.server.clients == 2 and setters.present)
    helper.close()
    wait_until(lambda: not setters.present)
    with pytest.raises(NoPermissionError, match="no helper answers"):
        setters.lock_clock(GPU, 915)
    following = listening(RULES)
    # Without being asked for anything it is there again, so that the new helper keeps what the old one set.
    wait_until(lambda: following.server.clients == 1)
    setters.lock_clock(GPU, 915)
    assert following.office.boards.held[GPU].clock == 915


def test_it_is_there_until_it_is_closed(listening: Opener, setters: HelperSetters) -> None:
    helper = listening(RULES)
    for _ in range(20):
        setters.refusals()
    wait_until(lambda: helper.server.clients == 2)
    setters.close()
    wait_until(lambda: helper.server.clients == 0)
    setters.refusals()
    wait_until(lambda: helper.server.clients == 2)


def test_closing_does_not_wait_for_a_helper_that_is_not_there(folder: Path) -> None:
    absent = HelperSetters(folder / "helper.sock")
    absent.refusals()
    absent.close()
    assert not any(thread.name == "helper-presence" for thread in threading.enumerate())


def test_many_threads_share_one_client(listening: Opener, setters: HelperSetters) -> None:
    helper = listening(RULES)

    def work(position: int) -> None:
        for number in range(25):
            setters.lock_clock(GPUS[position % 2], 300 + 15 * number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4), timeout=30))
    assert [held.clock for held in helper.office.boards.held.values()] == [660, 660]
    wait_until(lambda: helper.server.clients == 3)


class Impostor:
    """Something else that listens, and answers whatever a test says."""

    def __init__(self, path: Path, answer: bytes | None) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self._answer = answer
        self._held: list[tuple[socket.socket, threading.Thread]] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            serving = threading.Thread(target=self._serve, args=(connection,))
            self._held.append((connection, serving))
            serving.start()

    def _serve(self, connection: socket.socket) -> None:
        if connection.recv(4096) and self._answer is not None:
            connection.sendall(self._answer)
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=20)
        self.listener.close()
        for connection, serving in self._held:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            serving.join(timeout=20)
            connection.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", DriverError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", DriverError),
        (b"x" * 20_000, DriverError),
        (encode_answer(HelperAnswer(number=999_999)), DriverError),
        (None, DeviceTimeoutError),
    ],
    ids=["closes", "http", "endless", "other-number", "silent"],
)
def test_whatever_listens_there_it_ends_in_an_error_of_ours(
    folder: Path, answer: bytes | None, error: type[DeviceError]
) -> None:
    impostor = Impostor(folder / "helper.sock", answer)
    setters = HelperSetters(folder / "helper.sock", timeout_s=0.1 if answer is None else 10.0)
    try:
        for _ in range(2):
            with pytest.raises(error):
                setters.lock_clock(GPU, 900)
        assert set(setters.refusals()) == set(SETTINGS)
    finally:
        setters.close()
        impostor.close()
