"""`python -m agents.doctor OPTIONS`: what an agent with these options would find here, a JSON line for each look.

`headroom doctor --node` shows them. Nothing is set, started or written; the rehearsal is the agent's own `--dry-run`.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from agents.config import AgentConfig, NvidiaConfig, read_config
from agents.errors import AgentError
from agents.identity import TRUST_FILE, believing, fetched
from agents.loop.rehearse import REFUSED
from agents.state import LOCK_FILE, TOKEN_FILE
from agents.transport import HttpConnection

WELL, ODD, WRONG, UNSEEN = "well", "odd", "wrong", "unseen"
CLOCK_S_WELL, CLOCK_S_REFUSED = 3.0, 60.0
REHEARSAL_S = 15.0


def main(arguments: Sequence[str]) -> int:
    looks = looked_at(arguments)
    for look in looks:
        sys.stdout.write(json.dumps(look) + "\n")
        sys.stdout.flush()
    return 0


def looked_at(arguments: Sequence[str]) -> Iterator[dict[str, str]]:
    try:
        config = read_config(arguments, os.environ)
    except AgentError as error:
        yield _line("options", WRONG, str(error), "see headroom agent --help")
        return
    for address in config.servers:
        yield from _server(config, address)
    yield from _address(config)
    yield from _state(config, arguments)
    if config.nvidia is None:
        yield _line("gpus", WELL, f"{len(config.gpu_types)} simulated: no driver is needed")
    else:
        yield from _gpus(config.nvidia)


def _line(check: str, state: str, found: str, todo: str = "") -> dict[str, str]:
    return {"check": check, "state": state, "found": found, "todo": todo}


def _server(config: AgentConfig, address: str) -> Iterator[dict[str, str]]:
    try:
        context = _believing(config, address)
        connection = HttpConnection(address, tls=lambda: context)
    except AgentError as error:
        yield _line("server", WRONG, f"{address}: {error}", "correct --server, --ca or --ca-sha256")
        return
    try:
        began_s = time.time()
        answer = connection.call("GET", "/v1/health", None)
        middle_s = (began_s + time.time()) / 2
    except AgentError as error:
        yield _line("server", WRONG, f"{address}: {error}", "correct --server, or see what stands between")
        return
    finally:
        connection.close()
    yield _line("server", WELL if answer.ok else WRONG, f"{address} answers {answer.status}")
    if "date" in answer.headers:
        # A Date is a whole second that has begun.
        ahead_s = parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5 - middle_s
        state = WELL if abs(ahead_s) <= CLOCK_S_WELL else WRONG if abs(ahead_s) >= CLOCK_S_REFUSED else ODD
        told = f"the server's is {ahead_s:+.1f} s from here"
        yield _line("clock", state, told, "" if state == WELL else "set it by NTP")


def _address(config: AgentConfig) -> Iterator[dict[str, str]]:
    """Whether others reach what runs here; nothing is said where everybody is on this host."""
    named = config.worker_host or urlsplit(config.endpoint or "").hostname or config.listen_host
    servers = [address for address in config.servers if not _is_here(urlsplit(address).hostname or "")]
    if servers and _is_here(named):
        told = f"workers are named by {named}, which leads nowhere from {servers[0]} and from routers"
        yield _line("address", ODD, told, "name an address of this host: --listen ADDRESS:0")
    elif servers:
        yield _line("address", WELL, f"workers are named by {named}")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _believing(config: AgentConfig, address: str) -> ssl.SSLContext:
    held = config.state_dir / TRUST_FILE
    if held.exists() or config.trust.ca_sha256 is None or not address.startswith("https:"):
        return believing(config.trust, held.read_text(encoding="ascii") if held.exists() else "")
    return believing(config.trust, fetched(address, config.trust.ca_sha256))


def _state(config: AgentConfig, arguments: Sequence[str]) -> Iterator[dict[str, str]]:
    place = config.state_dir
    if not place.is_dir():
        yield _line("state", UNSEEN, f"{place} is not there: this node has not joined", "start the agent")
        return
    if not os.access(place, os.W_OK | os.X_OK) or stat.S_IMODE(place.stat().st_mode) & 0o077:
        yield _line("state", WRONG, f"{place}: not this user's alone", "chown it to the agent's user, chmod 0700")
        return
    joined = "has its token" if (place / TOKEN_FILE).exists() else "has no token yet"
    if _lives(config):
        yield _line("agent", WELL, f"an agent lives with {place}, and {joined}")
        return
    yield _line("agent", ODD, f"no agent lives with {place}, which {joined}", "start it")
    try:
        command = [sys.executable, "-P", "-m", "agents", *arguments, "--dry-run"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=REHEARSAL_S)
    except subprocess.TimeoutExpired:
        yield _line("rehearsal", WRONG, f"no answer within {REHEARSAL_S:g} s", "try headroom agent … --dry-run")
        return
    if done.returncode:
        yield _line("rehearsal", WRONG, done.stderr.strip()[-300:], "try headroom agent … --dry-run")
    else:
        first, *calls = done.stdout.splitlines() or [""]
        told = f"{first}: {len(calls)} calls, {calls[0]} first" if calls else first
        is_refused = REFUSED in first
        todo = "start the agent with a join token that is made for it" if is_refused else ""
        yield _line("rehearsal", WRONG if is_refused else WELL, told, todo)


def _lives(config: AgentConfig) -> bool:
    try:
        with (config.state_dir / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _gpus(options: NvidiaConfig) -> Iterator[dict[str, str]]:
    from agents.devices.nvml import open_boards

    try:
        boards = open_boards(options.selection, now_s=time.monotonic)
    except AgentError as error:
        todo = "install NVIDIA's driver, and let this user open /dev/nvidia*; without GPUs: --devices fake:T4"
        yield _line("driver", WRONG, f"no GPU to work with here: {error}", todo)
    else:
        found = boards.inventory()
        drivers = ", ".join(sorted({item.driver_version or "unknown" for item in found}))
        told = (drivers, ", ".join(f"{item.gpu_type} {item.uuid}" for item in found), *boards.left_out)
        todo = "put it right, or take it out of --devices" if boards.left_out else ""
        yield _line("driver", ODD if boards.left_out else WELL, "; ".join(told), todo)
    control = shutil.which(options.mps_control)
    if control is None:
        yield _line(
            "mps", ODD, f"{options.mps_control} is not on this host", "install it: GPUs cannot be shared by SMs"
        )
    else:
        yield _line("mps", WELL, control)
    yield _writing(options)


def _writing(options: NvidiaConfig) -> dict[str, str]:
    if options.helper is not None:
        from agents.helper.client import HelperSetters

        setters = HelperSetters(options.helper)
        refusals = setters.refusals()
        setters.close()
        told = "; ".join(f"{verb}: {reason}" for verb, reason in refusals.items())[:300]
        if told:
            return _line("helper", WRONG, told, "systemctl status headroom-agent-helper; allow this user there")
        return _line("helper", WELL, f"{options.helper} answers, and refuses nothing")
    if os.geteuid() == 0:
        return _line("helper", WELL, "none is named; root may set clocks and power itself")
    return _line(
        "helper", ODD, "this user may not set clocks and power", "run headroom agent-helper, name it by --helper"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
