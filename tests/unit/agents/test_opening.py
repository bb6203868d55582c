"""Where the parts of a host are put: daemons of MPS lie where all who are their clients can get."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents import opening
from agents.config import read_config
from agents.mps import MpsOptions
from agents.mps.daemon import PID_FILE
from agents.state import StateDirectory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a control program, and a place where daemons lie as long as all workers are one user's."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\nread line\n", encoding="ascii")
    program.chmod(0o755)
    (tmp_path / "private" / "gpu").mkdir(parents=True)
    monkeypatch.setattr(opening, "users_of", lambda _: object())
    monkeypatch.setattr(opening, "default_pipe_base", lambda *_: tmp_path / "private")
    return tmp_path


def pipes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an agent whose workers have users of their own puts its daemons."""
    made: list[MpsOptions] = []
    monkeypatch.setattr(opening, "MpsSharing", lambda options, _: made.append(options))
    arguments = ("--devices", "nvml:all", "--state-dir", str(folder / "state"))
    arguments += ("--mps-control", str(folder / "nvidia-cuda-mps-control"), "--worker-homes", str(folder / "homes"))
    config = read_config(arguments, {"HEADROOM_SERVER": "http://plane"})
    assert config.nvidia is not None
    boards: Any = SimpleNamespace(inventory=tuple, devices=tuple)
    opening._mps(config.nvidia, StateDirectory(folder / "state"), boards, time.monotonic)
    return made[0].pipe_base


def test_what_daemons_left_behind_keeps_nobody_in_their_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "private" / "gpu" / PID_FILE
    assert pipes(folder, monkeypatch) == folder / "homes" / ".mps"
    with subprocess.Popen([folder / "nvidia-cuda-mps-control"], stdin=subprocess.PIPE) as daemon:
        file.write_text(f"{daemon.pid}\n", encoding="ascii")
        assert pipes(folder, monkeypatch) == folder / "private", "one that lives has workers there"
        daemon.communicate(b"\n")
    assert pipes(folder, monkeypatch) == folder / "homes" / ".mps"
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        file.write_text(f"{other.pid}\n", encoding="ascii")
        assert pipes(folder, monkeypatch) == folder / "homes" / ".mps", "the pid is somebody else's by now"
        other.kill()
