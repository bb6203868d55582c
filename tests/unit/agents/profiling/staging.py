"""Simulated time, devices and load for tests that measure."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.devices.base import WorkerReading
from agents.devices.fake.host import FakeDevices
from agents.profiling.loads import LoadSeen
from agents.profiling.session import ProfilingBench
from tests.unit.agents.builders import FakeClock, fake_devices


@dataclass
class Saturating:
    """Keeps simulated workers busy; sees only what it sent."""

    stage: Stage
    replica: str
    rate_rps: float = 20000.0
    closed: bool = False

    def offer(self, over_s: float) -> None:
        if not self.closed:
            self.stage.devices.offer({self.replica: self.rate_rps * over_s}, over_s)

    def take(self) -> LoadSeen:
        return LoadSeen(latencies_ms=[1.0], failed=0)

    def close(self) -> None:
        self.closed = True


@dataclass
class Stage:
    """Simulated time, devices and load of a test."""

    clock: FakeClock = field(default_factory=FakeClock)
    loads: list[Saturating] = field(default_factory=list)
    stop_after_s: float = float("inf")
    waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.devices: FakeDevices = fake_devices(self.clock, ("v100",))
        self.uuid = self.devices.inventory()[0].uuid

    def wait(self, seconds: float) -> None:
        for load in self.loads:
            load.offer(seconds)
        self.clock.pass_s(seconds)
        self.waited_s += seconds

    def bench(self) -> ProfilingBench:
        def begin(worker: WorkerReading, concurrency: int) -> Saturating:
            assert concurrency == 2 * worker.spec.batch
            self.loads.append(Saturating(self, worker.spec.replica))
            return self.loads[-1]

        return ProfilingBench(
            devices=self.devices,
            uuid=self.uuid,
            now_s=self.clock,
            wait_s=self.wait,
            samples=self.devices.collect,
            begin=begin,
            stopped=lambda: self.waited_s > self.stop_after_s,
        )
