"""`python -m agents`: one agent in the foreground, until SIGTERM or SIGINT.

Owns the wiring of a process, its signals and exit codes: 0 ended when asked to, 2 started with something it cannot work
with.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from agents.config import AgentConfig, read_config
from agents.devices.fake.host import FakeDevices, FakeOrder
from agents.endpoint import Endpoint
from agents.errors import AgentError, ConfigError
from agents.log import Log
from agents.loop import Agent, NodeFacts
from agents.state import StateDirectory

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Run until told to end."""
    # Inherited by every thread, so that only the one that waits for them gets these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        config = read_config(arguments, os.environ)
        return _run(config)
    except AgentError as error:
        print(f"headroom agent: {error}", file=sys.stderr)
        return 2


def _run(config: AgentConfig) -> int:
    log = Log(config.node)
    state = StateDirectory(config.state_dir)
    with state.lock():
        order = FakeOrder(node=config.node, gpu_types=config.gpu_types, time_factor=config.time_factor)
        devices = FakeDevices(order, time.monotonic, state)
        if devices.state_lost:
            log.event("devices.state_lost", reason=devices.state_lost)
        try:
            endpoint = Endpoint(config.listen_host, config.listen_port, config.node, devices)
        except OSError as error:
            raise ConfigError(f"cannot listen on {config.listen_host}:{config.listen_port}: {error}") from None
        facts = NodeFacts(
            node=config.node,
            server=config.server,
            join_token=config.token,
            rack=config.rack,
            failure_domain=config.failure_domain,
            region=config.region,
            endpoint=config.advertise or _url(config.listen_host, endpoint.port),
            restore_on_exit=config.restore_on_exit,
        )
        agent = Agent(facts, devices, state, log)
        stop = threading.Event()
        threading.Thread(target=_await_end, args=(stop, agent), name="signals", daemon=True).start()
        endpoint.start()
        log.event("agent.started", endpoint=facts.endpoint, devices=len(config.gpu_types), boot_id=agent.boot_id)
        agent.run(stop)
        endpoint.close()
        log.event("agent.ended")
    return 0


def _await_end(stop: threading.Event, agent: Agent) -> None:
    """Wait for a signal in a thread of its own: a handler could strike while the main thread holds a lock it needs."""
    signal.sigwait(_SIGNALS)
    stop.set()
    agent.mailbox.news.set()


def _url(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
