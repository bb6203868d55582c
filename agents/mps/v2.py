"""Protocol 2: one server per daemon, limits by the worker's environment, and the daemon's own as a ceiling above them.

Every worker lowers its share and memory by its own environment. Server and defaults hold the largest part granted, so
that a process that lost its environment still gets no more than that: the default reaches the next server only, the
server's setting its next clients only, so both are set. A daemon sees a single device, which is number 0 to it; that
number cannot be mistyped unnoticed as a UUID can, and every driver takes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.devices.parts import ShareOrder
from agents.errors import SharingError
from agents.mps.control import MpsControl, memory_mib_in, number_in, pids_in, refused
from agents.mps.protocol import MpsClient, MpsServer, ServerState

DEVICE = "0"
SHARE, MEMORY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ROUNDING_PCT = 0.5
"""Percentages are shown with a decimal or without."""
ROUNDING_MIB = 1.0


class ProtocolTwo:
    """The text commands on standard input."""

    number = 2

    def socket_path(self, pipe: Path) -> Path:
        """The longest path of a socket in a pipe directory."""
        return pipe / "control_privileged"

    def servers(self, control: MpsControl) -> tuple[MpsServer, ...]:
        """The servers of a daemon: one, or none before its first client."""
        pids = pids_in(_say(control, "get_server_list"))
        return tuple(MpsServer(pid, _state(_say_freely(control, f"get_server_status {pid}"))) for pid in pids)

    def start_server(self, control: MpsControl, uuid: str) -> None:
        """Have the daemon start its server, as this user's. Raises SharingError where that is refused."""
        try:
            _say(control, f"start_server -uid {os.getuid()}")
        except SharingError as error:
            raise SharingError(f"no server for {uuid}: {error}") from error

    def hold(self, control: MpsControl, orders: Iterable[ShareOrder]) -> None:
        """Raise or lower the ceilings to the largest part. Without any worker they stay."""
        orders = tuple(orders)
        if not orders:
            return
        share = max(order.share_pct_sm for order in orders)
        memory = max(order.memory_mib_limit for order in orders)
        _keep(control, "default_", "", share, memory)
        for server in self.servers(control):
            _keep(control, "", f"{server.pid} ", share, memory)

    def clients(self, control: MpsControl) -> tuple[MpsClient, ...]:
        """Every client of the daemon."""
        return tuple(
            MpsClient(pid, server)
            for server in map(str, pids_in(_say(control, "get_server_list")))
            for pid in pids_in(_say(control, f"get_client_list {server}"))
        )

    def environment(self, pipe: Path, order: ShareOrder) -> Mapping[str, str]:
        """Where the daemon is, and what of the device the worker may have. Only the device it sees is named: another
        one would void every memory limit.
        """
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_VISIBLE_DEVICES": order.uuid,
            SHARE: str(order.share_pct_sm),
            MEMORY: f"{order.uuid}={order.memory_mib_limit}M",
        }

    def misfit(self, control: MpsControl, order: ShareOrder, client: MpsClient) -> str:
        """A ceiling below the worker's part takes from it."""
        share = number_in(_say(control, f"get_active_thread_percentage {client.server}"))
        if share is not None and share < order.share_pct_sm - ROUNDING_PCT:
            return f"its server gives at most {share:g} % of the SMs"
        memory = memory_mib_in(_say_freely(control, f"get_device_pinned_mem_limit {client.server} {DEVICE}"))
        if memory is not None and memory < order.memory_mib_limit - ROUNDING_MIB:
            return f"its server gives at most {memory:.0f} MiB"
        return ""

    def terminate(self, control: MpsControl, client: MpsClient) -> None:
        """Take a client off its server."""
        _say(control, f"terminate_client {client.server} {client.pid}")

    def quit(self, control: MpsControl) -> None:
        """End the daemon."""
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
    if not _memory_is(control, scope, server, memory):
        _say(control, f"set_{scope}device_pinned_mem_limit {server}{DEVICE} {memory}M")
        if not _memory_is(control, scope, server, memory):
            raise SharingError(f"the daemon does not hold the memory limit of {memory} MiB it was told")


def _share_is(control: MpsControl, scope: str, server: str, share: int) -> bool:
    found = number_in(_say(control, f"get_{scope}active_thread_percentage {server}".rstrip()))
    return found is not None and abs(found - share) <= ROUNDING_PCT


def _memory_is(control: MpsControl, scope: str, server: str, memory: int) -> bool:
    found = memory_mib_in(_say_freely(control, f"get_{scope}device_pinned_mem_limit {server}{DEVICE}"))
    return found is not None and abs(found - memory) <= ROUNDING_MIB


def _state(text: str) -> ServerState:
    """Older daemons cannot tell; their servers take clients as soon as they are listed."""
    words = text.upper()
    if "FAULT" in words:
        return ServerState.FAULT
    unknown = "COMMAND" in words and refused(text)
    return ServerState.ACTIVE if unknown or ("ACTIVE" in words and not refused(text)) else ServerState.STARTING
