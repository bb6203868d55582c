"""Random lives of a stand-in host: desired states, crashes and faults, with the agent's real parts and real processes.

Owns what may happen and what must be true at every moment, in the end and when nothing is wanted any more. A life
raises AssertionError where that is not so; the seed replays what happened, not how processes were scheduled.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from agents.crew import rounds
from agents.devices.base import Mode, WorkerState
from agents.errors import AgentError
from agents.loop import apply, steps
from agents.wire import DeviceTarget, NodeTarget
from tests.standins.hosts import FAULTS, HostAgent, HostStandIn, Watch, host_in_process
from tests.standins.hosts.sequences import draw_target, held
from tests.unit.agents.builders import NODE
from tests.waiting import spend, wait_until

EVENTS_MAX = 4
REACH_S = 60.0
BACKOFF_S = 4.0
LAUNCH_S = 1.5
CLOCK_THROTTLED_MHZ, HW_THERMAL = 300, 0x40
DEVICE_MEMORY_XID, TIMEOUT_CODE, DENIED_CODE = 95, 10, 4


class Life:
    """One life. `ports` must belong to nobody else."""

    def __init__(self, host: HostStandIn, seed: int, ports: range) -> None:
        self.rng = random.Random(seed)
        self.host = host
        self.ports = ports
        self.generation = 0
        self.target: NodeTarget | None = None
        self.agent = HostAgent(host, ports, seed)
        self.reached_cap: set[str] = set()
        self.story: list[str] = []

    def over(self) -> list[str]:
        """What breaks a limit at this moment."""
        found = self.host.over()
        target = self.target
        for device in target.devices if target is not None else ():
            limit_w, cap_w = self.host.nvml.state(device.uuid)["power_limit_w"], device.power_limit_w
            assert isinstance(limit_w, float)
            if cap_w is not None and target is self.target:
                if limit_w <= cap_w:
                    self.reached_cap.add(f"{self.generation} {device.uuid}")
                elif f"{self.generation} {device.uuid}" in self.reached_cap and target is self.target:
                    found.append(f"{device.uuid}: limit of {limit_w} W over a cap of {cap_w} W")
        return found

    def want(self, devices: tuple[DeviceTarget, ...] | None = None) -> None:
        """Another desired state: these devices, or drawn ones."""
        self.generation += 1
        drawn = draw_target(self.rng, self.generation, self.agent.devices.inventory(), self.host.worker())
        if devices is not None:
            drawn = NodeTarget(node=NODE, generation=self.generation, plan=None, devices=devices)
        self.agent.applier.accept(drawn)
        self.target = drawn

    def passes(self, seconds: float) -> None:
        """Let the agent work for a while, whatever comes of it."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            self.agent.applier.run_pass()
            self.agent.applier.receipt("life", 0.0)
            spend(0.02)

    def event(self) -> None:
        """Something happens."""
        happen: tuple[Callable[[str], None], ...] = (
            lambda uuid: self.want(),
            lambda uuid: self.want(),
            self.replace_agent,
            self.kill_worker,
            self.kill_worker,
            self.crash_daemon,
            self.crash_server,
            self.fault_server,
            self.host.nvml.lose,
            lambda uuid: self.host.nvml.xid(uuid, DEVICE_MEMORY_XID),
            lambda uuid: self.host.nvml.throttle(uuid, HW_THERMAL, CLOCK_THROTTLED_MHZ),
            lambda uuid: self.host.nvml.fail_setters(uuid, self.rng.choice((TIMEOUT_CODE, DENIED_CODE))),
            lambda uuid: self.host.nvml.hang(self.rng.choice((50.0, 300.0)), uuid),
            lambda uuid: self.host.fault(self.rng.choice(FAULTS)),
            lambda uuid: self.host.fault(self.rng.choice(FAULTS)),
        )
        choice = self.rng.randrange(len(happen))
        uuid = self.rng.choice(self.host.uuids)
        self.story.append(f"{choice} on {uuid[:8]}")
        happen[choice](uuid)

    def replace_agent(self, uuid: str) -> None:
        """The agent is killed; another one comes."""
        self.agent.die()
        seed = self.rng.randrange(10**6)
        try:
            self.agent = HostAgent(self.host, self.ports, seed)
        except AgentError:
            # Without a single GPU an agent ends; another one finds them again.
            self.host.heal()
            self.agent = HostAgent(self.host, self.ports, seed)
        if self.target is not None:
            self.agent.applier.accept(self.target)

    def kill_worker(self, uuid: str) -> None:
        """A worker dies by itself."""
        pids = self.host.pids(uuid)
        if pids:
            chosen = self.rng.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(chosen, signal.SIGKILL)
            # A signal is not an end yet.
            wait_until(lambda: chosen not in self.host.pids(uuid), "a killed worker's end")

    def crash_daemon(self, uuid: str) -> None:
        """The MPS daemon of a device is gone."""
        with contextlib.suppress(AssertionError):
            self.host.mps.crash_daemon(uuid)

    def crash_server(self, uuid: str) -> None:
        """The MPS server of a device is gone."""
        with contextlib.suppress(AssertionError):
            self.host.mps.crash_server(uuid)

    def fault_server(self, uuid: str) -> None:
        """A client's fatal fault reaches all of its device."""
        with contextlib.suppress(AssertionError):
            self.host.mps.fault(uuid)

    def live(self) -> None:
        """From the first target to the last."""
        with Watch(self.over) as watch:
            self.want()
            for _ in range(self.rng.randint(1, EVENTS_MAX)):
                self.passes(self.rng.choice((0.0, 0.1, 0.4)))
                self.event()
            self.passes(self.rng.choice((0.0, 0.2)))
            self.host.heal()
            if len(self.agent.devices.inventory()) < len(self.host.uuids):
                self.replace_agent("")
            self.hold()
            self.want(())
            self.agent.settle(REACH_S)
            self.agent.devices.restore()
        assert watch.seen == [], f"over: {watch.seen}"
        left = self.host.leftovers()
        assert left == [], f"left behind: {left}"

    def hold(self) -> None:
        """Until the last desired state is held, what happened just now included: a fault takes a moment to be felt."""
        ends_at = time.monotonic() + REACH_S
        while True:
            self.agent.settle(REACH_S)
            try:
                return self.check_held()
            except AssertionError:
                if time.monotonic() > ends_at:
                    raise
            self.passes(0.1)

    def check_held(self) -> None:
        """The last desired state reads back, and the devices say so themselves."""
        assert self.target is not None
        promised = held(self.target)
        workers = {worker.spec.replica: worker for worker in self.agent.devices.workers()}
        assert promised.keys() <= workers.keys(), f"{promised.keys() - workers.keys()} are missing"
        for replica, (uuid, share, memory, batch) in promised.items():
            found, spec = workers[replica], workers[replica].spec
            kept = (found.uuid, spec.share_pct_sm, spec.memory_mib_limit, spec.batch, found.state)
            assert kept == (uuid, share, memory, batch, WorkerState.READY), f"{replica}: {kept}"
        for device in self.target.devices:
            state = self.host.nvml.state(device.uuid)
            limit = device.power_limit_w or state["power_limit_w_default"]
            kept_settings = (state["clock_mhz_sm"], state["power_limit_w"])
            assert kept_settings == (device.clock_mhz_sm, limit), f"{device.uuid}: {kept_settings}"
            there = {replica for replica, (uuid, *_) in promised.items() if uuid == device.uuid}
            if device.mode == Mode.MPS and there:
                pids = [pid for name in there for pid in self.agent.devices._roster.pids[workers[name].worker]]
                clients = self.host.mps.clients(device.uuid)
                assert set(pids) <= set(clients), f"{device.uuid}: {pids} are not all of {clients}"


def live(folder: Path, seed: int, ports: range) -> None:
    """One life on a host of its own. Raises AssertionError with its story."""
    with host_in_process(folder) as host, impatient():
        life = Life(host, seed, ports)
        try:
            life.live()
        except AssertionError as error:
            raise AssertionError(f"life {seed} ({', '.join(life.story)}): {error}") from error
        finally:
            life.agent.die()


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Workers that never get ready are given up within seconds, and what failed is tried again within seconds."""
    with (
        patch.object(steps, "LAUNCH_S_MIN", LAUNCH_S),
        patch.object(rounds, "LAUNCH_S_MIN", LAUNCH_S),
        patch.object(apply, "BACKOFF_S_MAX", BACKOFF_S),
        patch.object(apply, "BACKOFF_S_MAX", BACKOFF_S),
    ):
        yield
