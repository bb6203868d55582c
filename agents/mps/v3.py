"""Protocol 3: a named server for the device, and in it a namespace per worker that holds the worker's limits.

The worker gets no limit by its environment, only the path of its namespace: a namespace's share replaces the
environment's, and setting both would hide which one holds. A namespace without limits is the whole device, so that it
is given its limits before anybody learns its path. A server can be "created" and die; it is believed when it is listed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.devices.parts import ShareOrder
from agents.errors import SharingError
from agents.mps.control import MpsControl, memory_mib_in, number_in, refused, shortened
from agents.mps.protocol import MpsClient, MpsServer, ServerState

SERVER = "gpu"
PREFIX = "w_"
CSV = "--format=csv,noheader"
_STATES = {"ready": ServerState.ACTIVE, "active": ServerState.ACTIVE, "fault": ServerState.FAULT}
_OF_SERVER = f"--server={SERVER}"
ROUNDING_MIB = 1.0
_NAME = re.compile(r"[a-z0-9_]+")


def namespace_of(worker: str) -> str:
    """A worker's namespace: lower-case letters, digits and underscores are all a name may have; paths must be short."""
    return PREFIX + hashlib.sha256(worker.encode()).hexdigest()[:12]


class ProtocolThree:
    """The sub-commands on the argument vector."""

    number = 3

    def socket_path(self, pipe: Path) -> Path:
        """The longest path of a socket in a pipe directory."""
        return pipe / SERVER / namespace_of("") / "control_privileged"

    def servers(self, control: MpsControl) -> tuple[MpsServer, ...]:
        """This agent's server, if it lives."""
        return tuple(
            MpsServer(int(row[2]), _STATES.get(row[3].strip().lower(), ServerState.STARTING))
            for row in _rows(control, "server")
            if row[0] == SERVER and row[2].strip().isdigit()
        )

    def start_server(self, control: MpsControl, uuid: str) -> None:
        """Have the daemon start the device's server."""
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
        """Take a client off its server."""
        control.ask("client", "terminate", str(client.pid))

    def quit(self, control: MpsControl) -> None:
        """End the daemon."""
        control.ask("-q")


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
    if memory is None or abs(memory - order.memory_mib_limit) > ROUNDING_MIB:
        return f"its namespace gives {'any' if memory is None else f'{memory:.0f} MiB of'} memory"
    return ""
