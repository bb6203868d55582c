"""What all parts of the crew work with: the host, the files, the members and the lock around them.

Owns the members, their state files and nothing of their lives. Whoever holds the lock may touch members; nobody waits
for a worker, a daemon or a thread while holding it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agents.crew.limits import CgroupLimits
from agents.crew.logs import Logs
from agents.crew.member import CrewMember, member_to_plain
from agents.crew.ports import PortBook
from agents.crew.processes import Processes
from agents.crew.web import Question, Web, WebAnswer
from agents.devices.base import WorkerSample
from agents.errors import StateFileError
from agents.state import StateDirectory

FOLDER, LOG_FOLDER = "workers", "logs"
_UNSAFE = re.compile(r"[^A-Za-z0-9@_-]")
_NAME_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewOptions:
    """How this host keeps its workers. `ports`: what they listen on, one block each. `executables`: the only programs
    that may be started; None: any. `route_grace_s`: how long routers may take to learn that a worker leaves. `host`:
    the address (IPv4) on which workers listen and are reached.
    """

    state_dir: Path
    host: str = "127.0.0.1"
    ports: range = range(20000, 21000)
    route_grace_s: float = 2.0
    executables: tuple[str, ...] | None = None
    log_bytes_max: int = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewHost:
    """What is replaced in tests."""

    processes: Processes
    web: Web
    limits: CgroupLimits
    fetch: Callable[[Question], WebAnswer]
    """Waits for its answer."""
    connections: Callable[[int], int]
    free: Callable[[int], bool]
    aside: Callable[[Callable[[], None]], None]
    """Runs what may wait in a thread of its own."""
    boot_id: str


@dataclass(slots=True, kw_only=True)
class CrewBench:
    """The members and everything they are kept with."""

    options: CrewOptions
    host: CrewHost
    now_s: Callable[[], float]
    logs: Logs
    ports: PortBook
    state: StateDirectory
    lock: threading.RLock = field(default_factory=threading.RLock)
    members: dict[str, CrewMember] = field(default_factory=dict)
    gone: list[WorkerSample] = field(default_factory=list)
    """Last samples of workers that ended since the last report."""

    def save(self, member: CrewMember) -> None:
        """Write a member down. A full disk ends no process: it is said, and the next agent may not know of it."""
        try:
            self.state.write_json(file_name(member.name), member_to_plain(member, self.host.boot_id))
        except StateFileError as error:
            member.note = str(error)

    def forget(self, member: CrewMember) -> None:
        """A member is gone, with all it held."""
        now_s = self.now_s()
        if member.process is not None:
            member.answering = False
            reading = member.reading(self.options.host, now_s)
            self.gone.append(member.tally.cut(reading, now_s, gone=True))
        del self.members[member.name]
        (self.state.path / file_name(member.name)).unlink(missing_ok=True)
        self.ports.free(member.name)
        self.host.limits.remove(safe_name(member.name))
        self.logs.prune(frozenset(safe_name(name) for name in self.members))


def safe_name(name: str) -> str:
    """A worker's name as part of a file's; different names stay different."""
    return _UNSAFE.sub(lambda found: "".join(f".{byte:02x}" for byte in found[0].encode()), name)[:_NAME_MAX]


def file_name(name: str) -> str:
    """The state file of a worker."""
    return f"{safe_name(name)}.json"
