"""The agent's own composition on the device under test, without a control plane: workers come and go by `Devices`."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agents.config import read_config
from agents.devices.base import Mode, WorkerReading, WorkerSpec, WorkerState
from agents.devices.nvidia.host import NvidiaDevices
from agents.errors import DeviceError
from agents.opening import open_host
from agents.state import StateDirectory
from agents.wire import WarmUpTarget, WorkerTarget
from tests.gpu.rig import WORKER, NotHereError, Rig
from tests.waiting import spend

BATCHES_A_REQUEST = 10
START_S_MAX = 120.0
LIBRARY_PATH = "LD_LIBRARY_PATH"


@contextmanager
def opened(rig: Rig, mode: Mode = Mode.MPS) -> Iterator[NvidiaDevices]:
    """The host with the device in a mode; afterwards it is as it was."""
    arguments = ["--server", "http://127.0.0.1:9", "--node", "bench", "--devices", f"nvml:{rig.uuid}"]
    kept = sorted(rig.environment.keys() - {LIBRARY_PATH})
    arguments += [
        "--route-grace-s",
        "0",
        "--workers-as-agent",
        *(["--environment", ",".join(kept)] if kept else []),
        *rig.agent_options,
    ]
    config = read_config(arguments, {})
    if config.nvidia is None:
        raise AssertionError("an nvml selection opens NVIDIA devices")
    host = open_host(config, config.nvidia, StateDirectory(rig.scratch / "agent"), time.monotonic)
    try:
        if mode is Mode.MPS and (refusal := (host.inventory()[0].capabilities or {}).get("mps")):
            raise NotHereError(f"mps: {refusal}")
        _into_mode(rig, host, mode)
        yield host
    finally:
        for worker in host.workers():
            host.stop(worker.worker)
        rig.until(lambda: not host.workers(), 60.0, 0.1)
        host.restore()
        host.close()


def _into_mode(rig: Rig, host: NvidiaDevices, mode: Mode) -> None:
    last: list[DeviceError] = []

    def there() -> bool:
        try:
            if host.settings(rig.uuid).mode is not mode:
                host.set_mode(rig.uuid, mode)
        except DeviceError as error:
            if not error.retryable:
                raise
            last[:] = [error]
            return False
        return host.settings(rig.uuid).mode is mode

    took_s = rig.until(there, 30.0, 0.1)
    if took_s is None:
        raise AssertionError(f"the device did not get into mode {mode.value}: {last}")
    rig.note(f"mode {mode.value} takes", took_s, "s")


def spec(
    rig: Rig, name: str, network: str, *, share: int, batch: int = 1, memory_mib: int = 0, captured: bool = False
) -> WorkerSpec:
    """A worker with a network, with its batches as graphs if they shall be `captured`."""
    # Where libraries lie no workload may say; the machine may need it said all the same.
    library_path = rig.environment.get(LIBRARY_PATH, "")
    prefix = ("/usr/bin/env", f"{LIBRARY_PATH}={library_path}") if library_path else ()
    command = (*prefix, rig.python, str(WORKER), "--host", "{host}", "--port", "{port}", "--batch", "{batch}")
    return WorkerSpec(
        replica=name,
        kind="service",
        workload=f"bench/{name}",
        project="bench",
        model=network,
        share_pct_sm=share,
        memory_mib_limit=memory_mib or int(rig.device.memory_mib * share / 100 * 0.9),
        batch=batch,
        launch_s=30.0,
        worker=WorkerTarget(
            command=(*command, "--network", network, *(["--captured"] if captured else [])),
            environment=tuple(item for item in rig.environment.items() if item[0] != LIBRARY_PATH),
            warm_up=WarmUpTarget(
                path=f"/execute?batches={BATCHES_A_REQUEST}", body="", content_type="", requests=2, timeout_s=60.0
            ),
            drain_s=10.0,
            stop_s=10.0,
        ),
    )


def ready(rig: Rig, host: NvidiaDevices, spec: WorkerSpec) -> WorkerReading:
    """Start a worker and wait for it. Raises AssertionError with its reason when it fails."""
    return awaited(host, host.start(rig.uuid, spec))


def all_ready(rig: Rig, host: NvidiaDevices, specs: Sequence[WorkerSpec]) -> list[WorkerReading]:
    """As `ready`, with all of them starting at once."""
    names = [host.start(rig.uuid, each) for each in specs]
    return [awaited(host, name) for name in names]


def awaited(host: NvidiaDevices, name: str) -> WorkerReading:
    """A started worker, once it is ready. Raises AssertionError with its reason when it fails."""
    until_s = time.monotonic() + START_S_MAX
    while time.monotonic() < until_s:
        found = next((worker for worker in host.workers() if worker.worker == name), None)
        if found is None or found.state is WorkerState.FAILED:
            raise AssertionError(f"{name} failed: {found.problem if found else 'it is gone'}")
        if found.state is WorkerState.READY:
            return found
        spend(0.05)
    raise AssertionError(f"{name} was not ready within {START_S_MAX:g} s: {found.problem if found else ''}")


def ended(rig: Rig, host: NvidiaDevices, worker: WorkerReading) -> None:
    """Drain and stop a worker, and wait until it is gone."""
    host.drain(worker.worker)
    host.stop(worker.worker)
    gone = rig.until(lambda: all(each.worker != worker.worker for each in host.workers()), 60.0, 0.05)
    if gone is None:
        raise AssertionError(f"{worker.worker} did not end")


def ask(worker: WorkerReading, path: str) -> dict[str, Any]:
    """A worker's answer."""
    with urllib.request.urlopen(f"{worker.endpoint}{path}", timeout=120.0) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
