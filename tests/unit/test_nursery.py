"""Processes that are forked instead of started: what `exec` would have given them they have, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import nursery
from tests.integration.planner.processes import alive
from tests.waiting import wait_until

SHOWN = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "HEADROOM_SERVER": "http://127.0.0.1:9"}


def serving(tmp_path: Path) -> nursery.Process:
    """A process that waits for its database, in vain."""
    environment = {**SHOWN, "HEADROOM_DATABASE_URL": f"postgresql://x@/x?host={tmp_path}"}
    with (tmp_path / "log").open("wb") as log:
        command = (sys.executable, "-m", "app", "planner")
        process = nursery.start(command, environment, log, tmp_path)
    assert isinstance(process, nursery.Process)
    wait_until(lambda: b"database.awaited" in (tmp_path / "log").read_bytes(), "it waits")
    return process


@pytest.mark.parametrize("words", [("version",), ("nonsense",), ("get", "services", "--token", "t")])
def test_it_says_what_a_process_that_was_started_says(words: tuple[str, ...]) -> None:
    found = nursery.run(("app", *words), SHOWN)
    command = [sys.executable, "-m", "app", *words]
    started = subprocess.run(command, check=False, cwd=nursery.ROOT, env=SHOWN, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (started.returncode, started.stdout, started.stderr)


def test_it_has_an_environment_a_folder_a_session_and_streams_of_its_own(tmp_path: Path) -> None:
    process = serving(tmp_path)
    place = Path(f"/proc/{process.pid}")
    assert (place / "cwd").readlink() == tmp_path.resolve()
    assert os.getsid(process.pid) == process.pid
    opened = {int(each.name): str(each.readlink()) for each in (place / "fd").iterdir()}
    assert [opened.pop(number) for number in range(3)] == [os.devnull, *2 * [str(tmp_path / "log")]]
    assert not [name for name in opened.values() if "eventpoll" in name or "pidfd" in name], "of the one that forked"
    assert process.poll() is None
    process.terminate()
    assert process.wait(60.0) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM


def test_it_dies_with_whoever_asked_for_it(tmp_path: Path) -> None:
    process = serving(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    del process._told
    process._line.close()
    wait_until(lambda: not alive(process.pid), "it is gone")


def test_a_shell_runs_it_as_a_program(tmp_path: Path) -> None:
    nursery.put_program(tmp_path / "headroom", "app")
    line = "headroom version | tr a-z A-Z; headroom nonsense 2>/dev/null || echo $?"
    environment = {**SHOWN, "PATH": f"{tmp_path}:{SHOWN['PATH']}"}
    said = subprocess.run(["bash", "-c", line], check=True, env=environment, capture_output=True, text=True)
    assert said.stdout.startswith("HEADROOM ")
    assert said.stdout.endswith("\n2\n")


def test_what_it_spent_is_known() -> None:
    before = nursery.spent_s()
    nursery.run(("app", "version"), SHOWN)
    assert nursery.spent_s() > before


HEARD = """
import os, signal, socket
from tests import nursery
nursery._plan_in_forked()
listening = socket.create_server(("127.0.0.1", 0))
here = socket.create_connection(listening.getsockname())
there, _ = listening.accept()
line, other = socket.socketpair()
forked = os.fork()
if not forked:
    other.send(b"forked")
    signal.pause()
try:
    print(line.recv(9).decode())
    there.close()
    here.settimeout(20.0)
    print(here.recv(9))
finally:
    os.kill(forked, signal.SIGKILL)
"""


def test_what_plans_holds_nobody_on_the_line() -> None:
    """Chromium's next request went where nobody read, for the forked process had kept a connection that was ended."""
    command = [sys.executable, "-u", "-c", HEARD]
    said = subprocess.run(command, check=False, cwd=nursery.ROOT, capture_output=True, text=True)
    assert said.stdout == "forked\nb''\n", said.stderr
