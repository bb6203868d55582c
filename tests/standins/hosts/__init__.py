"""A whole GPU host that is not there: NVML, MPS and CUDA stand-ins over the same GPUs, and workers that are processes.

Owns their joining, the faults of workers, a watch that looks at every device all the time for more memory than it has,
and the list of what is left behind at the end. The agent's real parts run on it.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agents.crew import CrewOptions, open_crew
from agents.devices.nvidia.control import HostParts, SettingsJournal
from agents.devices.nvidia.host import NvidiaDevices
from agents.devices.nvml import NvmlSetters, open_boards
from agents.loop.apply import Applier
from agents.mps import MpsOptions, MpsSharing, NoSharing
from agents.state import StateDirectory, host_boot_id
from agents.wire import WorkerTarget
from tests.ports import port_option
from tests.standins.mps import MpsStandIn, StandInGpu
from tests.standins.nvml import PRESETS, GpuPlan, NvmlStandIn
from tests.standins.nvml.double import installed
from tests.unit.agents.builders import NODE
from tests.waiting import wait_until

SOURCE = Path(__file__).with_name("worker.c")
GRACE_S = 0.02
SLOTS = 48
FAULTS = ("bypass", "brief", "deaf", "hopeless", "stillborn")


@functools.cache
def worker_program() -> Path:
    """The worker, compiled once per process of tests."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise AssertionError("the stand-ins are written in C: install a C compiler (Debian: gcc)")
    into = Path(tempfile.mkdtemp(prefix="hr-worker-"))
    atexit.register(shutil.rmtree, into, ignore_errors=True)
    built = into / "worker"
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", built, SOURCE, "-ldl"], check=True)
    return built


class HostStandIn:
    """A host with some GPUs. Close it; `leftovers` says what an agent forgot."""

    def __init__(
        self, folder: Path, gpus: Sequence[str | GpuPlan] = ("a100-40gb", "a100-40gb"), library: Path | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.nvml = NvmlStandIn(folder / "nvml", gpus, library)
        self.uuids = self.nvml.uuids
        self.mps = MpsStandIn(
            folder,
            tuple(
                StandInGpu(uuid=plan.uuid, sms=plan.sm_count, memory_mib=plan.memory_mib) for plan in self.nvml.plans
            ),
        )
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.state_dir = folder / "state"
        self.whose: tuple[str, ...] = ("--workers-as-agent",)
        """Options that say whose processes workers are."""

    def worker(self, **more: object) -> WorkerTarget:
        """How the stand-in worker is described in a target."""
        arguments = ("host={host}", "port={port}", "batch={batch}", *(f"{name}={text}" for name, text in more.items()))
        return WorkerTarget(
            command=(str(worker_program()), *arguments),
            environment=(
                ("STANDIN_CUDA_LIBRARY", self.mps.library),
                ("STANDIN_NVML", str(self.nvml.root)),
                ("STANDIN_FAULTS", str(self.faults)),
            ),
            drain_s=1.0,
            stop_s=0.3,
        )

    def fault(self, name: str, *, on: bool = True) -> None:
        """Workers that start from now on go wrong in this way, or do not any more."""
        assert name in FAULTS
        if on:
            (self.faults / name).touch()
        else:
            (self.faults / name).unlink(missing_ok=True)

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        for name in FAULTS:
            self.fault(name, on=False)
        self.mps.heal()
        for uuid in self.uuids:
            self.nvml.lose(uuid, lost=False)
            self.nvml.fail_setters(uuid, 0)
            self.nvml.fail_reads(uuid, 0)
            self.nvml.throttle(uuid, 0)

    def environment(self) -> dict[str, str]:
        """In which a real agent process finds this host; needs the compiled NVML library."""
        found = self.nvml.env()
        parts = [str(Path(self.mps.library).parent), found["LD_LIBRARY_PATH"]]
        return found | {"LD_LIBRARY_PATH": os.pathsep.join(parts)}

    def options(self) -> list[str]:
        """The options that belong to this host."""
        return [
            *("--devices", "nvml:all", "--state-dir", str(self.state_dir), "--mps-control", self.mps.control_binary),
            *("--mps-pipes", str(self.mps.pipe_base), "--route-grace-s", str(GRACE_S), "--ports", port_option()),
            *self.whose,
        ]

    def pids(self, uuid: str) -> list[int]:
        """Living worker processes on a device."""
        folder = self.nvml.root / "processes" / uuid
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit() and _lives(int(path.name))]

    def over(self) -> list[str]:
        """What is more than a device has at this moment."""
        found = []
        for plan in self.nvml.plans:
            held = sum(map(_limit_mib, self.pids(plan.uuid)))
            if held > plan.memory_mib:
                found.append(f"{plan.uuid}: limits of {held} of {plan.memory_mib} MiB")
        return found

    def leftovers(self) -> list[str]:
        """What is still there that should not be when nobody wants anything of this host."""
        found = [f"process {pid} on {uuid}" for uuid in self.uuids for pid in self.pids(uuid)]
        found += [f"MPS process {pid}" for pid in self.mps.processes()]
        found += [f"pipe directory {path}" for path in self.mps.pipe_base.iterdir()]
        for uuid in self.uuids:
            state = self.nvml.state(uuid)
            if state["clock_mhz_sm"] is not None:
                found.append(f"{uuid} is locked at {state['clock_mhz_sm']} MHz")
            if state["power_limit_w"] != state["power_limit_w_default"]:
                found.append(f"{uuid} is limited to {state['power_limit_w']} W")
            if state["compute_mode"]:
                found.append(f"{uuid} has compute mode {state['compute_mode']}")
        found += [f"state of worker {path.name}" for path in (self.state_dir / "workers").glob("*.json")]
        return found

    def close(self) -> None:
        """End everything that is left."""
        for uuid in self.uuids:
            for pid in self.pids(uuid):
                os.kill(pid, signal.SIGKILL)
        self.mps.close()
        self.nvml.close()


class HostAgent:
    """An agent of this host in this process, without a control plane: its parts are the real ones."""

    def __init__(self, host: HostStandIn, ports: range, seed: int = 0) -> None:
        self._host = host
        state = StateDirectory(host.state_dir)
        boards = open_boards("nvml:all")
        sm_counts = {device.uuid: device.sm_count for device in boards.inventory()}
        sharing = MpsOptions(
            state_dir=state.path,
            pipe_base=host.mps.pipe_base,
            control_binary=host.mps.control_binary,
            protocol="2",
            sm_counts=sm_counts,
            client_slots=dict.fromkeys(sm_counts, SLOTS),
            probe_command=(sys.executable, "-S", "-m", "agents.probe", "--library", host.mps.library),
        )
        crew = CrewOptions(state_dir=state.path, ports=ports, route_grace_s=GRACE_S, workers_as_agent=True)
        self.crew = open_crew(crew, time.monotonic)
        self.boards = boards
        self.devices = NvidiaDevices(
            HostParts(
                boards=boards,
                setters=NvmlSetters(boards),
                mps=MpsSharing(sharing, time.monotonic),
                plain=NoSharing(sm_counts),
                crew=self.crew,
                state=state,
                journal=SettingsJournal(state, host_boot_id()),
                now_s=time.monotonic,
            )
        )
        self.applier = Applier(NODE, self.devices, time.monotonic, random.Random(seed))
        self.applier.route_grace_s = GRACE_S

    def die(self) -> None:
        """As if it were killed: nothing is restored, nothing ended."""
        self.crew.close()
        self.boards.close()

    def until(self, condition: Callable[[bool], bool], deadline_s: float = 30.0, pause_s: float = 0.02) -> None:
        """Pass after pass until the condition, which is told whether the devices are settled, holds."""
        wait_until(
            lambda: condition(self.applier.run_pass().settled),
            lambda: f"{self.applier.receipt('late', 0.0)}; {self.devices.workers()}",
            deadline_s,
            pause_s,
        )

    def settle(self, deadline_s: float = 30.0) -> None:
        """Until the target is held."""
        self.until(lambda settled: settled, deadline_s)


class Watch:
    """Looks all the time whether a device holds more than it has."""

    def __init__(self, look: Callable[[], list[str]], every_s: float = 0.01) -> None:
        self.seen: list[str] = []
        self._look = look
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.seen += [problem for problem in self._look() if problem not in self.seen]


@contextmanager
def host_in_process(folder: Path, gpus: Sequence[str | GpuPlan] = ("a100-40gb", "a100-40gb")) -> Iterator[HostStandIn]:
    """A host that the binding of this process sees through the Python double."""
    host = HostStandIn(folder, gpus)
    try:
        with installed(host.nvml.double()):
            yield host
    finally:
        host.close()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _limit_mib(pid: int) -> int:
    """The memory limit that a process was started with; none where it is gone or was given none."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return 0
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return int(found.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "=0M").partition("=")[2].removesuffix("M"))
