"""Simulated GPUs behind NVML's own interface, for tests without a GPU: one host, many processes, faults on demand.

Owns the host's directory (described at the head of nvml.c) and everything a test may do to it. Child processes see the
host through the compiled library (`env`), this process through the same library (`load_in_process`) or, faster and
without a compiler, through `double()`, which is assigned to `pynvml.nvmlLib`. All look at the same memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.standins.nvml.double import NvmlDouble
from tests.standins.nvml.layout import EVENTS, GPUS, MAGIC, GpuState, HostState, Lacks, MigState, Missing
from tests.standins.nvml.presets import PRESETS, GpuPlan, MigPlan

__all__ = ["PRESETS", "GpuPlan", "GpuState", "HostState", "Lacks", "MigPlan", "Missing", "NvmlStandIn"]

XID, ECC_SINGLE, ECC_DOUBLE, UNAVAILABLE, RECOVERY = 0x8, 0x1, 0x2, 0x4000, 0x8000


class NvmlStandIn:
    """A host. `gpus` are names of PRESETS or plans of one's own; `library` is what the fixture `nvml_library` gives,
    needed only for processes that load the real thing. Close it when done: it unmaps the memory.
    """

    def __init__(
        self,
        root: Path,
        gpus: Sequence[str | GpuPlan] = ("t4",),
        library: Path | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self.library = library
        self._now_s = now_s
        plans = [PRESETS[gpu] if isinstance(gpu, str) else gpu for gpu in gpus]
        if len(plans) > GPUS:
            raise ValueError(f"at most {GPUS} GPUs")
        self.plans = tuple(plan.with_uuid(index) for index, plan in enumerate(plans))
        self.uuids = tuple(plan.uuid for plan in self.plans)
        root.mkdir(parents=True, exist_ok=True)
        self._file = os.open(root / "state.bin", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._file, ctypes.sizeof(HostState))
        self._memory = mmap.mmap(self._file, ctypes.sizeof(HostState))
        self.host = HostState.from_buffer(self._memory)
        self.reboot()

    def reboot(self) -> None:
        """Everything as after a boot: no locks, no faults, no processes' files."""
        host = self.host
        host.magic = 0
        ctypes.memset(ctypes.byref(host), 0, ctypes.sizeof(host))
        host.size, host.gpu_count, host.driver, host.cuda = (
            ctypes.sizeof(HostState),
            len(self.plans),
            b"615.71.05",
            13040,
        )
        for index, plan in enumerate(self.plans):
            plan.fill(host.gpus[index], minor=len(self.plans) - 1 - index)
            host.gpus[index].energy_at_s = self._now_s()
            for uuid in (plan.uuid, *(mig.uuid for mig in plan.migs)):
                folder = self.root / "processes" / uuid
                folder.mkdir(parents=True, exist_ok=True)
                for file in folder.iterdir():
                    file.unlink(missing_ok=True)
        host.magic = MAGIC

    def close(self) -> None:
        """Let go of the memory, which is unmapped with the last view of it: a call may still hang in a double."""
        del self.host, self._memory
        os.close(self._file)

    # --- what sees it ---

    def env(self, *, privileged: bool = True, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Environment in which a child process finds these GPUs; unprivileged ones may only read."""
        if self.library is None:
            raise ValueError("give the compiled library: NvmlStandIn(..., library=nvml_library)")
        found = dict(os.environ if base is None else base)
        found["HEADROOM_STANDIN_NVML"] = str(self.root)
        found["HEADROOM_STANDIN_NVML_UNPRIVILEGED"] = "" if privileged else "1"
        found["LD_LIBRARY_PATH"] = os.pathsep.join(
            part for part in (str(self.library.parent), found.get("LD_LIBRARY_PATH", "")) if part
        )
        return found

    def load_in_process(self) -> ctypes.CDLL:
        """Load the compiled library here, so that the binding finds it instead of a driver. Once per process: its view
        of the environment is taken at the first init. Tests that load it belong into a child process.
        """
        if self.library is None:
            raise ValueError("give the compiled library: NvmlStandIn(..., library=nvml_library)")
        os.environ["HEADROOM_STANDIN_NVML"] = str(self.root)
        return ctypes.CDLL(str(self.library))

    def double(self, *, privileged: bool = True) -> NvmlDouble:
        """The same GPUs as a Python object for `pynvml.nvmlLib`."""
        return NvmlDouble(self, privileged=privileged, now_s=self._now_s)

    @contextmanager
    def locked(self) -> Iterator[HostState]:
        """Hold everybody else off while several fields change."""
        file = os.open(self.root / "state.bin", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self.host
        finally:
            os.close(file)

    def gpu(self, uuid: str) -> GpuState:
        """A GPU's live state, also by the UUID of one of its MIG devices."""
        for index, plan in enumerate(self.plans):
            if uuid in (plan.uuid, *(mig.uuid for mig in plan.migs)):
                found: GpuState = self.host.gpus[index]
                return found
        raise KeyError(uuid)

    def mig(self, uuid: str) -> MigState:
        """A MIG device's live state."""
        gpu = self.gpu(uuid)
        found: MigState = next(mig for mig in gpu.migs[: gpu.mig_count] if mig.uuid.decode() == uuid)
        return found

    def state(self, uuid: str) -> dict[str, object]:
        """What was set on a GPU: None for a clock that is not locked."""
        gpu = self.gpu(uuid)
        return {
            "clock_mhz_sm": gpu.locked_max or None,
            "clock_mhz_memory": gpu.memory_locked_max or None,
            "power_limit_w": gpu.limit_mw / 1000,
            "power_limit_w_default": gpu.limit_mw_default / 1000,
            "compute_mode": gpu.compute_mode,
            "persistence": bool(gpu.persistence),
            "setter_calls": gpu.setter_calls,
        }

    # --- processes ---

    def add_process(self, uuid: str, pid: int, mib: int | None, *, mps: bool = False, imaginary: bool = False) -> None:
        """List a process on a GPU for as long as it lives; an imaginary PID until it is removed. A memory of None: the
        driver cannot tell.
        """
        folder = self.root / "processes" / uuid
        fresh = folder / f"new.{pid}"
        fresh.write_text(f"{-1 if mib is None else mib} {int(mps)} {int(imaginary)}\n", encoding="ascii")
        fresh.rename(folder / str(pid))

    def remove_process(self, uuid: str, pid: int) -> None:
        """The process closed the GPU."""
        (self.root / "processes" / uuid / str(pid)).unlink(missing_ok=True)

    def forget_memory(self, uuid: str, *, unknown: bool = True) -> None:
        """The driver cannot tell what processes use any more."""
        self.gpu(uuid).memory_unknown = int(unknown)

    # --- faults ---

    def lose(self, uuid: str, *, lost: bool = True) -> None:
        """The GPU falls off the bus (code 15 to everything), or comes back."""
        self.gpu(uuid).lost = int(lost)

    def xid(self, uuid: str, number: int) -> None:
        """The driver reports an XID, e.g. 79 (fallen off the bus) or 48 (double-bit ECC)."""
        self.event(uuid, XID, number)

    def event(self, uuid: str, kind: int, data: int) -> None:
        """Any event, to everybody who waits for its kind."""
        with self.locked() as host:
            gpu = next(i for i, plan in enumerate(self.plans) if plan.uuid == uuid)
            slot = host.events[host.event_count % EVENTS]
            slot.type, slot.data, slot.gpu = kind, data, gpu
            host.event_count += 1

    def hang(self, ms: float, uuid: str | None = None) -> None:
        """Calls (on one GPU, or all) block until that time has passed; 0 lets them go at once."""
        until_s = time.monotonic() + ms / 1000.0
        if uuid is None:
            self.host.hang_until_s = until_s
        else:
            self.gpu(uuid).hang_until_s = until_s

    def throttle(self, uuid: str, reasons: int, clock_mhz: int = 0) -> None:
        """Event reasons, e.g. 0x40 hardware thermal, and the clock they hold; 0 reasons end it."""
        with self.locked():
            gpu = self.gpu(uuid)
            gpu.throttle_reasons, gpu.throttle_mhz = reasons, clock_mhz

    def restart_energy(self, uuid: str) -> None:
        """The energy counter begins anew, as after a reload of the driver."""
        with self.locked():
            self.gpu(uuid).energy_mj = 0.0

    def load(self, uuid: str, pct: float | None) -> None:
        """How busy a GPU is; None: 80 % with processes, 0 without. The energy so far counts at the former load."""
        double = self.double()
        with self.locked():
            double.settle(self.gpu(uuid))
            self.gpu(uuid).load_pct = -1.0 if pct is None else pct

    def ignore_locks(self, uuid: str, *, ignores: bool = True) -> None:
        """Clock locks are accepted and do nothing."""
        self.gpu(uuid).ignores_locks = int(ignores)

    def limit_outside(self, uuid: str, power_w: float | None) -> None:
        """A power limit set out-of-band, which wins when it is the stricter one."""
        self.gpu(uuid).limit_mw_outside = 0 if power_w is None else round(1000 * power_w)

    def forbid_setters(self, *, forbidden: bool = True) -> None:
        """Nobody may write (code 4), whatever privilege its process has."""
        self.host.forbid_setters = int(forbidden)

    def forbid_handle(self, uuid: str, code: int = 4) -> None:
        """The GPU is counted, but asking for its handle fails (4: as in containers; 0: works again)."""
        self.gpu(uuid).handle_code = code

    def fail_setters(self, uuid: str, code: int) -> None:
        """Every write to a GPU answers this code; 0 ends it."""
        self.gpu(uuid).setter_code = code

    def fail_reads(self, uuid: str, code: int) -> None:
        """Every call on a GPU answers this code; 0 ends it."""
        self.gpu(uuid).read_code = code

    def fail_init(self, code: int) -> None:
        """Starting NVML answers this code, e.g. 18: library and driver do not match; 0 ends it."""
        self.host.init_code = code

    def miss(self, missing: Missing) -> None:
        """The driver's library lacks these calls."""
        self.host.missing = int(missing)
