"""How one agent runs: command line, with two values that may come from the environment or a file instead.

Secrets are better given by HEADROOM_TOKEN or --token-file than on a command line that every user of the host can read.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.errors import ConfigError
from agents.wire import mirrored

FAKE, NVML = "fake:", "nvml:"
ALONE_AFTER_S = 600.0
PORTS = "21000-21999"
PORTS_MIN = UID_MIN = 1024
ROUTE_GRACE_S = 5.0
LOG_MIB = 16
WORKER_UIDS = range(1_900_000_000, 1_900_065_536)
"""Above whatever hosts give to people, services and containers."""
WORKER_HOMES = Path("/var/lib/headroom-workers")
PASS_S_SETTLED = 1.0
"""Real workers die and real daemons crash: so often is looked after them."""
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRules:
    """What this host's owner lets workers be and have."""

    executables: tuple[str, ...] | None = None
    """Programs that they may be; None: any."""
    environment: tuple[str, ...] = ()
    """Variables that workloads may set though they steer programs (`agents.wire.steers`)."""
    secret_dirs: tuple[str, ...] = ()
    """Below which files lie that they may have as variables; `{project}` stands for theirs."""
    secret_env: tuple[str, ...] = ()
    """This process's variables that they may have: `NAME`, or `PROJECT:NAME` for one project alone."""
    secret_command: str | None = None
    """The program that is asked for what they may have of a store of secrets, with their project."""
    log_bytes_max: int = LOG_MIB * 2**20
    workers_as_agent: bool = False
    """They are the agent's own user's, whatever they run."""
    worker_uids: range | None = None
    """Users for projects, of which each has its own; None: those nobody else is likely to have."""
    worker_homes: Path = WORKER_HOMES


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaConfig(WorkerRules):
    selection: str
    """Opt-in: `nvml:all`, or `nvml:` and UUIDs."""
    helper: Path | None
    """Socket of the privileged helper; None: this process writes to the devices itself, as far as it may."""
    ports: range
    worker_host: str
    """Where workers listen, and others reach them."""
    mps_protocol: str
    mps_control: str
    mps_pipes: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What whoever starts the agent says about TLS."""

    ca: Path | None = None
    """Authorities (PEM) that may have signed for the server; None: those that this host trusts."""
    ca_sha256: str | None = None
    """Or the fingerprint of one, which the server then tells."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """The node's own, where the control plane does not sign for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself when it joins, and how it works."""

    node: str
    servers: tuple[str, ...]
    """Addresses of the API's processes, or of what stands before them."""
    join_token: str
    rack: str
    failure_domain: str
    region: str
    endpoint: str | None
    """Where others reach this agent; None: as bound."""
    worker_host: str | None = None
    """Where its workers listen; None: simulated ones answer under the endpoint."""
    restore_on_exit: bool = False
    alone_after_s: float = ALONE_AFTER_S
    """Without an answer of the control plane for so long, nothing that works is changed."""
    governed: bool = True
    trust: Trust = Trust()
    route_grace_s: float = 0.0
    pass_s_settled: float = math.inf
    """Between two passes while nothing is under way; reports are passes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(NodeFacts):
    gpu_types: tuple[str, ...]
    """Simulated GPUs; none with real ones."""
    nvidia: NvidiaConfig | None
    state_dir: Path
    listen_host: str
    listen_port: int
    time_factor: float
    dry_run: bool


def read_config(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentConfig:
    """Parse a command line. Raises ConfigError; exits after --help."""
    found = _parser().parse_args(arguments)
    servers = _servers(found.server or [environment.get("HEADROOM_SERVER", "")])
    if not servers:
        raise ConfigError("no server: give one with --server or HEADROOM_SERVER")
    node = found.node or socket.gethostname().split(".")[0].lower()
    if not NAME.fullmatch(node):
        raise ConfigError(f"node {node!r}: use up to 63 lower-case letters, digits, '.', '_' and '-'")
    host, port = _address(found.listen)
    if not math.isfinite(found.time_factor) or found.time_factor <= 0.0:
        raise ConfigError("--time-factor must be greater than 0")
    real = found.devices.startswith(NVML)
    return mirrored(
        AgentConfig,
        found,
        servers=servers,
        join_token=_token(found.token, found.token_file, environment),
        trust=_trust(found),
        node=node,
        gpu_types=() if real else _gpu_types(found.devices),
        nvidia=_nvidia(found) if real else None,
        state_dir=Path(found.state_dir) if found.state_dir else Path.home() / ".headroom" / "agents" / node,
        listen_host=host,
        listen_port=port,
        endpoint=found.advertise,
        worker_host=_worker_host(found) if real else None,
        # Real devices are left as they were found unless told otherwise; simulated ones belong to nobody else.
        restore_on_exit=not found.keep_on_exit if real else bool(found.restore_on_exit),
        route_grace_s=_seconds("--route-grace-s", found.route_grace_s, 0.0) if real else 0.0,
        pass_s_settled=PASS_S_SETTLED if real else math.inf,
        alone_after_s=_seconds("--alone-after", found.alone_after, 1.0),
        governed=found.governor == "on",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headroom agent", description="Turns this host into a node: holds its target and reports what it does."
    )
    add = parser.add_argument
    add(
        "--server",
        action="append",
        metavar="URL,…",
        help="address of the API (HEADROOM_SERVER); of several, this node prefers one by its name",
    )
    add("--token", help="join token (HEADROOM_TOKEN); not needed once this node has joined")
    add("--token-file", type=Path, help="file with the join token")
    add("--ca", type=Path, metavar="FILE", help="authorities that sign for the server; default: this host's")
    add("--ca-sha256", metavar="HEX", help="or the fingerprint of one, as `headroom ca fingerprint` prints it")
    add("--tls-cert", type=Path, metavar="FILE", help="this node's certificate, where others than the server sign it")
    add("--tls-key", type=Path, metavar="FILE", help="and its key")
    add("--node", help="name of this node; default: the host's name")
    add(
        "--devices",
        required=True,
        help="nvml:all, nvml:GPU-UUID,GPU-UUID,… or fake:T4,T4,V100; no GPU is taken unasked",
    )
    add("--state-dir", help="where token and target are kept; default: ~/.headroom/agents/NODE")
    add("--listen", default="127.0.0.1:0", help="HOST:PORT of the node's HTTP endpoint; port 0 takes a free one")
    add("--advertise", help="URL under which others reach that endpoint; default: as bound")
    add("--rack", default="rack-0", help="power domain of this node")
    add("--failure-domain", default="zone-0", help="what fails together with this node")
    add("--region", default="default", help="price region")
    add("--time-factor", type=float, default=1.0, help="simulated processes start this much faster")
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument(
        "--restore-on-exit",
        action="store_true",
        help="give devices back what they had when told to end (default for real GPUs)",
    )
    ending.add_argument("--keep-on-exit", action="store_true", help="leave them, for an upgrade of the agent")
    add("--alone-after", type=float, default=ALONE_AFTER_S, metavar="S", help="freeze changes after so long a silence")
    add("--governor", choices=("on", "off"), default="on", help="move batches and clocks inside the plan's envelope")
    add("--dry-run", action="store_true", help="print what would be done for the target and do nothing")
    _add_nvidia(parser.add_argument_group("real GPUs"))
    return parser


def _add_nvidia(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--helper", type=Path, metavar="SOCKET", help="privileged helper that sets clocks, power and compute mode")
    add("--ports", default=PORTS, metavar="A-B", help=f"ports of workers; default: {PORTS}")
    add("--worker-host", metavar="HOST", help="address workers listen on; default: that of --listen")
    add("--mps-protocol", choices=("auto", "2", "3"), default="auto", help="protocol of the MPS daemons")
    add("--mps-control", default="nvidia-cuda-mps-control", help="the control program of MPS")
    add("--mps-pipes", type=Path, metavar="DIR", help="where the daemons' pipes lie; a short path on a local disk")
    add("--executables", metavar="PATH,…", help="the only programs that workers may be; default: any")
    whose = group.add_mutually_exclusive_group()
    whose.add_argument("--workers-as-agent", action="store_true", help="run workers as the agent's own user")
    whose.add_argument(
        "--worker-uids",
        metavar="A-B",
        help=f"users of projects, one each, for agents that run as root; default: {WORKER_UIDS[0]}-{WORKER_UIDS[-1]}",
    )
    add("--worker-homes", type=Path, default=WORKER_HOMES, metavar="DIR", help=f"their homes; default: {WORKER_HOMES}")
    add("--environment", metavar="NAME,…", help="variables that workloads may set though they steer programs")
    add(
        "--secret-dir",
        metavar="DIR,…",
        help="files below may be secrets of workers, {project} for theirs; default: none",
    )
    add("--secret-env", metavar="NAME,…", help="variables that are; PROJECT:NAME: one project's alone; default: none")
    add("--secret-command", metavar="PATH", help="a program that is asked: PATH PROJECT REFERENCE; default: none")
    add("--route-grace-s", type=float, default=ROUTE_GRACE_S, metavar="S", help="time routers need to forget a worker")
    add("--log-mib", type=int, default=LOG_MIB, metavar="MIB", help="kept of each worker's output")


def _trust(found: argparse.Namespace) -> Trust:
    trust = mirrored(Trust, found, ca_sha256=found.ca_sha256.replace(":", "").lower() if found.ca_sha256 else None)
    if trust.ca_sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", trust.ca_sha256):
        raise ConfigError("--ca-sha256: expected the 64 hexadecimal digits of `headroom ca fingerprint`")
    if (trust.tls_cert is None) != (trust.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together")
    return trust


def _nvidia(found: argparse.Namespace) -> NvidiaConfig:
    if found.log_mib < 1:
        raise ConfigError("--log-mib must be at least 1")
    if found.secret_command is not None and not found.secret_command.startswith("/"):
        raise ConfigError(f"--secret-command {found.secret_command!r}: expected an absolute path")
    return mirrored(
        NvidiaConfig,
        found,
        selection=found.devices,
        ports=numbered("--ports", found.ports, PORTS_MIN, 65535),
        worker_uids=_worker_uids(found.worker_uids),
        worker_host=_worker_host(found),
        executables=_listed("--executables", found.executables, r"/.*", "absolute paths"),
        environment=_listed("--environment", found.environment, _VARIABLE, "names of variables") or (),
        secret_dirs=_listed("--secret-dir", found.secret_dir, r"/.+", "absolute paths") or (),
        secret_env=_listed("--secret-env", found.secret_env, rf"({NAME.pattern}:)?{_VARIABLE}", "names of variables")
        or (),
        log_bytes_max=found.log_mib * 2**20,
    )


def _worker_host(found: argparse.Namespace) -> str:
    host = str(found.worker_host or _address(found.listen)[0])
    if host in ("0.0.0.0", "::"):
        raise ConfigError("--worker-host: name the address under which others reach this host's workers")
    return host


def _worker_uids(text: str | None) -> range | None:
    if text is None:
        return None
    if os.geteuid() != 0:
        raise ConfigError("--worker-uids: only an agent that runs as root can give workers other users")
    return numbered("--worker-uids", text, UID_MIN, 2**31 - 1)


def numbered(option: str, text: str, least: int, most: int) -> range:
    """Numbers from the first to the last. Raises ConfigError."""
    first, _, last = text.partition("-")
    if not re.fullmatch(r"[0-9]{1,10}-[0-9]{1,10}", text) or not least <= int(first) <= int(last) <= most:
        raise ConfigError(f"{option} {text!r}: expected FIRST-LAST between {least} and {most}")
    return range(int(first), int(last) + 1)


def _listed(option: str, text: str | None, form: str, told: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(re.fullmatch(form, name) for name in names):
        raise ConfigError(f"{option} {text!r}: expected {told} separated by commas")
    return names


def _seconds(option: str, found: float, least: float) -> float:
    if not math.isfinite(found) or found < least:
        raise ConfigError(f"{option} must be at least {least:g}")
    return found


def _servers(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(url.strip().rstrip("/") for url in ",".join(given).split(",") if url.strip())


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
        raise ConfigError(f"--devices {devices!r}: expected nvml:all, nvml:GPU-UUID,… or fake:TYPE,TYPE,…")
    return names


def _address(listen: str) -> tuple[str, int]:
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {listen!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)
