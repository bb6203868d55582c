"""What a worker holds of its host beside a part of a device: ports, log files, and bounds on memory and processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from agents.devices.base import LogRead
from agents.errors import BusyError, WorkerError

# --- Ports: who owns which, and which are free
#
# A block is taken only where nothing else listens, and the search goes on behind the last one taken, so that a port
# comes back as late as possible: a router that has not learned yet would otherwise reach a stranger.


_ESTABLISHED, _LISTENING = "01", "0A"


def bindable(port: int) -> bool:
    """Whether a server could listen there, on whatever address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def connections(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> int:
    """How many connections to a port of this host are open: without any, nothing is in flight there."""
    return sum(
        state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
        for table in tables
        for local, state, _ in _sockets(table)
    )


def _sockets(table: str) -> Iterator[tuple[str, str, list[str]]]:
    """Local address, state and all fields of each socket; none where the system does not tell."""
    try:
        lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        yield fields[1], fields[3], fields


def listeners(host: str, port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> frozenset[int]:
    """Users of whoever gets the connections to a port of this host (IPv4); empty where that is unknown."""
    try:
        four = f"{int.from_bytes(socket.inet_aton(socket.gethostbyname(host)), sys.byteorder):08X}"
    except OSError:
        return frozenset()
    mapped = f"{0:016X}{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
    found: dict[str, set[int]] = {}
    for table in tables:
        for local, state, fields in _sockets(table):
            address, _, number = local.rpartition(":")
            if state == _LISTENING and int(number, 16) == port:
                found.setdefault(address, set()).add(int(fields[7]))
    # Who listens on the very address comes before those who listen on all.
    places = (four, mapped + four, f"{0:08X}", mapped + f"{0:08X}", f"{0:032X}")
    return frozenset(next((found[place] for place in places if place in found), ()))


class PortBook:
    """Blocks of ports by owner. Not thread-safe."""

    def __init__(self, ports: range, free: Callable[[int], bool] = bindable) -> None:
        self._ports = ports
        self._free = free
        self._owners: dict[int, str] = {}
        self._next = ports.start

    def take(self, owner: str, count: int) -> int:
        """The first port of a block nobody has. Raises BusyError when there is none."""
        last = self._ports.stop - count
        behind, before = range(self._next, last + 1), range(self._ports.start, min(self._next, last + 1))
        for start in itertools.chain(behind, before):
            block = range(start, start + count)
            if not any(port in self._owners for port in block) and all(self._free(port) for port in block):
                self.hold(owner, block)
                self._next = block.stop
                return start
        raise BusyError(f"no block of {count} free ports in {self._ports.start}-{self._ports.stop - 1}")

    def hold(self, owner: str, block: Iterable[int]) -> None:
        """Write down what an owner already has. Raises BusyError where another one has it."""
        wanted = tuple(block)
        for port in wanted:
            if self._owners.get(port, owner) != owner:
                raise BusyError(f"port {port} belongs to {self._owners[port]}")
        self._owners.update(dict.fromkeys(wanted, owner))

    def free(self, owner: str) -> None:
        self._owners = {port: held for port, held in self._owners.items() if held != owner}

    def owned(self) -> dict[int, str]:
        return dict(self._owners)


# --- Logs: two files for each worker, together never much larger than told
#
# A worker appends to a plain file, so that it goes on writing whether or not an agent lives; a process in between would
# take the worker with it when it dies. The agent looks every second and, where a file is full, keeps its last part
# aside and empties it in place (writers append, so they go on at its beginning; lines written in that instant are
# lost). While no agent lives nothing is cut; the next one does it first of all. A limit of the kernel on file sizes
# would bound every file a worker writes, checkpoints too, and is refused for that.


TAIL_BYTES = 4096
TAIL_LINES = 8
LINE_LENGTH_MAX = 300
TOLD_BYTES, TOLD_WORKERS, TOLD_LENGTH_MAX = 48 * 1024, 3, 2000
"""Who reads a replica's log is told so much of each of its newest workers at once, in lines of this length."""
GONE_KEPT_MAX = 32
"""Workers whose logs stay after they are gone."""
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Logs:
    def __init__(self, folder: Path, bytes_max: int) -> None:
        """`bytes_max`: of one worker, both of its files."""
        self._folder = folder
        self._half_bytes = max(TAIL_BYTES, bytes_max // 2)
        self._cut: dict[str, int] = {}
        """Bytes that were cut away from the beginning of a file."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def open(self, name: str) -> int:
        try:
            return os.open(self.path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WorkerError(f"cannot write {self.path(name)}: {error.strerror}") from error

    def bound(self, name: str) -> None:
        """Cut a file that is full. A disk that is full as well must not stop this: the older part then goes."""
        path = self.path(name)
        try:
            if path.stat().st_size <= self._half_bytes:
                return
        except OSError:
            return
        try:
            _older(path).write_bytes(_end_of(path, self._half_bytes))
        except OSError:
            _remove(_older(path))
        # Where even that fails, the next second tries again.
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            os.truncate(path, 0)
            self._cut[name] = self._cut.get(name, 0) + size

    def tail(self, name: str) -> str:
        """The last lines, safe to show: bounded, without control characters."""
        text = ""
        for path in (_older(self.path(name)), self.path(name)):
            try:
                text += _end_of(path, TAIL_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
        lines = [_CONTROL.sub("", line).strip()[:LINE_LENGTH_MAX] for line in text[-TAIL_BYTES:].splitlines()]
        return " | ".join([line for line in lines if line][-TAIL_LINES:])

    def told(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:
        """The last lines of a replica's newest workers (its name as part of files'); where places are given, whole
        lines that came since.
        """
        said: list[str] = []
        reached: dict[str, int] = {}
        for name in sorted(path.stem for path in self._folder.glob(f"{replica}@*.log"))[-TOLD_WORKERS:]:
            try:
                end = self._cut.get(name, 0) + self.path(name).stat().st_size
                place = None if places is None else places.get(name, 0)
                begin = end - TOLD_BYTES if place is None else max(place, end - TOLD_BYTES)
                text = self._between(name, begin, end)
            except OSError:
                continue
            # Whoever follows is told of a line when it has ended, or is endless.
            unended = len(text) - 1 - text.rfind(b"\n")
            kept = unended if place is not None and unended <= TOLD_LENGTH_MAX else 0
            reached[name] = end - kept
            if place is not None and begin > place:
                said.append(f"... {begin - place} bytes were left out ...")
            said += text[: len(text) - kept].decode("utf-8", "replace").expandtabs().splitlines()
        shown = (_CONTROL.sub("", line).rstrip()[:TOLD_LENGTH_MAX] for line in said[-lines:])
        return LogRead(lines=tuple(shown), places=reached)

    def _between(self, name: str, begin: int, end: int) -> bytes:
        """What was written from one place to another; before its beginning, what an earlier agent cut away."""
        path, cut = self.path(name), self._cut.get(name, 0)
        text = _end_of(path, end - max(begin, cut))
        if begin < cut:
            with contextlib.suppress(FileNotFoundError):
                text = _end_of(_older(path), cut - begin) + text
        return text

    def prune(self, in_use: frozenset[str]) -> None:
        """Keep the last words of only the newest workers that are gone."""
        gone = [path for path in self._folder.glob("*.log") if path.stem not in in_use]
        for path in sorted(gone, key=lambda each: each.stat().st_mtime)[:-GONE_KEPT_MAX]:
            self._cut.pop(path.stem, None)
            _remove(_older(path))
            _remove(path)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _remove(path: Path) -> None:
    """A disk that takes nothing keeps it, and nothing else from going on."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _end_of(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - length))
        return file.read(length)


# --- Host memory and processes: bounded by control groups of version 2 where they are delegated
#
# There is one group for each worker that asks for a bound of its memory or has a user of its own, under the group that
# was handed to the agent. Where there is none, memory that should be bounded is not, and that is said: a bound on
# address space is no way out, since CUDA reserves far more of it than it ever fills.


ROOT = Path("/sys/fs/cgroup")
PREFIX = "headroom-worker-"
TASKS_MAX = 4096
"""Processes and threads of one worker: more than model servers have, and far fewer than a host."""
_UNBOUNDED = "its control group does not bound host memory and processes as it should"


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
    def __init__(self, own: Path | None, delegated: Callable[[Path], bool] = is_delegated) -> None:
        """`own`: the agent's group. Groups with processes cannot hand controllers to others, so those of the workers
        lie beside it, where systemd puts a service with a sub-group of its own.
        """
        groups = () if own is None else (own.parent, own)
        self._base = next((each for each in groups if delegated(each) and _hands_on(each, "memory")), None)
        self._counts_tasks = self._base is not None and _hands_on(self._base, "pids")

    def prepare(self, name: str, memory_mib_max: int | None) -> str:
        """Make a worker's group; what keeps it from being bounded as it should be, empty when it is."""
        if self._base is None:
            unbounded = f"host memory is not limited to {memory_mib_max} MiB"
            return "" if memory_mib_max is None else f"{unbounded}: no control group with memory is delegated"
        group = self._base / (PREFIX + name)
        try:
            group.mkdir(exist_ok=True)
            if memory_mib_max is not None:
                (group / "memory.max").write_text(str(memory_mib_max * 2**20), encoding="ascii")
            if self._counts_tasks:
                (group / "pids.max").write_text(str(TASKS_MAX), encoding="ascii")
        except OSError as error:
            return f"{_UNBOUNDED}: {error.strerror}"
        return ""

    def enter(self, name: str, pid: int) -> str:
        """Put a process that has just begun into its group; why that did not work."""
        if self._base is None:
            return ""
        try:
            (self._base / (PREFIX + name) / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError as error:
            return f"{_UNBOUNDED}: {error.strerror}"
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
        if self._base is not None:
            with contextlib.suppress(OSError):
                (self._base / (PREFIX + name)).rmdir()

    def sweep(self, names: frozenset[str]) -> None:
        """Remove groups of all others; the system keeps those that still have processes."""
        if self._base is not None:
            for group in self._base.glob(PREFIX + "*"):
                if group.name.removeprefix(PREFIX) not in names:
                    self.remove(group.name.removeprefix(PREFIX))


def _hands_on(group: Path, controller: str) -> bool:
    """Whether groups below this one can be bounded by a controller, perhaps after asking for it."""
    control = group / "cgroup.subtree_control"
    try:
        if controller not in control.read_text(encoding="ascii").split():
            if controller not in (group / "cgroup.controllers").read_text(encoding="ascii").split():
                return False
            control.write_text(f"+{controller}", encoding="ascii")
            return controller in control.read_text(encoding="ascii").split()
    except OSError:
        return False
    return True
