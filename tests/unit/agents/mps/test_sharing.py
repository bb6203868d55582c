"""Where pipes may lie, how many clients fit, and devices that are not divided."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.devices.parts import ShareOrder, Sharing
from agents.errors import NotFoundError
from agents.mps import NoSharing, client_slots, default_pipe_base
from agents.processes import environment_of
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("version", "part", "slots"),
    [
        (12040, 1.0, 48),
        (13000, 1.0, 48),
        (13010, 1.0, 60),
        (13040, 1.0, 60),
        (13040, 3 / 7, 25),
        (12040, 1 / 100, 1),
    ],
)
def test_clients_that_fit_depend_on_driver_and_slice(version: int, part: float, slots: int) -> None:
    assert client_slots(version, device_part=part) == slots


def test_pipes_lie_in_a_runtime_directory_or_else_in_the_state_directory(tmp_path: Path) -> None:
    state, runtime, system = tmp_path / "state", tmp_path / "run", tmp_path / "system"
    runtime.mkdir()
    assert default_pipe_base({"XDG_RUNTIME_DIR": str(runtime)}, state, system) == runtime / "hr" / "mps"
    assert default_pipe_base({"XDG_RUNTIME_DIR": str(tmp_path / "gone")}, state, system) == state / "mps"
    assert default_pipe_base({}, state, system) == state / "mps"
    system.mkdir()
    assert default_pipe_base({"XDG_RUNTIME_DIR": str(runtime)}, state, system) == system / "mps"


MIG = "MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
ORDER = ShareOrder(worker="w", uuid=MIG, share_pct_sm=100, memory_mib_limit=4000)


@pytest.fixture
def pipe() -> Iterator[Path]:
    """A directory short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="hr-none-") as name:
        yield Path(name)


def none(pipe: Path) -> Sharing:
    """Sharing that is none."""
    return NoSharing({MIG: 14}, pipe)


def test_a_worker_sees_its_device_and_has_all_of_it(pipe: Path) -> None:
    sharing = none(pipe)
    sharing.open(MIG)
    assert sharing.grant(ORDER) == {"CUDA_VISIBLE_DEVICES": MIG}
    assert not sharing.running(MIG)
    assert sharing.problem(MIG) == ""
    check = sharing.check(ORDER, (os.getpid(),))
    assert (check.sm_count, check.problem, check.pending) == (14, "", False)
    assert sharing.check(ORDER, ()).pending
    sharing.end_client(ORDER, os.getpid())
    sharing.revoke(ORDER)
    sharing.shut(MIG)
    sharing.close()


def test_a_client_of_some_daemon_does_not_go_unnoticed(pipe: Path) -> None:
    sharing = none(pipe / "default")
    with (
        socket.socket(socket.AF_UNIX) as daemon,
        subprocess.Popen(["/bin/sleep", "60"], env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}) as told,
        subprocess.Popen(["/bin/sleep", "60"], env={}) as untold,
    ):
        try:
            wait_until(lambda: environment_of(told.pid), "a process' environment")
            assert sharing.check(ORDER, (told.pid, untold.pid)).problem == ""
            daemon.bind(str(pipe / "control"))
            assert f"process {told.pid} is a client" in sharing.check(ORDER, (untold.pid, told.pid)).problem
            assert none(pipe).check(ORDER, (untold.pid,)).problem != ""
        finally:
            told.kill()
            untold.kill()


def test_a_device_that_is_not_there_is_refused(pipe: Path) -> None:
    sharing = NoSharing({}, pipe)
    with pytest.raises(NotFoundError):
        sharing.grant(ORDER)
