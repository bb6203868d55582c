"""Who a process is: pid and start time, its program and the environment it was started with."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agents.errors import WorkerError
from agents.processes import HostProcesses, Invocation, ProcessId, bound_to, environment_of, identify, runs
from tests.waiting import wait_until


def test_a_process_is_itself_until_it_ends_and_a_zombie_is_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe / "gpu" / "w_1"), "X": "a=b"}
    with subprocess.Popen(["/bin/sleep", "60"], env=environment) as process:
        found = identify(process.pid)
        assert found is not None
        assert found.lives
        # A process is there before its program's arguments and environment are.
        wait_until(lambda: environment_of(process.pid) == environment, "its environment")
        assert bound_to(pipe) == (process.pid,)
        assert bound_to(tmp_path / "pip") == ()
        assert runs(process.pid, "sleep")
        assert not runs(process.pid, "slee")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert identify(process.pid) is None
        assert not found.lives
    assert environment_of(process.pid) is None
    assert not runs(process.pid, "sleep")


def test_a_pid_used_again_is_another_process() -> None:
    mine = identify(os.getpid())
    assert mine is not None
    assert not ProcessId(mine.pid, mine.started_ticks + 1).lives


def test_a_script_whose_interpreter_is_not_there_is_not_said_to_be_missing(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    asked = Invocation(arguments=(str(script),), environment={}, working_directory=None)
    with pytest.raises(WorkerError, match=r"serve\.sh: its interpreter is not there"):
        HostProcesses().start(asked, 1)
    with pytest.raises(WorkerError, match="No such file or directory: '/no/such/place'"):
        HostProcesses().start(replace(asked, working_directory="/no/such/place"), 1)


def test_a_host_without_threads_starts_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asked = Invocation(arguments=("/bin/true",), environment={}, working_directory=None, uid=1_900_100_000)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(WorkerError, match="thread"):
        HostProcesses().start(asked, 2)


def test_this_very_process_runs_the_interpreter() -> None:
    assert runs(os.getpid(), Path(sys.executable).name)
