"""A host with MPS for tests: the stand-in, agents' sharing on it one after the other, workers as processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agents.devices.parts import ShareOrder
from agents.mps import MpsOptions, MpsSharing
from tests.standins.mps import MpsStandIn, StandInWorker
from tests.unit.agents.builders import FakeClock
from tests.waiting import wait_until

SLOTS = 48


def part(uuid: str, worker: str = "w1", share: int = 25, memory: int = 1000, **more: int) -> ShareOrder:
    """A worker's part of a device."""
    return ShareOrder(worker=worker, uuid=uuid, share_pct_sm=share, memory_mib_limit=memory, **more)


class Bench:
    """Everything of a test; ends every worker it started."""

    def __init__(self, tmp_path: Path, protocol: str) -> None:
        self.host = MpsStandIn(tmp_path)
        self.state = tmp_path / "state"
        self.protocol = protocol
        self.clock = FakeClock()
        self.workers: list[StandInWorker] = []
        self.sharing = self.agent()

    def agent(self, **more: object) -> MpsSharing:
        """Another agent on the same host and state."""
        host = self.host
        fields = {
            "state_dir": self.state,
            "pipe_base": host.pipe_base,
            "control_binary": host.control_binary,
            "protocol": self.protocol,
            "sm_counts": host.sm_counts,
            "client_slots": dict.fromkeys(host.sm_counts, SLOTS),
            "probe_command": host.probe_command,
        }
        return MpsSharing(MpsOptions(**{**fields, **more}), self.clock)

    def restart_agent(self) -> None:
        """The agent goes and another one comes."""
        self.sharing.close()
        self.sharing = self.agent()

    def worker(self, environment: Mapping[str, str]) -> StandInWorker:
        """A process that opens the device at once."""
        worker = StandInWorker(self.host, environment)
        self.workers.append(worker)
        return worker

    def await_clients(self, uuid: str, count: int) -> None:
        """Wait until the daemon counts so many."""
        wait_until(lambda: len(self.host.clients(uuid)) == count, f"{count} clients")

    def close(self) -> None:
        """Nothing is left."""
        for worker in self.workers:
            worker.kill()
        self.host.close()
