"""Keepers of jobs: real processes that wait for others and write down how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.errors import WorkerError
from agents.processes import HostProcesses, Invocation, ProcessId
from tests.waiting import wait_until


def kept(processes: HostProcesses, folder: Path, *command: str) -> tuple[ProcessId, Path]:
    asked = Invocation(arguments=command, environment={"ODD": "\udcff"}, working_directory=str(folder))
    with (folder / "log").open("ab") as log:
        return processes.start(asked, log.fileno(), folder / "ended"), folder / "ended"


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL)])
def test_how_a_process_ended_is_written_down_before_it_is_gone(tmp_path: Path, script: str, status: int) -> None:
    processes = HostProcesses()
    os.mkfifo(tmp_path / "go")
    process, ending = kept(processes, tmp_path, "/bin/sh", "-c", f"read -r _ < {tmp_path}/go; {script}")
    keeper = int(Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    (tmp_path / "go").write_text("\n")
    wait_until(lambda: not processes.alive(process) and not processes.keeper_waits(ending), "its end")
    assert processes.exit_status(process, ending) == status
    assert HostProcesses().exit_status(process, ending) == status, "any agent can tell"

    def none_left() -> bool:
        processes.sessions(())
        return not Path(f"/proc/{keeper}").exists()

    wait_until(none_left, "its keeper's end")


def test_it_leads_its_session_with_what_it_was_given_and_its_keeper_is_none_of_it(tmp_path: Path) -> None:
    processes = HostProcesses()
    process, ending = kept(
        processes, tmp_path, "/bin/sh", "-c", "pwd; echo ODD=$ODD; echo $HEADROOM_HOME; exec sleep 60"
    )
    try:
        assert processes.sessions((process,))[process] == (process,)
        assert processes.keeper_waits(ending)
        assert processes.exit_status(process, ending) is None
        said = tmp_path / "log"
        wait_until(lambda: said.read_bytes() == os.fsencode(f"{tmp_path}\nODD=\udcff\n\n"), "it has what it was given")
        assert not [each for each in Path(f"/proc/{process.pid}/fd").iterdir() if each.readlink() == ending]
    finally:
        processes.send(process, signal.SIGKILL)


def test_what_cannot_be_started_is_said_as_ever(tmp_path: Path) -> None:
    processes = HostProcesses()
    with pytest.raises(WorkerError, match=r"/no/such: .*No such file"):
        kept(processes, tmp_path, "/no/such")
    wait_until(lambda: not processes.keeper_waits(tmp_path / "ended"), "its keeper's end")
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(WorkerError, match="its interpreter is not there"):
        kept(processes, tmp_path, str(script))


def test_an_agent_that_is_gone_gets_nothing_started(tmp_path: Path) -> None:
    asked = f'{{"arguments": ["/bin/touch", "{tmp_path}/begun"], "environment": {{}}, "working_directory": null}}'
    with (tmp_path / "ended").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "agents.keeper", str(file.fileno()), str(os.getppid())],
            input=asked,
            pass_fds=(file.fileno(),),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert not (tmp_path / "begun").exists()
