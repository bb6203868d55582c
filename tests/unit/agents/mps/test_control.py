"""Reading texts whose form nobody promises, and running a program that may do anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agents.errors import DeviceTimeoutError, NotSupportedError, SharingError
from agents.mps import protocols
from agents.mps.protocols import MpsControl, memory_mib_in, number_in, pids_in, plain_environment, refused


@pytest.mark.parametrize(
    "text",
    [
        "Server not found",
        "Failed to start server",
        "error: unknown command 'x y'",
        "Unrecognized command: foo",
        "An instance of this daemon is already running",
        "Cannot find MPS control daemon process",
        "Permission denied",
        "Couldn't open the device",
        "no such namespace",
    ],
)
def test_error_texts_are_seen_whatever_the_exit_status(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize("text", ["", "50.0", "ACTIVE", "27475\n27476", "Server 'gpu' created", "10G"])
def test_plain_answers_are_no_errors(text: str) -> None:
    assert not refused(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("10G", 10240),
        ("900M", 900),
        ("512 MB", 512),
        ("Limit: 1.5GiB", 1536),
        ("1048576K", 1024),
        ("none", None),
        ("7", None),
    ],
)
def test_memory_values_are_binary_and_need_a_unit(text: str, mib: float | None) -> None:
    assert memory_mib_in(text) == mib


def test_numbers_and_pids_are_searched_for() -> None:
    assert number_in("Active thread percentage: 25.0 %") == 25.0
    assert number_in("-") is None
    assert pids_in("PID\n 12 \n34\n5 6\nabc") == (12, 34)


def script(path: Path, *lines: str) -> MpsControl:
    """A control program that is a Python script."""
    program = path / "control"
    program.write_text("\n".join((f"#!{sys.executable} -S", *lines)) + "\n")
    program.chmod(0o755)
    return MpsControl(str(program), path / "pipe")


def test_the_program_gets_the_pipe_and_no_limits_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = script(tmp_path, "import os", "print([k + '=' + os.environ[k] for k in os.environ if k[:4] == 'CUDA'])")
    assert found.ask("x") == f"['CUDA_MPS_PIPE_DIRECTORY={tmp_path / 'pipe'}']"
    assert "CUDA_VISIBLE_DEVICES" not in plain_environment({})


def test_exit_status_0_with_an_error_text_is_an_error(tmp_path: Path) -> None:
    found = script(tmp_path, "print('error: no such server')")
    with pytest.raises(SharingError, match="server list: error: no such server"):
        found.ask("server", "list")
    assert found.ask_freely("server", "list") == "error: no such server"


def test_another_exit_status_is_an_error_whatever_the_text(tmp_path: Path) -> None:
    with pytest.raises(SharingError, match="get_server_list: fine"):
        script(tmp_path, "import sys", "print('fine')", "sys.exit(3)").ask_freely(stdin="get_server_list\n")


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(DeviceTimeoutError):
        script(tmp_path, "import signal", "signal.pause()").ask(stdin="ps\n")


def test_a_host_without_the_program_does_not_support_it(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError):
        MpsControl(str(tmp_path / "absent"), tmp_path).ask("-v")
    (tmp_path / "plain").write_text("no program")
    with pytest.raises(SharingError):
        MpsControl(str(tmp_path / "plain"), tmp_path).ask("-v")
