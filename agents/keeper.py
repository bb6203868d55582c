"""The keeper of a job's or task's process: starts it, waits for it, and writes down how it ended.

Only a parent is told how a process ended, and agents come and go while jobs run. `agents.processes` starts a keeper as
`python -m agents.keeper FILE AGENT` with the worker's log as its error output: it reads an invocation, answers with the
process that it started or why it could not, and goes on in a session of its own until that process has ended. FILE is
the descriptor of what it writes; the lock on it says that it has not written yet. Until its worker runs it ends with
its agent, whose successor would not know that anything is about to be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

from agents.errors import WorkerError
from agents.processes import STATUS, HostProcesses, Invocation

_PR_SET_PDEATHSIG = 1


def main() -> int:
    file, agent = map(int, sys.argv[1:])
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        return 1
    try:
        started = HostProcesses().start(Invocation(**json.load(sys.stdin)), sys.stderr.fileno())
    except WorkerError as error:
        sys.stdout.write(json.dumps(str(error)))
        return 0
    prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps([started.pid, started.started_ticks]))
        sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for own in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(nothing, own.fileno())
    # It stays a zombie until its end is written down: who finds it gone finds how, too.
    ended = os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    os.pwrite(file, STATUS % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status), 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
