"""NVIDIA devices as `Boards`: what they are, what is set, what they do, who is on them, what they said.

It writes nothing: what was locked is told to it by whoever locks (`note_clock`), because drivers do not tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from agents.devices.nvml.binding import TIMEOUT_S, Driver, Nvml, load_binding
from agents.devices.nvml.inventory import CLOCK_SM, MIB, BoardFacts, FoundDevices, look
from agents.devices.nvml.telemetry import WAIT_MS, DeviceTelemetry, EventWatch
from agents.devices.parts import BoardEvent, BoardReading, BoardSettings, ComputeMode, GpuProcess
from agents.errors import AgentError, ConfigError, DeviceError, DriverError, NotFoundError
from agents.wire import DeviceInventory

# --- Which of a host's devices this agent may use: only those it was told, by UUID
#
# An agent never takes a GPU that was not named, but for `nvml:all`, which names them all.


PREFIX = "nvml:"
ALL = "all"


def parse_selection(selection: str) -> tuple[str, ...]:
    """UUID prefixes of `nvml:GPU-…,MIG-…`; none of `nvml:all`. Raises ConfigError."""
    names = tuple(name.strip() for name in selection.removeprefix(PREFIX).split(","))
    if selection == PREFIX + ALL:
        return ()
    if not selection.startswith(PREFIX) or not all(name.startswith(("GPU-", "MIG-")) for name in names):
        raise ConfigError(
            f"--devices {selection!r}: expected nvml:all or nvml:GPU-UUID,GPU-UUID,… (unique prefixes do)"
        )
    return names


def select(found: FoundDevices, prefixes: tuple[str, ...]) -> FoundDevices:
    """The chosen devices. The UUID of a GPU in MIG mode chooses all its MIG devices. One that is gone is noted, for it
    must not cost the others theirs. Raises ConfigError for a prefix that is ambiguous, or where none fits anything.
    """
    if not prefixes:
        return found
    chosen: set[str] = set()
    gone: list[str] = []
    for prefix in prefixes:
        owners = {device.parent_uuid for device in found.devices if (device.parent_uuid or "").startswith(prefix)}
        exact = {device.uuid for device in found.devices if device.uuid.startswith(prefix)}
        if len(owners | exact) > 1:
            raise ConfigError(f"--devices: {prefix} fits several GPUs: {', '.join(sorted(map(str, owners | exact)))}")
        if not owners | exact:
            gone.append(f"no usable GPU's UUID begins with {prefix}")
        chosen |= exact | {device.uuid for device in found.devices if device.parent_uuid in owners}
    notes = (*gone, *found.notes)
    if not chosen:
        raise ConfigError(f"--devices: {'; '.join(notes)}")
    return FoundDevices(devices=tuple(device for device in found.devices if device.uuid in chosen), notes=notes)


COMPUTE_MODES = {0: ComputeMode.DEFAULT, 2: ComputeMode.PROHIBITED, 3: ComputeMode.EXCLUSIVE_PROCESS}
POWER_W_SAME = 0.5
"""Limits this close are the same: drivers round."""
CLOCK_MHZ_SAME = 15
"""A clock this little above its lock is at it: one step of most tables."""
UNKNOWN_BYTES = 2**63


class NvmlBoards:
    """The chosen devices of this host. Every method may be called from any thread."""

    def __init__(
        self, driver: Driver, selection: str, now_s: Callable[[], float] = time.monotonic, event_wait_ms: int = WAIT_MS
    ) -> None:
        prefixes = parse_selection(selection)
        self.driver = driver
        self._now_s = now_s
        found = select(driver.run("", look), prefixes)
        self.left_out = self.notes = found.notes
        """GPUs that are not used, and why; `notes` also what those that are used do not tell."""
        self._facts = {facts.uuid: facts for facts in found.devices}
        if not self._facts:
            raise ConfigError(f"no NVIDIA GPU can be used here{': ' if found.notes else ''}{'; '.join(found.notes)}")
        self._telemetry = {uuid: DeviceTelemetry(facts) for uuid, facts in self._facts.items()}
        self._locked_mhz: dict[str, int] = {}
        self._events = EventWatch(driver, tuple(self._facts.values()), now_s, event_wait_ms)
        if self._events.problem:
            self.notes += (f"not every device tells events: {self._events.problem}",)

    def facts(self, uuid: str) -> BoardFacts:
        """A device as it was found. Raises NotFoundError."""
        try:
            return self._facts[uuid]
        except KeyError:
            raise NotFoundError(f"no device {uuid}") from None

    def devices(self) -> tuple[BoardFacts, ...]:
        """All of them, also those whose SM count is not known yet."""
        return tuple(self._facts.values())

    def correct_sm_counts(self, sm_counts: Mapping[str, int]) -> None:
        """Take SM counts that a process on the device read, by UUID: they are the truth. Before the first inventory."""
        for uuid, sm_count in sm_counts.items():
            self._facts[uuid] = replace(self.facts(uuid), sm_count=sm_count, sm_count_source="probe")

    def inventory(self) -> tuple[DeviceInventory, ...]:
        """Devices whose SM count nobody could tell are left out: a share of them cannot be checked."""
        return tuple(facts.inventory() for facts in self._facts.values() if facts.sm_count is not None)

    def settings(self, uuid: str) -> BoardSettings:
        facts = self.facts(uuid)
        return self.driver.run(uuid, lambda nvml: self._settings(nvml, facts))

    def reading(self, uuid: str) -> BoardReading:
        telemetry = self._telemetry[self.facts(uuid).uuid]
        return self.driver.run(uuid, lambda nvml: telemetry.read(nvml, self._now_s()))

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """An MPS server is among them, as a process that is no client."""
        handle = self.facts(uuid).handle
        return self.driver.run(uuid, lambda nvml: _processes(nvml, handle))

    def events(self) -> tuple[BoardEvent, ...]:
        return self._events.take()

    def note_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """Whoever locked or reset the SM clock says so here."""
        known = self.facts(uuid).uuid
        if clock_mhz_sm is None:
            self._locked_mhz.pop(known, None)
        else:
            self._locked_mhz[known] = clock_mhz_sm

    def close(self) -> None:
        """While a call still hangs in the driver the library stays open: the process's end closes it."""
        ended = self._events.close()
        if ended and not self.driver.hangs():
            with suppress(DeviceError):  # The driver is gone, and what it lent is gone with it.
                self.driver.run("", self._give_back)
        _shut(self.driver, in_use=not ended)

    def _give_back(self, _: Nvml) -> None:
        for telemetry in self._telemetry.values():
            telemetry.close()

    def _settings(self, nvml: Nvml, facts: BoardFacts) -> BoardSettings:
        limit_mw = nvml.maybe("nvmlDeviceGetPowerManagementLimit", facts.board)
        enforced_mw = nvml.maybe("nvmlDeviceGetEnforcedPowerLimit", facts.board)
        mode = int(nvml.maybe("nvmlDeviceGetComputeMode", facts.handle) or 0)
        persistence = nvml.maybe("nvmlDeviceGetPersistenceMode", facts.board)
        limit_w, own = None if limit_mw is None else limit_mw / 1000.0, facts.power_limit_w_default
        return BoardSettings(
            clock_mhz_sm=self._clock_held(nvml, facts),
            power_limit_w=None if own is None or limit_w is None or abs(limit_w - own) < POWER_W_SAME else limit_w,
            power_limit_w_enforced=facts.power_limit_w_max if enforced_mw is None else enforced_mw / 1000.0,
            compute_mode=COMPUTE_MODES.get(mode, ComputeMode.DEFAULT),
            persistence=None if persistence is None else bool(persistence),
        )

    def _clock_held(self, nvml: Nvml, facts: BoardFacts) -> int | None:
        """The clock asked for, unless the device runs faster than that."""
        asked_mhz = self._locked_mhz.get(facts.uuid)
        if asked_mhz is None:
            return None
        found_mhz = int(nvml.call("nvmlDeviceGetClockInfo", facts.board, CLOCK_SM))
        return asked_mhz if found_mhz <= asked_mhz + CLOCK_MHZ_SAME else None


def open_boards(
    selection: str,
    *,
    timeout_s: float = TIMEOUT_S,
    now_s: Callable[[], float] = time.monotonic,
    event_wait_ms: int = WAIT_MS,
) -> NvmlBoards:
    """The devices that `nvml:all` or `nvml:GPU-UUID,…` names. Closing them takes up to `event_wait_ms`. Raises
    ConfigError when the text is wrong or nothing is usable, DriverError when there is no driver, DeviceTimeoutError
    when it hangs.
    """
    parse_selection(selection)
    driver = Driver(Nvml(load_binding()), timeout_s)
    try:
        driver.run("", lambda nvml: nvml.call("nvmlInit"))
        return NvmlBoards(driver, selection, now_s, event_wait_ms)
    except AgentError:
        _shut(driver)
        raise


def _shut(driver: Driver, *, in_use: bool = False) -> None:
    """End the library, unless a call is still in it."""
    if not in_use and not driver.hangs():
        with suppress(DeviceError):  # It never began, or the driver is gone: there is nothing to end.
            driver.run("", lambda nvml: nvml.call("nvmlShutdown"))
    driver.close()


def _processes(nvml: Nvml, handle: object) -> tuple[GpuProcess, ...]:
    """A list that grows between the binding's two calls makes it fail; it is read again then, once."""
    try:
        return _list_processes(nvml, handle)
    except DriverError:
        return _list_processes(nvml, handle)


def _list_processes(nvml: Nvml, handle: object) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for name, mps in (
        ("nvmlDeviceGetComputeRunningProcesses", False),
        ("nvmlDeviceGetMPSComputeRunningProcesses", True),
    ):
        for process in nvml.maybe(name, handle) or ():
            used = process.usedGpuMemory
            # Drivers that cannot tell say so in two ways.
            memory_mib = None if used is None or used >= UNKNOWN_BYTES else used / MIB
            found[int(process.pid)] = GpuProcess(pid=int(process.pid), memory_mib=memory_mib, mps_client=mps)
    return tuple(found[pid] for pid in sorted(found))
