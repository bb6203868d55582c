"""Whatever happens in whatever order, no process has more than its part unnoticed, and nothing is left at the end."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.devices.parts import ShareOrder
from agents.errors import BusyError, DeviceError
from tests.integration.agents.mps.bench import Bench, part
from tests.standins.mps import GPUS, StandInWorker

pytestmark = pytest.mark.integration
UUIDS = tuple(gpu.uuid for gpu in GPUS)
SHARES = (10, 25, 50)
SMS = {
    (gpu.uuid, share): gpu.sms * share // 100 // gpu.granularity * gpu.granularity for gpu in GPUS for share in SHARES
}
DEEDS = ("open", "start", "start", "start", "stray", "end", "crash", "crash server", "fault", "restart", "shut", "tick")


@dataclass
class World:
    """A host, its workers and what was granted to them."""

    bench: Bench
    workers: dict[str, tuple[ShareOrder, StandInWorker]] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    seen: int = 0
    """Workers that were rightly called unlimited."""
    count: int = 0

    def do(self, deed: str, index: int) -> None:
        """One thing that happens."""
        uuid = UUIDS[index % len(UUIDS)]
        running = any(self.daemon(uuid))
        sharing = self.bench.sharing
        if deed == "open":
            with contextlib.suppress(DeviceError):
                self.opened.add(uuid)
                sharing.open(uuid)
        elif deed in ("start", "stray"):
            self.start(uuid, index, stray=deed == "stray")
        elif deed == "end" and self.workers:
            self.end(sorted(self.workers)[index % len(self.workers)])
        elif deed == "crash" and running:
            self.bench.host.crash_daemon(uuid)
        elif deed == "crash server" and running:
            with contextlib.suppress(AssertionError):
                self.bench.host.crash_server(uuid)
        elif deed == "fault" and running:
            self.bench.host.fault(uuid)
        elif deed == "restart":
            self.bench.restart_agent()
        elif deed == "shut":
            with contextlib.suppress(BusyError):
                sharing.shut(uuid)
                self.opened.discard(uuid)
        elif deed == "tick":
            self.bench.clock.pass_s(400.0)

    def start(self, uuid: str, index: int, *, stray: bool) -> None:
        """Grant, and start a worker; a stray one does not find the daemon."""
        self.count += 1
        name = f"w{self.count}"
        order = part(uuid, name, SHARES[index % 3], 1000 + index)
        try:
            environment = dict(self.bench.sharing.grant(order))
        except DeviceError:
            return
        if stray:
            environment["CUDA_MPS_PIPE_DIRECTORY"] = "/nowhere"
        worker = self.bench.worker(environment)
        if worker.greeting == "open":
            self.workers[name] = (order, worker)
        else:
            self.bench.sharing.revoke(order)

    def end(self, name: str) -> None:
        """Off the server, then killed, then forgotten: the order that spares the neighbours."""
        order, worker = self.workers.pop(name)
        self.bench.sharing.end_client(order, worker.pid)
        worker.kill()
        self.bench.sharing.revoke(order)

    def daemon(self, uuid: str) -> list[int]:
        """The device's daemons."""
        try:
            return [self.bench.host.daemon_of(uuid)]
        except AssertionError:
            return []

    def check(self) -> None:
        """Compare what the sharing says of every worker with what is so."""
        host, sharing = self.bench.host, self.bench.sharing
        clients = {uuid: host.clients(uuid) if self.daemon(uuid) else () for uuid in UUIDS}
        for order, worker in self.workers.values():
            found = sharing.check(order, (worker.pid,))
            limited = worker.pid in clients[order.uuid]
            assert found.problem or found.pending or limited, "a worker without its limits went unnoticed"
            assert not found.problem or not limited, found.problem
            if limited and not found.pending:
                assert worker.ask("sm") == str(found.sm_count) == str(SMS[order.uuid, order.share_pct_sm])
            self.seen += bool(found.problem)
        assert len(host.daemons()) <= len(self.opened)
        assert len(list(host.pipe_base.iterdir())) <= len(self.opened)
        assert host.abrupt() == ()

    def end_all(self) -> None:
        """Everything is taken down, whatever state it is in."""
        for name in sorted(self.workers):
            self.end(name)
        for uuid in UUIDS:
            self.bench.sharing.shut(uuid)


def play(protocol: str, deeds: list[tuple[str, int]]) -> tuple[int, int]:
    """One life of a host: workers started, and how often one was called unlimited."""
    with tempfile.TemporaryDirectory(prefix="hr-seq-") as name:
        world = World(Bench(Path(name), protocol))
        try:
            for deed, index in [("open", 0), ("open", 1), *deeds]:
                world.do(deed, index)
                world.check()
            world.end_all()
            assert world.bench.host.processes() == ()
            assert list(world.bench.host.pipe_base.iterdir()) == []
            assert world.bench.host.abrupt() == ()
        finally:
            world.bench.close()
    return world.count, world.seen


@pytest.mark.parametrize("protocol", ["2", "3"])
@settings(max_examples=6)
@given(deeds=st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 5)), min_size=6, max_size=14))
def test_nothing_runs_unlimited_unnoticed_and_nothing_is_left(protocol: str, deeds: list[tuple[str, int]]) -> None:
    play(protocol, deeds)


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_the_sequences_reach_what_they_are_for(protocol: str) -> None:
    deeds = [
        ("start", 0),
        ("stray", 1),
        ("crash", 0),
        ("open", 0),
        ("restart", 0),
        ("start", 2),
        ("fault", 0),
        ("end", 0),
    ]
    started, seen = play(protocol, deeds)
    assert started == 3
    assert seen >= 4
