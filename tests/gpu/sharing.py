"""Steps about MPS: the SMs a share gives, whether the memory limit holds, and that a bypassing process is noticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from agents.devices.base import WorkerState
from agents.processes import environment_of
from tests.gpu.host import ask, ended, opened, ready, spec
from tests.gpu.rig import Rig

SHARES = (10, 25, 50, 75, 100)
LIMIT_MIB = 6144
START_MIB_STEP = 512
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def shares(rig: Rig) -> None:
    """SMs as workers see them, by share; up to four side by side."""
    with opened(rig) as host:
        for share in SHARES:
            began_s = time.monotonic()
            worker = ready(rig, host, spec(rig, f"w{share}", "matmul", share=share))
            took_s = time.monotonic() - began_s
            seen = ask(worker, "/facts")["sm_count"]
            expected = rig.device.sm_count * share / 100
            rig.note(f"SMs at {share} %", float(seen), note=f"{expected:.1f} by arithmetic; ready after {took_s:.1f} s")
            rig.check(f"the agent reads the same at {share} %", worker.sm_count == seen, float(worker.sm_count))
            ended(rig, host, worker)
        workers = [ready(rig, host, spec(rig, f"s{place}", "matmul", share=25)) for place in range(4)]
        rig.check("four workers of 25 % side by side", len({worker.worker for worker in workers}) == 4)
        clients = [process for process in rig.boards.processes(rig.uuid) if process.mps_client]
        rig.check("the driver lists them as MPS clients", len(clients) >= 4, float(len(clients)))


def memory(rig: Rig) -> None:
    """Allocate until the limit says no; what is usable of it; the device's total as seen from inside."""
    with opened(rig) as host:
        worker = ready(rig, host, spec(rig, "limited", "matmul", share=30, memory_mib=LIMIT_MIB))
        facts = ask(worker, "/facts")
        rig.note("free as seen under a limit", float(facts["free_mib"]), "MiB", note=f"limit {LIMIT_MIB} MiB")
        rig.note("total as seen under a limit", float(facts["total_mib"]), "MiB")
        got, problem = 0, ""
        while got < 4 * LIMIT_MIB and not problem:
            problem = ask(worker, f"/allocate?mib={START_MIB_STEP}")["problem"]
            got += 0 if problem else START_MIB_STEP
        rig.check("the limit holds", bool(problem) and got <= LIMIT_MIB, float(got), "MiB", note=problem[:80])
        rig.check("the worker survives its refusal", "seconds" in ask(worker, "/infer"))


def bypass(rig: Rig) -> None:
    """Kill the daemon under a worker: what the agent notices and does, and how long that takes."""
    with opened(rig) as host:
        ready(rig, host, spec(rig, "before", "matmul", share=40))
        pipes = {(environment_of(each.pid) or {}).get(PIPE) for each in rig.boards.processes(rig.uuid)}
        daemons = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if _is_daemon(path, pipes)]
        rig.note("daemons found", float(len(daemons)))
        began_s = time.monotonic()
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        states = rig.until(
            lambda: any(worker.state is WorkerState.FAILED for worker in host.workers()) or not host.workers(),
            30.0,
            0.2,
        )
        rig.note("a worker whose daemon died is given up after", time.monotonic() - began_s, "s")
        rig.check("it is noticed", states is not None)
        for worker in host.workers():
            rig.note("what the agent says", worker.problem[:120])


def _is_daemon(comm: Path, pipes: Collection[str | None]) -> bool:
    """Whether this is a control daemon or server that workers here are clients of; a stand-in host may have another one
    for a device of the same UUID.
    """
    found = (environment_of(int(comm.parent.name)) or {}).get(PIPE)
    with suppress(OSError):
        return found is not None and found in pipes and comm.read_text().strip() == "nvidia-cuda-mps"
    return False
