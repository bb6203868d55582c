"""How one agent runs: command line, with two values that may come from the environment or a file instead.

Owns the options, their checks and defaults. Secrets are better given by HEADROOM_TOKEN or --token-file than on a
command line that every user of the host can read.
"""

from __future__ import annotations

import argparse
import math
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.errors import ConfigError

FAKE = "fake:"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Everything an agent is told at start."""

    server: str
    token: str
    node: str
    gpu_types: tuple[str, ...]
    state_dir: Path
    listen_host: str
    listen_port: int
    advertise: str | None
    rack: str
    failure_domain: str
    region: str
    time_factor: float
    restore_on_exit: bool


def read_config(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentConfig:
    """Parse a command line. Raises ConfigError; exits after --help."""
    found = _parser().parse_args(arguments)
    server = found.server or environment.get("HEADROOM_SERVER", "")
    if not server:
        raise ConfigError("no server: give one with --server or HEADROOM_SERVER")
    node = found.node or _host_name()
    if not _NAME.fullmatch(node):
        raise ConfigError(f"node {node!r}: use up to 63 lower-case letters, digits, '.', '_' and '-'")
    host, port = _address(found.listen)
    if not math.isfinite(found.time_factor) or found.time_factor <= 0.0:
        raise ConfigError("--time-factor must be greater than 0")
    return AgentConfig(
        server=server.rstrip("/"),
        token=_token(found.token, found.token_file, environment),
        node=node,
        gpu_types=_gpu_types(found.devices),
        state_dir=Path(found.state_dir) if found.state_dir else Path.home() / ".headroom" / "agents" / node,
        listen_host=host,
        listen_port=port,
        advertise=found.advertise,
        rack=found.rack,
        failure_domain=found.failure_domain,
        region=found.region,
        time_factor=found.time_factor,
        restore_on_exit=found.restore_on_exit,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headroom agent", description="Turns this host into a node: holds its target and reports what it does."
    )
    add = parser.add_argument
    add("--server", help="address of the API (HEADROOM_SERVER)")
    add("--token", help="join token (HEADROOM_TOKEN); not needed once this node has joined")
    add("--token-file", type=Path, help="file with the join token")
    add("--node", help="name of this node; default: the host's name")
    add("--devices", required=True, help="back end and devices, e.g. fake:T4,T4,V100")
    add("--state-dir", help="where token and target are kept; default: ~/.headroom/agents/NODE")
    add("--listen", default="127.0.0.1:0", help="HOST:PORT of the node's HTTP endpoint; port 0 takes a free one")
    add("--advertise", help="URL under which others reach that endpoint; default: as bound")
    add("--rack", default="rack-0", help="power domain of this node")
    add("--failure-domain", default="zone-0", help="what fails together with this node")
    add("--region", default="default", help="price region")
    add("--time-factor", type=float, default=1.0, help="simulated processes start this much faster")
    add("--restore-on-exit", action="store_true", help="reset clocks and power limits when told to end")
    return parser


def _token(given: str | None, file: Path | None, environment: Mapping[str, str]) -> str:
    if given:
        return given
    if file is None:
        return environment.get("HEADROOM_TOKEN", "")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {file}: {error}") from None


def _gpu_types(devices: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in devices.removeprefix(FAKE).split(","))
    if not devices.startswith(FAKE) or not all(names):
        raise ConfigError(f"--devices {devices!r}: expected fake:TYPE,TYPE,… (the one back end there is)")
    return names


def _address(listen: str) -> tuple[str, int]:
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {listen!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)


def _host_name() -> str:
    return socket.gethostname().split(".")[0].lower()
