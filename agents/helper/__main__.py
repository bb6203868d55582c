"""`python -m agents.helper`: the privileged helper in the foreground, until SIGTERM or SIGINT.

Exit codes: 0 ended when asked to, 2 started with something it cannot work with. When it ends while no agent is there,
devices get their originals back at once; while one is, they are left to it, and the journal remembers them for the next
helper.
"""

from __future__ import annotations

import argparse
import grp
import pwd
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.devices.parts import Boards, Setters
from agents.errors import AgentError, ConfigError
from agents.helper.desk import Audit, Desk, HelperOriginals
from agents.helper.server import HelperRules, HelperServer, listen
from agents.state import StateDirectory, host_boot_id

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperOrder:
    socket_path: Path
    rules: HelperRules
    devices: str
    state_dir: Path
    audit_log: Path | None


def main(arguments: Sequence[str], open_parts: Callable[[str], tuple[Boards, Setters]] | None = None) -> int:
    """Run until told to end. `open_parts` turns the choice of devices into parts; default: NVML."""
    # Inherited by every thread, so that only the one that waits for them gets these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        order = read_order(arguments)
        _run(order, open_parts or _open_nvml)
    except AgentError as error:
        sys.stderr.write(f"headroom agent-helper: {error}\n")
        return 2
    return 0


def read_order(arguments: Sequence[str]) -> HelperOrder:
    """Parse a command line. Raises ConfigError; exits after --help."""
    found = _parser().parse_args(arguments)
    rules = HelperRules(
        uids=frozenset(found.allow_uid), gids=frozenset(found.allow_gid), restore_after_s=found.restore_after
    )
    if not rules.uids and not rules.gids:
        raise ConfigError("nobody may use this helper: give --allow-uid or --allow-gid")
    if not 0.0 <= rules.restore_after_s <= 86_400.0:
        raise ConfigError("--restore-after is between 0 and 86400 seconds")
    return HelperOrder(
        socket_path=found.socket,
        rules=rules,
        devices=found.devices,
        state_dir=found.state_dir,
        audit_log=found.audit_log,
    )


def _run(order: HelperOrder, open_parts: Callable[[str], tuple[Boards, Setters]]) -> None:
    state = StateDirectory(order.state_dir)
    with state.lock():
        boards, setters = open_parts(order.devices)
        audit = Audit(order.audit_log or sys.stderr)
        desk = Desk(boards, setters, HelperOriginals(state, host_boot_id()), audit)
        server = HelperServer(order.rules, desk, audit, time.monotonic)
        listener = listen(order.socket_path)
        stop = threading.Event()
        threading.Thread(target=_await_end, args=(stop, server), name="signals", daemon=True).start()
        threading.Thread(target=server.accept, args=(listener,), name="accept", daemon=True).start()
        while not stop.is_set():
            server.changed.clear()
            pause_s = server.turn()
            if not stop.is_set():
                server.changed.wait(pause_s)
        order.socket_path.unlink(missing_ok=True)
        desk.restore(lambda: server.clients == 0)
        server.close(listener)
        boards.close()


def _await_end(stop: threading.Event, server: HelperServer) -> None:
    signal.sigwait(_SIGNALS)
    stop.set()
    server.changed.set()


def _open_nvml(devices: str) -> tuple[Boards, Setters]:
    from agents.devices.nvml import NvmlSetters, open_boards

    boards = open_boards(devices)
    return boards, NvmlSetters(boards)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headroom agent-helper", description="Writes clocks, power limits and modes for an unprivileged agent."
    )
    add = parser.add_argument
    add("--socket", type=Path, default=Path("/run/headroom-helper/helper.sock"), help="where agents connect")
    add("--allow-uid", type=_uid, action="append", default=[], help="user that may ask, number or name; several times")
    add("--allow-gid", type=_gid, action="append", default=[], help="primary group that may ask; several times too")
    add("--devices", required=True, help="devices that may be written to: nvml:all or nvml:GPU-UUID,…")
    add("--state-dir", type=Path, default=Path("/var/lib/headroom-helper"), help="where originals are remembered")
    add("--restore-after", type=float, default=60.0, help="seconds without any agent before originals are restored")
    add("--audit-log", type=Path, help="file for one line per request; default: standard error")
    return parser


def _uid(text: str) -> int:
    """A user's number, also by name. An unknown name is a KeyError, which argparse would let through."""
    try:
        return int(text) if text.isdigit() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"no user {text!r} on this host") from None


def _gid(text: str) -> int:
    try:
        return int(text) if text.isdigit() else grp.getgrnam(text).gr_gid
    except KeyError:
        raise argparse.ArgumentTypeError(f"no group {text!r} on this host") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
