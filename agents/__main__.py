"""`python -m agents`: one agent in the foreground, until SIGTERM or SIGINT.

Exit codes: 0 ended when asked to (or rehearsed), 2 started with something it cannot work with. Back ends are imported
when they are chosen, so that a host pays for its own alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from agents.config import AgentConfig, read_config
from agents.devices.base import Devices
from agents.errors import AgentError, ConfigError
from agents.identity import Identity
from agents.log import Log
from agents.loop.endpoint import Endpoint
from agents.loop.loop import Agent
from agents.loop.told import page
from agents.profiling.loads import HttpLoads, OfferedLoads
from agents.servers import Servers
from agents.state import StateDirectory

if TYPE_CHECKING:
    from agents.devices.fake.host import FakeDevices
    from agents.devices.nvidia.host import NvidiaDevices

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: list[str]) -> int:
    asked = _signals_as_bytes()
    try:
        config = read_config(arguments, os.environ)
        return _run(config, asked)
    except AgentError as error:
        print(f"headroom agent: {error}", file=sys.stderr)
        return 2


def _run(config: AgentConfig, asked: int) -> int:
    log = Log(config.node)
    state = StateDirectory(config.state_dir)
    with state.lock():
        devices, offering = _open_devices(config, state, log)
        if config.dry_run:
            return _rehearse(config, devices, state)
        try:
            endpoint = Endpoint(config.listen_host, config.listen_port, config.node, offering)
        except OSError as error:
            raise ConfigError(f"cannot listen on {config.listen_host}:{config.listen_port}: {error}") from None
        config = replace(config, endpoint=config.endpoint or _url(config.listen_host, endpoint.port))
        agent = Agent(config, devices, state, log)
        agent.loads = HttpLoads() if offering is None else OfferedLoads(offering)
        stop = threading.Event()
        threading.Thread(target=_await_end, args=(asked, stop, agent), name="signals", daemon=True).start()
        endpoint.start(agent.health, lambda: page(agent.told()))
        log.event("agent.started", endpoint=config.endpoint, devices=len(devices.inventory()), boot_id=agent.boot_id)
        agent.run(stop)
        endpoint.close()
        log.event("agent.ended")
    return 0


def _open_devices(config: AgentConfig, state: StateDirectory, log: Log) -> tuple[Devices, FakeDevices | None]:
    """The back end, and whoever takes simulated load."""
    opened: tuple[NvidiaDevices | FakeDevices, FakeDevices | None]
    if config.nvidia is not None:
        from agents.opening import open_host

        opened = open_host(config, config.nvidia, state, time.monotonic), None
    else:
        from agents.devices.fake.host import FakeDevices, FakeOrder

        order = FakeOrder(node=config.node, gpu_types=config.gpu_types, time_factor=config.time_factor)
        fakes = FakeDevices(order, time.monotonic, state)
        opened = fakes, fakes
    if opened[0].state_lost:
        log.event("devices.state_lost", reason=opened[0].state_lost)
    return opened


def _rehearse(config: AgentConfig, devices: Devices, state: StateDirectory) -> int:
    """Print what would be done for the newest target there is."""
    from agents.loop.rehearse import newest_target, rehearse

    target, origin = newest_target(
        Servers(config.servers, config.node, tls=Identity(config.trust, state).context), config.node, state
    )
    if target is None:
        sys.stdout.write(f"no target: {origin}\n")
    else:
        sys.stdout.write(f"generation {target.generation}, {origin}\n")
        refusal = ""
        if config.nvidia is not None:
            from agents.crew.users import refusal_of, users_of

            refusal = refusal_of(config.nvidia, has_user=users_of(config.nvidia) is not None)
        lines = rehearse(config.node, devices, target, refusal) or ["nothing to do"]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    devices.close()
    return 0


def _signals_as_bytes() -> int:
    """Turn signals into bytes of a pipe, from now on; where they are read. Blocked signals would do for a thread that
    waits for them, but workers and daemons would inherit the block, and be deaf to SIGTERM.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, _heard)
    return reading


def _heard(number: int, frame: FrameType | None) -> None:
    """Nothing more: a handler may strike while its thread holds a lock that it would need."""


def _await_end(asked: int, stop: threading.Event, agent: Agent) -> None:
    os.read(asked, 1)
    stop.set()
    agent.mailbox.news.set()


def _url(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
