"""Processes of this host, from /proc: who they are, whether they still live, and the environment they were given.

A pid alone names nobody, because it is used again; here a process is its pid together with its start time. Zombies
count as gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MpsProcessId:
    """One process, never mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int

    @property
    def lives(self) -> bool:
        """Whether it runs still."""
        return identify(self.pid) == self


def identify(pid: int) -> MpsProcessId | None:
    """The process that has this pid now."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in "ZX" else MpsProcessId(pid, int(fields[19]))


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None where it cannot be read."""
    try:
        text = (PROC / str(pid) / "environ").read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError:
        return None
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def runs(pid: int, program: str) -> bool:
    """Whether a process of this user runs a program of this name, as itself or as a script."""
    try:
        mine = (PROC / str(pid)).stat().st_uid == os.geteuid()
        parts = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return mine and os.fsencode(program) in [part.rpartition(b"/")[2] for part in parts]


def bound_to(pipe: Path) -> tuple[int, ...]:
    """Processes of this user that were started to be clients of the daemon in a pipe directory."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            at = (environment_of(int(entry.name)) or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
            if at and (Path(at) == pipe or pipe in Path(at).parents):
                found.append(int(entry.name))
    return tuple(pid for pid in found if identify(pid) is not None)
