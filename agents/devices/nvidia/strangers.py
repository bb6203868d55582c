"""Processes on a managed device that no worker of this host owns.

Owns their telling apart from workers and from the servers of the sharing daemon. They are named for an operator and
never touched: they are not the agent's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agents.devices.parts import GpuProcess

SERVER_NAME = "nvidia-cuda-mps-server"[:15]
"""As the kernel keeps it."""


def strangers(processes: Iterable[GpuProcess], known: frozenset[int], proc: Path = Path("/proc")) -> list[str]:
    """One phrase for each foreign process, in the order of pids."""
    found = []
    for process in sorted(processes, key=lambda each: each.pid):
        if process.pid in known:
            continue
        name = _name(process.pid, proc)
        if name != SERVER_NAME:
            used = "" if process.memory_mib is None else f" with {process.memory_mib:.0f} MiB"
            found.append(f"pid {process.pid} ({name or 'not visible here'}){used}")
    return found


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
