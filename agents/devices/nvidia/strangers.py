"""Processes on a managed device that no worker of this host owns.

Owns their telling apart from workers and from the servers of the sharing daemon. They are named for an operator and
never touched: they are not the agent's. A process counts as foreign only after it has been there for a while, because
the device sees a worker that has just started before the crew does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agents.devices.parts import GpuProcess

SERVER_NAME = "nvidia-cuda-mps-server"[:15]
"""As the kernel keeps it."""
FOREIGN_AFTER_S = 5.0


class Strangers:
    """Foreign processes by device. Not thread-safe."""

    def __init__(self, now_s: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self._now_s = now_s
        self._proc = proc
        self._seen_s: dict[tuple[str, int], float] = {}
        self._told: dict[str, list[str]] = {}

    def look(self, processes: Mapping[str, Iterable[GpuProcess]], known: frozenset[int]) -> None:
        """Take in who is on each device, and who of all is known."""
        now_s = self._now_s()
        found = {
            (uuid, process.pid): process
            for uuid, there in processes.items()
            for process in there
            if process.pid not in known
        }
        self._seen_s = {key: self._seen_s.get(key, now_s) for key in found}
        self._told = {}
        for (uuid, pid), process in sorted(found.items(), key=lambda item: item[0]):
            if now_s - self._seen_s[uuid, pid] >= FOREIGN_AFTER_S:
                name = _name(pid, self._proc)
                if name != SERVER_NAME:
                    self._told.setdefault(uuid, []).append(_phrase(process, name))

    def problems(self) -> list[str]:
        """A sentence for each device that has some."""
        return [
            f"{uuid}: used by processes that are not this agent's: {', '.join(phrases)}"
            for uuid, phrases in sorted(self._told.items())
        ]


def _phrase(process: GpuProcess, name: str) -> str:
    used = "" if process.memory_mib is None else f" with {process.memory_mib:.0f} MiB"
    return f"pid {process.pid} ({name or 'not visible here'}){used}"


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
