"""A host's real GPUs as `Devices`: one verb at a time, each made of calls to the parts.

Owns which part does what in which order, and the limits of a device (shares, memory, dedicated use) counted over what
its processes hold. It refuses to touch processes it does not own, and says that they are there.
"""

from __future__ import annotations

from dataclasses import replace

from agents.devices.base import DeviceSample, DeviceSettings, Mode, WorkerReading, WorkerSpec
from agents.devices.nvidia.accounts import Accounts, Interval
from agents.devices.nvidia.control import BoardControl
from agents.devices.nvidia.modes import Modes
from agents.devices.nvidia.parts import HostParts
from agents.devices.nvidia.register import Part, Register, share_order
from agents.devices.nvidia.roster import Roster
from agents.devices.nvidia.strangers import Strangers
from agents.devices.parts import CrewOrder
from agents.devices.specs import held_mib, held_pct_sm
from agents.errors import BusyError, DeviceError, NotFoundError, OutOfMemoryError, OutOfRangeError
from agents.wire import DeviceInventory


class NvidiaDevices:
    """All managed GPUs of a host. Not thread-safe."""

    def __init__(self, parts: HostParts) -> None:
        self._parts = parts
        self._register = Register(parts.state)
        self._control = BoardControl(parts)
        self._modes = Modes(parts, self._register, self._control)
        self._roster = Roster(parts, self._register, self._modes)
        self._inventory = {device.uuid: _told(device, parts) for device in parts.boards.inventory()}
        self._accounts = Accounts(parts, tuple(self._inventory))
        self._strangers = Strangers(parts.now_s)

    @property
    def state_lost(self) -> str:
        """Why what an earlier agent remembered was not used; empty when it was."""
        return self._register.lost

    @property
    def crew_pids(self) -> dict[str, tuple[int, ...]]:
        """Processes of every worker at the last look."""
        return dict(self._roster.pids)

    def inventory(self) -> tuple[DeviceInventory, ...]:
        """See `Devices`."""
        return tuple(self._inventory.values())

    def settings(self, uuid: str) -> DeviceSettings:
        """See `Devices`."""
        self._known(uuid)
        return self._control.held(uuid, self._modes.mode(uuid))

    def workers(self) -> tuple[WorkerReading, ...]:
        """See `Devices`. Daemons of devices that have workers are opened anew first, where they crashed."""
        if not self._parts.observing:
            for uuid in {part.order.uuid for part in self._register.parts.values()} & self._inventory.keys():
                self._modes.tend(uuid)
        return self._roster.look()

    def set_mode(self, uuid: str, mode: Mode) -> None:
        """See `Devices`."""
        self._known(uuid)
        if mode is not self._modes.mode(uuid) and self._roster.on(uuid):
            raise BusyError(f"{uuid} still has {len(self._roster.on(uuid))} workers")
        self._modes.change(uuid, mode)

    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """See `Devices`."""
        clocks = self._known(uuid).clocks_mhz_sm
        if clock_mhz_sm is not None and clock_mhz_sm not in clocks:
            raise OutOfRangeError(f"{clock_mhz_sm} MHz is not in the clock table of {uuid}")
        self._control.set_clock(uuid, clock_mhz_sm)

    def set_power_limit(self, uuid: str, power_limit_w: float | None) -> None:
        """See `Devices`."""
        device = self._known(uuid)
        low, high = device.power_limit_w_min, device.power_limit_w_max
        if power_limit_w is not None and not low <= power_limit_w <= high:
            raise OutOfRangeError(f"{power_limit_w} W is outside {low} to {high} W of {uuid}")
        self._control.set_power(uuid, power_limit_w)

    def start(self, uuid: str, spec: WorkerSpec) -> str:
        """See `Devices`."""
        device = self._known(uuid)
        self._check_room(device, spec)
        sharing = self._modes.ready(uuid)
        name = self._register.next_name(spec.replica)
        order = share_order(name, uuid, spec)
        self._register.give(Part(order=order, mode=self._modes.mode(uuid)))
        try:
            launch = CrewOrder(
                worker=name,
                uuid=uuid,
                spec=spec,
                environment=sharing.grant(order),
                device_memory_mib=device.memory_mib,
            )
            self._parts.crew.launch(launch)
        except DeviceError:
            sharing.revoke(order)
            self._register.take_back(name)
            raise
        self._roster.started(name, uuid, spec)
        return name

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        """See `Devices`."""
        self._parts.crew.tune(worker, self._roster.reading(worker).spec.tuned_as(spec))

    def drain(self, worker: str) -> None:
        """See `Devices`."""
        self._parts.crew.drain(worker)

    def stop(self, worker: str) -> None:
        """See `Devices`. Begins to end it: it holds its part until its last process is gone."""
        self._roster.end(worker)

    def collect(self) -> tuple[DeviceSample, ...]:
        """See `Devices`."""
        interval = Interval(samples=self._parts.crew.samples(), readings=self._roster.last, pids=self._roster.pids)
        samples = self._accounts.close_interval(interval)
        known = frozenset(pid for pids in self._roster.pids.values() for pid in pids)
        self._strangers.look(self._accounts.processes, known)
        return samples

    def problems(self) -> tuple[str, ...]:
        """See `Devices`."""
        left = sorted({reading.uuid for reading in self._roster.last.values()} - set(self._inventory))
        return (
            *self._accounts.problems(),
            *self._modes.problems(),
            *self._control.problems(),
            *self._strangers.problems(),
            *(f"{uuid}: has workers of an earlier agent, but this one does not manage it" for uuid in left),
        )

    def restore(self) -> None:
        """See `Devices`. Daemons nobody uses end. Raises the first error, after everything was tried."""
        failed: list[DeviceError] = []
        busy = {reading.uuid for reading in self._roster.look()}
        for uuid in sorted({*self._inventory, *self._parts.journal.uuids}):
            try:
                if uuid in self._inventory and uuid not in busy:
                    self._modes.leave(uuid)
            except DeviceError as error:
                failed.append(error)
            failed += self._control.restore(uuid)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """See `Devices`."""
        self._parts.crew.close()
        self._parts.plain.close()
        if self._parts.mps is not None:
            self._parts.mps.close()
        self._parts.boards.close()
        self._parts.let_go()

    def _known(self, uuid: str) -> DeviceInventory:
        if uuid not in self._inventory:
            raise NotFoundError(f"no device {uuid}")
        return self._inventory[uuid]

    def _check_room(self, device: DeviceInventory, spec: WorkerSpec) -> None:
        others = [reading.spec for reading in self._roster.on(device.uuid)]
        share = held_pct_sm(spec) + sum(held_pct_sm(other) for other in others)
        memory = held_mib(spec) + sum(held_mib(other) for other in others)
        if not 1 <= spec.share_pct_sm <= 100 or spec.batch < 1:
            raise OutOfRangeError(f"a share of {spec.share_pct_sm} % or a batch of {spec.batch} is not possible")
        if others and self._modes.mode(device.uuid) is Mode.DEDICATED:
            raise BusyError(f"{device.uuid} is dedicated to one worker and has one")
        if share > 100 and self._modes.mode(device.uuid) is not Mode.TIME_SLICED:
            raise BusyError(f"the shares on {device.uuid} would be {share} %")
        if memory > device.memory_mib:
            raise OutOfMemoryError(f"limits on {device.uuid} would be {memory} of {device.memory_mib} MiB")


def _told(device: DeviceInventory, parts: HostParts) -> DeviceInventory:
    """What a device can do, with what this agent may not do to it."""
    capabilities = dict(device.capabilities or {})
    for verb, reason in parts.setters.refusals().items():
        capabilities[verb] = capabilities.get(verb) or reason
    if parts.mps is None:
        capabilities["mps"] = capabilities.get("mps") or parts.mps_refusal or "there is no MPS on this host"
    return replace(device, capabilities=capabilities)
