"""What every call of the Python double shares: resolving handles, refusing, and the physics of a GPU.

Owns the rules of admission (privilege, lost and hanging GPUs, what a product lacks) and how load, clock, limits and
throttling make power and energy, as nvml.c has them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.standins.nvml.layout import GpuState, MigState
from tests.waiting import wait_while_hanging

if TYPE_CHECKING:
    from tests.standins.nvml import NvmlStandIn

OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT, TIMEOUT = 0, 1, 2, 3, 4, 6, 7, 10
NO_FUNCTION, LOST, VERSION_MISMATCH = 13, 15, 25
SYMBOLIC = 0xFFFFFF00
UNKNOWN_BYTES, UNKNOWN_INSTANCE = 2**64 - 1, 2**32 - 1


class Target(NamedTuple):
    """What a handle stands for."""

    number: int
    gpu: GpuState
    mig: MigState | None


class Process(NamedTuple):
    """A process on a GPU; memory below 0 is unknown."""

    pid: int
    mib: int
    mps: bool


class Moment(NamedTuple):
    """What a GPU does right now."""

    load: float
    power_mw: float
    mhz: int
    reasons: int


def number(value: Any) -> int:
    """An integer, however ctypes was handed it."""
    return int(getattr(value, "value", value))


def pointer(value: Any) -> int:
    """The address in a pointer-like value."""
    return ctypes.cast(value, ctypes.c_void_p).value or 0


def put(out: Any, value: float) -> int:
    """Write through a `byref`."""
    out._obj.value = value
    return OK


def put_pointer(out: Any, value: int) -> int:
    """Write an address through a `byref` of a pointer."""
    ctypes.c_void_p.from_buffer(out._obj).value = value
    return OK


Body = Callable[..., int]


def call(
    *, whole: bool = True, writes: bool = False, lacks: int = 0, missing: int = 0
) -> Callable[[Body], Callable[..., int]]:
    """A call on a device: refused as the C stand-in does, then handed what its handle stands for."""

    def decorate(body: Body) -> Callable[..., int]:
        @wraps(body)
        def entry(double: Core, handle: Any, *rest: Any) -> int:
            if double.host.missing & missing:
                return NO_FUNCTION
            code, target = double.admit(handle, writes=writes)
            if target is None or code != OK:
                return code
            if (whole and target.mig is not None) or target.gpu.lacks & lacks:
                return NOT_SUPPORTED
            return body(double, target, *rest)

        return entry

    return decorate


class Core:
    """One process's library. `now_s` drives the energy counter."""

    def __init__(self, stand_in: NvmlStandIn, *, privileged: bool, now_s: Callable[[], float]) -> None:
        self._stand_in = stand_in
        self._privileged = privileged
        self._now_s = now_s
        self._references = 0
        self._sets: dict[int, tuple[list[int], dict[int, int]]] = {}
        self._samples: dict[int, tuple[float, float]] = {}

    @property
    def host(self) -> Any:
        """The shared state."""
        return self._stand_in.host

    # --- what every call does first ---

    def ready(self) -> int:
        """Block while the host hangs; refuse what was not initialised."""
        wait_while_hanging(lambda: bool(self.host.hang_until_s > time.monotonic()))
        return OK if self._references else UNINITIALIZED

    def admit(self, handle: Any, *, writes: bool) -> tuple[int, Target | None]:
        """Resolve a handle and refuse what cannot be."""
        code = self.ready()
        value = pointer(handle)
        if code != OK or value < 1 or (value - 1) // 16 >= self.host.gpu_count:
            return code or INVALID, None
        index, slot = divmod(value - 1, 16)
        gpu = self.host.gpus[index]
        if slot > gpu.mig_count:
            return INVALID, None
        wait_while_hanging(lambda: bool(gpu.hang_until_s > time.monotonic()))
        gpu.reads += 1
        gpu.setter_calls += writes
        code = LOST if gpu.lost else gpu.read_code
        if code == OK and writes:
            code = NO_PERMISSION if self.host.forbid_setters or not self._privileged else gpu.setter_code
        return code, Target(value, gpu, gpu.migs[slot - 1] if slot else None)

    # --- processes and physics ---

    def processes(self, uuid: bytes) -> list[Process]:
        """Processes that live and use a GPU."""
        folder = self._stand_in.root / "processes" / uuid.decode()
        found = []
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            words = file.read_text(encoding="ascii").split() if file.name.isdigit() else []
            if len(words) >= 2 and (words[2:] == ["1"] or alive(int(file.name))):
                found.append(Process(int(file.name), int(words[0]), words[1] == "1"))
        return found

    def load(self, gpu: GpuState) -> float:
        """Busy part of the time."""
        if gpu.load_pct >= 0.0:
            return float(min(gpu.load_pct, 100.0)) / 100.0
        uuids = [gpu.uuid, *(mig.uuid for mig in gpu.migs[: gpu.mig_count])]
        return 0.8 if any(self.processes(uuid) for uuid in uuids) else 0.0

    def moment(self, gpu: GpuState) -> Moment:
        """Clock and power as load, locks, limits and throttling leave them."""
        clocks = gpu.clocks[: gpu.clock_count]
        load, reasons = self.load(gpu), gpu.throttle_reasons
        if gpu.locked_max and not gpu.ignores_locks:
            mhz = at_most(clocks, gpu.locked_max)
        else:
            mhz = clocks[-1] if load > 0.0 else clocks[0]
        if load <= 0.0:
            reasons |= 1
        if gpu.throttle_reasons & ~3:
            mhz = min(mhz, at_most(clocks, gpu.throttle_mhz or clocks[-1] // 2))
        limit = enforced_mw(gpu)
        while mhz > clocks[0] and power_mw(gpu, load, mhz) > limit:
            mhz = at_most(clocks, mhz - 1)
            reasons |= 4
        return Moment(load, min(power_mw(gpu, load, mhz), limit), mhz, reasons)

    def settle(self, gpu: GpuState) -> None:
        """Count the energy until now; call it under the lock before power changes."""
        at_s = self._now_s()
        if at_s > gpu.energy_at_s > 0.0:
            gpu.energy_mj += self.moment(gpu).power_mw * (at_s - gpu.energy_at_s)
        gpu.energy_at_s = at_s


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return state[:1] not in ([], ["Z"], ["X"])


def at_most(clocks: list[int], mhz: int) -> int:
    """The highest clock of a rising table that is not above another; the lowest if all are."""
    return max((clock for clock in clocks if clock <= mhz), default=clocks[0])


def power_mw(gpu: GpuState, load: float, mhz: int) -> float:
    """Power that load and clock would take without a limit."""
    part = (mhz / gpu.clocks[gpu.clock_count - 1]) ** 2.2
    return float(gpu.idle_mw + (1.1 * gpu.tdp_mw - gpu.idle_mw) * load * part)


def enforced_mw(gpu: GpuState) -> int:
    """The strictest power limit."""
    return int(min(gpu.limit_mw, gpu.limit_mw_outside or gpu.limit_mw))
