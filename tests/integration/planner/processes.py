"""What /proc tells of processes that a test kills."""

from __future__ import annotations

from pathlib import Path


def children_of(pid: int) -> set[int]:
    """Living processes whose parent is `pid`."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.add(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process lives and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
