"""What an agent would do for a target, found out on paper: nothing is started, ended or set.

On a copy in memory of what the devices read back, every process starts, drains and ends at once. Whether a call would
work is not guessed: a device that cannot do something says so only when it is asked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from agents.devices.base import (
    Devices,
    DeviceSample,
    DeviceSettings,
    LogRead,
    Mode,
    WorkerReading,
    WorkerSpec,
    WorkerState,
)
from agents.errors import DeviceError, StateFileError
from agents.loop.apply import Applier
from agents.servers import Servers
from agents.state import TARGET_FILE, TOKEN_FILE, StateDirectory
from agents.transport import UnreachableError
from agents.wire import DeviceInventory, NodeTarget, WireError, decode

PASSES_MAX = 1000
RETIREMENT_S_MAX = 86_400.0
REFUSED = "the control plane refuses this node"


class PaperDevices:
    """Devices that only exist here. Every verb is written down."""

    def __init__(self, real: Devices, refusal: str = "") -> None:
        self._refusal = refusal
        self.lines: list[str] = []
        self._inventory = real.inventory()
        self._settings: dict[str, DeviceSettings] = {}
        self._workers = {worker.worker: worker for worker in real.workers()}
        self._started = 0
        for device in self._inventory:
            try:
                self._settings[device.uuid] = real.settings(device.uuid)
            except DeviceError as error:
                self.lines.append(f"{device.uuid}: cannot be read ({error.code}: {error})")
        self.lines += [
            f"{worker.uuid}: {worker.worker} has failed: {worker.problem}"
            for worker in self._workers.values()
            if worker.state is WorkerState.FAILED
        ]

    def inventory(self) -> tuple[DeviceInventory, ...]:
        return tuple(device for device in self._inventory if device.uuid in self._settings)

    def settings(self, uuid: str) -> DeviceSettings:
        return self._settings[uuid]

    def workers(self) -> tuple[WorkerReading, ...]:
        """See `Devices`. Whoever starts is ready at the next look."""
        found = tuple(self._workers.values())
        self._workers = {
            worker.worker: replace(worker, state=WorkerState.READY, state_s=0.0)
            if worker.state is WorkerState.STARTING
            else worker
            for worker in found
        }
        return found

    def set_mode(self, uuid: str, mode: Mode) -> None:
        self.lines.append(f"{uuid}: share it by {mode.value}")
        self._settings[uuid] = replace(self._settings[uuid], mode=mode)

    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        told = "unlock the SM clock" if clock_mhz_sm is None else f"lock the SM clock at {clock_mhz_sm} MHz"
        self.lines.append(f"{uuid}: {told}")
        self._settings[uuid] = replace(self._settings[uuid], clock_mhz_sm=clock_mhz_sm)

    def set_power_limit(self, uuid: str, power_limit_w: float | None) -> None:
        told = "give the power limit back its original" if power_limit_w is None else f"limit it to {power_limit_w:g} W"
        self.lines.append(f"{uuid}: {told}")
        self._settings[uuid] = replace(self._settings[uuid], power_limit_w=power_limit_w)

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:  # noqa: ARG002
        return LogRead()

    def start(self, uuid: str, spec: WorkerSpec) -> str:
        self._started += 1
        name = f"{spec.replica}@new-{self._started}"
        command = "" if spec.worker is None else f": {' '.join(spec.worker.command)}"
        if spec.worker is not None and self._refusal:
            command += f"; refused: {self._refusal}"
        self.lines.append(
            f"{uuid}: start {spec.replica} with {spec.share_pct_sm} %, {spec.memory_mib_limit} MiB, "
            f"batch {spec.batch}{command}"
        )
        self._workers[name] = WorkerReading(
            worker=name, uuid=uuid, spec=spec, sm_count=0, state=WorkerState.STARTING, state_s=0.0, drained=False
        )
        return name

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        found = self._workers[worker]
        self.lines.append(f"{found.uuid}: hand {worker} batch {spec.batch}")
        self._workers[worker] = replace(found, spec=found.spec.tuned_as(spec))

    def drain(self, worker: str) -> None:
        found = self._workers[worker]
        self.lines.append(f"{found.uuid}: drain {worker}")
        self._workers[worker] = replace(found, state=WorkerState.DRAINING, state_s=0.0, drained=True)

    def stop(self, worker: str) -> None:
        found = self._workers.pop(worker)
        self.lines.append(f"{found.uuid}: end {worker}")

    def collect(self) -> tuple[DeviceSample, ...]:
        """Nothing happens on paper."""
        return ()

    def problems(self) -> tuple[str, ...]:
        """Nothing goes wrong on paper."""
        return ()

    def restore(self) -> None:
        """Paper is thrown away."""

    def close(self) -> None:
        """Paper is thrown away."""


def rehearse(node: str, devices: Devices, target: NodeTarget, refusal: str = "") -> list[str]:
    """Every call that holding the target takes, in order, and where one would be refused for this reason. Raises
    TargetRefusedError, DeviceError.
    """
    paper = PaperDevices(devices, refusal)
    readable = {device.uuid for device in paper.inventory()}
    target = replace(target, devices=tuple(device for device in target.devices if device.uuid in readable))
    now_s = 0.0
    applier = Applier(node, paper, lambda: now_s, random.Random(0))
    applier.accept(target)
    for _ in range(PASSES_MAX):
        if applier.run_pass().settled:
            break
    retiring = [item.retire_after_s for device in target.devices for item in device.replicas if item.retire_after_s]
    if retiring:
        paper.lines.append(f"after {max(retiring):g} s:")
        now_s = RETIREMENT_S_MAX
        for _ in range(PASSES_MAX):
            if applier.run_pass().settled:
                break
    return paper.lines


def newest_target(servers: Servers, node: str, state: StateDirectory) -> tuple[NodeTarget | None, str]:
    """The target the control plane would hand out, where this node has a token and somebody answers, else the one held;
    and which of them it is, or why there is none. Joins nothing.
    """
    reason = "this node has not joined yet"
    token = (state.read_text(TOKEN_FILE) or "").strip()
    if token:
        connection = servers.connection()
        connection.token = token
        try:
            answer = connection.call("GET", f"/v1/agent/nodes/{node}/target", None)
            if answer.status == 200:
                return decode(NodeTarget, answer.json()), "as the control plane has it"
            is_refused = answer.status in (401, 403)
            reason = f"{REFUSED if is_refused else 'the control plane has none'} ({answer.reason()})"
        except (UnreachableError, WireError) as error:
            reason = f"the control plane did not answer ({error})"
        finally:
            connection.close()
    try:
        plain = state.read_json(TARGET_FILE)
        return (None, reason) if plain is None else (decode(NodeTarget, plain), f"as held; {reason}")
    except (StateFileError, WireError) as error:
        return None, f"{reason}; the one held cannot be read ({error})"
