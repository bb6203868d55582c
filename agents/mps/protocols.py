"""What a control daemon is told and asked: its command-line program, and the two languages that daemons speak.

The program is run with a time-out and judged by more than its exit status. Nobody promises the exact form of its texts:
numbers are searched for, error words are recognised even with exit status 0. A protocol holds no state of its own: what
shall be is handed in, what is is asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agents.devices.parts import ShareOrder
from agents.errors import DeviceTimeoutError, NotSupportedError, SharingError

COMMAND_TIMEOUT_S = 3.0
_REFUSED = re.compile(
    r"\b(error|fail(ed|ure)?|invalid|unknown|unrecogni[sz]ed|cannot|can't|could ?n[o']t|unable|denied|not permitted"
    r"|not found|not exist|no such|does not|already running|refused|busy)\b",
    re.IGNORECASE,
)
_PID = re.compile(r"[0-9]{1,10}")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_MEMORY = re.compile(rf"({_NUMBER.pattern})\s{{0,8}}([KMGT])(?:i?B)?\b", re.IGNORECASE)
ROUNDING_MIB = 1.0
_MIB = {"K": 1.0 / 1024.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class MpsControl:
    binary: str
    pipe: Path

    def ask(self, *arguments: str, stdin: str = "") -> str:
        """What the daemon answers. Raises SharingError when it is down or refuses, DeviceTimeoutError when it hangs."""
        text = self.ask_freely(*arguments, stdin=stdin)
        if refused(text):
            raise SharingError(f"{_named(arguments, stdin)}: {shortened(text)}")
        return text

    def ask_freely(self, *arguments: str, stdin: str = "") -> str:
        """The same, where an error's text is an answer."""
        try:
            done = subprocess.run(
                [self.binary, *arguments],
                input=stdin,
                env=plain_environment({"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            raise NotSupportedError(f"there is no {self.binary} on this host") from None
        except subprocess.TimeoutExpired:
            raise DeviceTimeoutError(f"{_named(arguments, stdin)}: no answer in {COMMAND_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise SharingError(f"cannot run {self.binary}: {error.strerror}") from error
        if done.returncode != 0:
            raise SharingError(f"{_named(arguments, stdin)}: {shortened(done.stdout + done.stderr)}")
        return done.stdout.strip()


def plain_environment(more: Mapping[str, str]) -> dict[str, str]:
    """What a program needs of this process' environment, and what it is given: nothing that shares or limits hang on
    comes in unasked.
    """
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(more)


def refused(text: str) -> bool:
    return _REFUSED.search(text) is not None


def number_in(text: str) -> float | None:
    found = _NUMBER.search(text)
    return None if found is None else float(found.group())


def memory_mib_in(text: str) -> tuple[float, float] | None:
    """What the first memory value of a text may stand for: at least, and less than. Units are binary, and daemons show
    whole ones, rounded down: 7297 MiB as 7G.
    """
    found = _MEMORY.search(text)
    if found is None:
        return None
    unit = _MIB[found.group(2).upper()]
    least = float(found.group(1)) * unit
    return least, least + max(unit, ROUNDING_MIB)


def may_be(shown: tuple[float, float] | None, mib: float) -> bool:
    """Whether a shown memory value can stand for this one."""
    return shown is not None and shown[0] - ROUNDING_MIB <= mib < shown[1]


def pids_in(text: str) -> tuple[int, ...]:
    return tuple(int(line) for line in map(str.strip, text.splitlines()) if _PID.fullmatch(line))


def shortened(text: str) -> str:
    words = " ".join(text.split())
    return words[:200] if words else "no answer"


def _named(arguments: tuple[str, ...], stdin: str) -> str:
    return " ".join(arguments) or stdin.strip()


class ServerState(StrEnum):
    STARTING = "starting"
    ACTIVE = "active"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class MpsServer:
    pid: int
    state: ServerState


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process on a server; `namespace` is empty where there are none."""

    pid: int
    server: str
    namespace: str = ""


DEVICE = "0"
SHARE, MEMORY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ROUNDING_PCT = 0.5
"""Percentages are shown with a decimal or without."""


class ProtocolTwo:
    """One server per daemon, limits by the worker's environment, and the daemon's own as a ceiling above them: text
    commands on standard input.

    Every worker lowers its share and memory by its own environment. Server and defaults hold the largest part granted,
    so that a process that lost its environment still gets no more than that: the default reaches the next server only,
    the server's setting its next clients only, so both are set. A daemon sees a single device, which is number 0 to it;
    that number cannot be mistyped unnoticed as a UUID can, and every driver takes it.
    """

    number = 2
    many_users = "-multiuser-server"
    """Has a daemon of root take the clients of all users, on one server."""

    def socket_path(self, pipe: Path) -> Path:
        return pipe / "control_privileged"

    def servers(self, control: MpsControl) -> tuple[MpsServer, ...]:
        """The servers of a daemon: one, or none before its first client."""
        pids = pids_in(_say(control, "get_server_list"))
        return tuple(MpsServer(pid, _state(_say_freely(control, f"get_server_status {pid}"))) for pid in pids)

    def start_server(self, control: MpsControl, uuid: str) -> None:
        """Have the daemon start its server, as this user's, which may take longer than this call, or die. Raises
        SharingError where that is refused.
        """
        try:
            _say(control, f"start_server -uid {os.getuid()}")
        except SharingError as error:
            raise SharingError(f"no server for {uuid}: {error}") from error

    def hold(self, control: MpsControl, orders: Iterable[ShareOrder]) -> None:
        """Make the daemon hold limits for these workers and no others, and read them back: the ceilings are the largest
        part, and stay without any worker. Raises SharingError.
        """
        orders = tuple(orders)
        if not orders:
            return
        share = max(order.share_pct_sm for order in orders)
        memory = max(order.memory_mib_limit for order in orders)
        _keep(control, "default_", "", share, memory)
        for server in self.servers(control):
            _keep(control, "", f"{server.pid} ", share, memory)

    def clients(self, control: MpsControl) -> tuple[MpsClient, ...]:
        return tuple(
            MpsClient(pid, server)
            for server in map(str, pids_in(_say(control, "get_server_list")))
            for pid in pids_in(_say(control, f"get_client_list {server}"))
        )

    def environment(self, pipe: Path, order: ShareOrder) -> Mapping[str, str]:
        """What binds a worker to its part: where the daemon is, and what of the device the worker may have. Only the
        device it sees is named: another one would void every memory limit.
        """
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_VISIBLE_DEVICES": order.uuid,
            SHARE: str(order.share_pct_sm),
            MEMORY: f"{order.uuid}={order.memory_mib_limit}M",
        }

    def misfit(self, control: MpsControl, order: ShareOrder, client: MpsClient) -> str:
        """What the daemon's own limits leave to be desired for a client, empty when they are as ordered: a ceiling
        below the worker's part takes from it.
        """
        share = number_in(_say(control, f"get_active_thread_percentage {client.server}"))
        if share is not None and share < order.share_pct_sm - ROUNDING_PCT:
            return f"its server gives at most {share:g} % of the SMs"
        memory = memory_mib_in(_say_freely(control, f"get_device_pinned_mem_limit {client.server} {DEVICE}"))
        if memory is not None and memory[1] <= order.memory_mib_limit:
            return f"its server gives at most {memory[0]:.0f} MiB"
        return ""

    def terminate(self, control: MpsControl, client: MpsClient) -> None:
        _say(control, f"terminate_client {client.server} {client.pid}")

    def quit(self, control: MpsControl) -> None:
        """End the daemon, which forgets all it holds."""
        _say(control, "quit")


def _say(control: MpsControl, command: str) -> str:
    return control.ask(stdin=command + "\n")


def _say_freely(control: MpsControl, command: str) -> str:
    return control.ask_freely(stdin=command + "\n")


def _keep(control: MpsControl, scope: str, server: str, share: int, memory: int) -> None:
    """Set the ceilings of the defaults or of a server where they differ, and read them back."""
    if not _share_is(control, scope, server, share):
        _say(control, f"set_{scope}active_thread_percentage {server}{share}")
        if not _share_is(control, scope, server, share):
            raise SharingError(f"the daemon does not hold the share of {share} % it was told")
    shown = _memory_shown(control, scope, server)
    # What is shown in larger units may be another value of the same name.
    if not may_be(shown, memory) or (shown is not None and shown[1] - shown[0] > ROUNDING_MIB):
        _say(control, f"set_{scope}device_pinned_mem_limit {server}{DEVICE} {memory}M")
        if not may_be(_memory_shown(control, scope, server), memory):
            raise SharingError(f"the daemon does not hold the memory limit of {memory} MiB it was told")


def _share_is(control: MpsControl, scope: str, server: str, share: int) -> bool:
    found = number_in(_say(control, f"get_{scope}active_thread_percentage {server}".rstrip()))
    return found is not None and abs(found - share) <= ROUNDING_PCT


def _memory_shown(control: MpsControl, scope: str, server: str) -> tuple[float, float] | None:
    return memory_mib_in(_say_freely(control, f"get_{scope}device_pinned_mem_limit {server}{DEVICE}"))


def _state(text: str) -> ServerState:
    """Older daemons cannot tell; their servers take clients as soon as they are listed."""
    words = text.upper()
    if "FAULT" in words:
        return ServerState.FAULT
    unknown = "COMMAND" in words and refused(text)
    return ServerState.ACTIVE if unknown or ("ACTIVE" in words and not refused(text)) else ServerState.STARTING


SERVER = "gpu"
PREFIX = "w_"
CSV = "--format=csv,noheader"
_STATES = {"ready": ServerState.ACTIVE, "active": ServerState.ACTIVE, "fault": ServerState.FAULT}
_OF_SERVER = f"--server={SERVER}"
_NAME = re.compile(r"[a-z0-9_]+")


def namespace_of(worker: str) -> str:
    """A worker's namespace: lower-case letters, digits and underscores are all a name may have; paths must be short."""
    return PREFIX + hashlib.sha256(worker.encode()).hexdigest()[:12]


class ProtocolThree:
    """A named server for the device, and in it a namespace per worker that holds the worker's limits: sub-commands on
    the argument vector.

    The worker gets no limit by its environment, only the path of its namespace: a namespace's share replaces the
    environment's, and setting both would hide which one holds. A namespace without limits is the whole device, so that
    it is given its limits before anybody learns its path. A server can be "created" and die; it is believed when it is
    listed.
    """

    number = 3
    many_users = "--multiuser"

    def socket_path(self, pipe: Path) -> Path:
        return pipe / SERVER / namespace_of("") / "control_privileged"

    def servers(self, control: MpsControl) -> tuple[MpsServer, ...]:
        """This agent's server, if it lives."""
        return tuple(
            MpsServer(int(row[2]), _STATES.get(row[3].strip().lower(), ServerState.STARTING))
            for row in _rows(control, "server")
            if row[0] == SERVER and row[2].strip().isdigit()
        )

    def start_server(self, control: MpsControl, uuid: str) -> None:
        control.ask("server", "create", SERVER, f"--uid={os.getuid()}", f"--allowed-devices={uuid}")

    def hold(self, control: MpsControl, orders: Iterable[ShareOrder]) -> None:
        """One namespace with its limits per worker. Others go, unless somebody is in them still."""
        wanted = {namespace_of(order.worker): order for order in orders}
        there = {row[0] for row in _rows(control, "namespace", _OF_SERVER)}
        for name, order in wanted.items():
            if name not in there:
                control.ask("namespace", "create", name, _OF_SERVER)
            if _difference(control, name, order):
                share, memory = f"{order.share_pct_sm}", f"{order.memory_mib_limit}M"
                limits = (f"--active-thread-percentage={share}", f"--pinned-memory-limit={memory}")
                control.ask("namespace", "set", name, _OF_SERVER, *limits)
                difference = _difference(control, name, order)
                if difference:
                    raise SharingError(f"the daemon does not hold what it was told: {difference}")
        for name in sorted(there - set(wanted)):
            if name.startswith(PREFIX):
                control.ask_freely("namespace", "delete", name, _OF_SERVER)

    def clients(self, control: MpsControl) -> tuple[MpsClient, ...]:
        """Every client of the daemon, also those of other servers than the device's."""
        rows = _rows(control, "client", "--all")
        return tuple(MpsClient(int(row[0]), row[1], row[3]) for row in rows if row[0].strip().isdigit())

    def environment(self, pipe: Path, order: ShareOrder) -> Mapping[str, str]:
        """The way to the worker's namespace, and nothing that could contradict it."""
        at = pipe / SERVER / namespace_of(order.worker)
        return {"CUDA_MPS_PIPE_DIRECTORY": str(at), "CUDA_VISIBLE_DEVICES": order.uuid}

    def misfit(self, control: MpsControl, order: ShareOrder, client: MpsClient) -> str:
        """A client must be in its own namespace, and that must have the worker's limits."""
        name = namespace_of(order.worker)
        if (client.server, client.namespace) != (SERVER, name):
            return f"it is in namespace {client.server}/{client.namespace} instead of {SERVER}/{name}"
        return _difference(control, name, order)

    def terminate(self, control: MpsControl, client: MpsClient) -> None:
        control.ask("client", "terminate", str(client.pid))

    def quit(self, control: MpsControl) -> None:
        control.ask("-q")


MpsProtocol = ProtocolTwo | ProtocolThree
"""One of the two languages that daemons speak."""


def _rows(control: MpsControl, module: str, *arguments: str) -> list[list[str]]:
    """A list's rows. Commands of clients stand in them, so that error words are looked for only where no row is."""
    text = control.ask_freely(module, "list", *arguments, CSV)
    rows = [line.split(",") for line in text.splitlines()]
    found = [row for row in rows if len(row) > 3 and _NAME.fullmatch(row[0].strip())]
    if not found and refused(text):
        raise SharingError(f"{module} list: {shortened(text)}")
    return found


def _difference(control: MpsControl, name: str, order: ShareOrder) -> str:
    share = number_in(control.ask("namespace", "get", name, SERVER, "active-thread-percentage"))
    memory = memory_mib_in(control.ask("namespace", "get", name, SERVER, "pinned-memory-limit"))
    if share != order.share_pct_sm:
        return f"its namespace gives {'all' if share is None else f'{share:g} %'} of the SMs"
    if not may_be(memory, order.memory_mib_limit):
        return f"its namespace gives {'any' if memory is None else f'{memory[0]:.0f} MiB of'} memory"
    return ""
