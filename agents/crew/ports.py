"""Ports of workers: who owns which, and which are free.

Owns the book of blocks. A block is taken only where nothing else listens, and the search goes on behind the last one
taken, so that a port comes back as late as possible: a router that has not learned yet would otherwise reach a
stranger.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from agents.errors import BusyError

_ESTABLISHED = "01"


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
    found = 0
    for table in tables:
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state = line.split()[:4]
            if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                found += 1
    return found


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
        """Take back all of an owner's ports."""
        self._owners = {port: held for port, held in self._owners.items() if held != owner}

    def owned(self) -> dict[int, str]:
        """Who has which port."""
        return dict(self._owners)
