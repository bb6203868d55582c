"""Waiting for other threads and processes: by condition and deadline, never by hope."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.05


def wait_until(what: str, holds: Callable[[], object], limit_s: float = 30.0) -> None:
    """Poll until the condition holds."""
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what}"
        threading.Event().wait(POLL_S)


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
