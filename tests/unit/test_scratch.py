"""What a killed run of tests leaves behind is ended and removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.planner.processes import alive
from tests.nursery import ROOT
from tests.waiting import wait_until

RUN = """
import os, subprocess, sys
from pathlib import Path
from tests import scratch
own, kept = scratch.make_own(), Path(sys.argv[1])
scratch.clear_after_us(own, kept)
clean = {"PATH": os.environ["PATH"], "PGDATA": str(kept / "data")}
left = [
    subprocess.Popen(["sleep", "1000"], start_new_session=True, env=each, stdout=subprocess.DEVNULL)
    for each in (None, clean, {**clean, "PGDATA": f"{kept}2/data"})
]
print(own, *(process.pid for process in left), flush=True)
sys.stdin.read()
"""


def test_a_killed_run_leaves_neither_processes_nor_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    run = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdin is not None
    assert run.stdout is not None
    own, *pids = run.stdout.readline().split()
    ours, theirs = map(int, pids[:2]), int(pids[2])
    assert Path(own).is_dir()
    run.kill()
    run.wait()
    run.stdin.close()
    run.stdout.close()
    wait_until(lambda: not Path(own).exists(), "the folder is gone")
    wait_until(lambda: not any(alive(pid) for pid in ours), "processes are gone")
    assert alive(theirs)
    os.kill(theirs, signal.SIGKILL)
