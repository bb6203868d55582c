"""What both protocols of MPS can do, whatever their commands are.

Owns the interface and its records. A protocol holds no state of its own: what shall be is handed in, what is is asked
for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from agents.devices.parts import ShareOrder
from agents.mps.control import MpsControl


class ServerState(StrEnum):
    """Whether a server takes clients."""

    STARTING = "starting"
    ACTIVE = "active"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class MpsServer:
    """A server process of a daemon."""

    pid: int
    state: ServerState


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process on a server; `namespace` is empty where there are none."""

    pid: int
    server: str
    namespace: str = ""


class MpsProtocol(Protocol):
    """One of the two languages that daemons speak."""

    @property
    def number(self) -> int:
        """2 or 3."""
        ...

    def socket_path(self, pipe: Path) -> Path:
        """The longest path of a socket in a pipe directory."""
        ...

    def servers(self, control: MpsControl) -> tuple[MpsServer, ...]:
        """The servers of a daemon."""
        ...

    def start_server(self, control: MpsControl, uuid: str) -> None:
        """Have the daemon start the device's server, which may take longer than this call, or die."""
        ...

    def hold(self, control: MpsControl, orders: Iterable[ShareOrder]) -> None:
        """Make the daemon hold limits for these workers and no others, and read them back. Raises SharingError."""
        ...

    def clients(self, control: MpsControl) -> tuple[MpsClient, ...]:
        """Every client of the daemon."""
        ...

    def environment(self, pipe: Path, order: ShareOrder) -> Mapping[str, str]:
        """What binds a worker to its part."""
        ...

    def misfit(self, control: MpsControl, order: ShareOrder, client: MpsClient) -> str:
        """What the daemon's own limits leave to be desired for a client; empty when they are as ordered."""
        ...

    def terminate(self, control: MpsControl, client: MpsClient) -> None:
        """Take a client off its server."""
        ...

    def quit(self, control: MpsControl) -> None:
        """End the daemon and forget all it holds."""
        ...
