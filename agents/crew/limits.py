"""Bounds on the host memory of a worker, by control groups of version 2 where they are delegated.

Owns the groups it makes, one for each worker that asks for a bound, under the group that was handed to the agent. Where
there is none it says so and bounds nothing: a bound on address space is no way out, since CUDA reserves far more of it
than it ever fills.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "headroom-worker-"


def own_group(root: Path = ROOT, proc: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The group this process is in; None without version 2."""
    try:
        lines = proc.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return root / paths[0].lstrip("/") if paths and (root / "cgroup.controllers").exists() else None


def is_delegated(group: Path) -> bool:
    """Whether a group was handed over: to our user, or (root owns all) with the mark that systemd puts on it."""
    try:
        if os.geteuid() != 0:
            return group.stat().st_uid == os.geteuid()
        return os.getxattr(group, "trusted.delegate") == b"1"
    except OSError:
        return False


class CgroupLimits:
    """Groups below the delegated one."""

    def __init__(self, own: Path | None, delegated: Callable[[Path], bool] = is_delegated) -> None:
        """`own`: the agent's group. Groups with processes cannot hand controllers to others, so those of the workers
        lie beside it, where systemd puts a service with a sub-group of its own.
        """
        groups = () if own is None else (own.parent, own)
        self._base = next((each for each in groups if delegated(each) and _hands_on_memory(each)), None)

    def prepare(self, name: str, memory_mib_max: int) -> str:
        """Make a worker's group; what keeps its memory from being bounded, empty when it is."""
        if self._base is None:
            return f"host memory is not limited to {memory_mib_max} MiB: no control group with memory is delegated"
        group = self._base / (PREFIX + name)
        try:
            group.mkdir(exist_ok=True)
            (group / "memory.max").write_text(str(memory_mib_max * 2**20), encoding="ascii")
        except OSError as error:
            return f"host memory is not limited to {memory_mib_max} MiB: {error.strerror}"
        return ""

    def enter(self, name: str, pid: int) -> str:
        """Put a process that has just begun into its group; why that did not work."""
        if self._base is None:
            return ""
        try:
            (self._base / (PREFIX + name) / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError as error:
            return f"host memory is not limited: {error.strerror}"
        return ""

    def members(self, name: str) -> tuple[int, ...]:
        """Pids in a worker's group, also those that left its session."""
        if self._base is None:
            return ()
        try:
            text = (self._base / (PREFIX + name) / "cgroup.procs").read_text(encoding="ascii")
        except OSError:
            return ()
        return tuple(int(line) for line in text.split())

    def remove(self, name: str) -> None:
        """Give a worker's group back."""
        if self._base is not None:
            with contextlib.suppress(OSError):
                (self._base / (PREFIX + name)).rmdir()


def _hands_on_memory(group: Path) -> bool:
    """Whether groups below this one can have their memory bounded, perhaps after asking for it."""
    control = group / "cgroup.subtree_control"
    try:
        if "memory" not in control.read_text(encoding="ascii").split():
            if "memory" not in (group / "cgroup.controllers").read_text(encoding="ascii").split():
                return False
            control.write_text("+memory", encoding="ascii")
            return "memory" in control.read_text(encoding="ascii").split()
    except OSError:
        return False
    return True
