"""What MPS is told at start, and two facts of hosts: where pipes may lie, and how many clients fit on a device.

Owns the options and their bounds. It starts nothing and reads no device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.errors import ConfigError

PROTOCOLS = ("auto", "2", "3")
SOCKET_PATH_BYTES_MAX = 107
"""What the kernel takes as the path of a Unix socket, its final NUL left out."""
SYSTEM_RUNTIME = Path("/run/headroom")
CONNECTIONS = 2
"""Hardware connections of an MPS client unless it asks for more."""
CLIENTS_PRE_VOLTA = 16
CLIENTS = 48
CLIENTS_SINCE_13_1 = 60
CUDA_13_1 = 13010


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOptions:
    """How daemons are run on this host."""

    state_dir: Path
    pipe_base: Path
    control_binary: str
    protocol: str
    """auto, 2 or 3; auto takes 3 where the driver has it."""
    sm_counts: Mapping[str, int]
    """SMs of each whole device."""
    client_slots: Mapping[str, int]
    """Clients each device has room for."""
    probe_command: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"MPS protocol {self.protocol!r}: expected one of {', '.join(PROTOCOLS)}")
        if not self.probe_command or not self.control_binary:
            raise ConfigError("MPS needs its control program and a probe command")


def default_pipe_base(environment: Mapping[str, str], state_dir: Path, system: Path = SYSTEM_RUNTIME) -> Path:
    """The first of the system's, the user's runtime directory and the state directory that this user may write to."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    for parent, child in ((system, "mps"), (Path(runtime) if runtime else None, "hr/mps")):
        if parent is not None and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            return parent / child
    return state_dir / "mps"


def client_slots(cuda_version: int, *, volta: bool = True, device_part: float = 1.0) -> int:
    """Clients a device has room for. `cuda_version`: the driver's (13010 is 13.1); `device_part`: a MIG slice's."""
    whole = CLIENTS_SINCE_13_1 if cuda_version >= CUDA_13_1 else CLIENTS
    return max(1, int((whole if volta else CLIENTS_PRE_VOLTA) * device_part))
