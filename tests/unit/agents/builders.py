"""Short-hand for targets, specs and a clock that only moves when told."""

from __future__ import annotations

from agents.devices.base import WorkerSpec
from agents.devices.fake.host import FakeDevices, FakeOrder
from agents.state import StateDirectory
from agents.wire import DeviceTarget, NodeTarget, ReplicaTarget

NODE = "node-1"


class FakeClock:
    """Seconds that pass when told."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds


def fake_devices(
    clock: FakeClock, gpu_types: tuple[str, ...] = ("v100",), state: StateDirectory | None = None, boot_id: str = "boot"
) -> FakeDevices:
    """A simulated host."""
    return FakeDevices(FakeOrder(node=NODE, gpu_types=gpu_types), clock, state, boot_id)


def worker_spec(replica: str = "r1", share: int = 30, memory: int = 4000, **more: object) -> WorkerSpec:
    """A service's worker."""
    fields = {
        "replica": replica,
        "kind": "service",
        "workload": "team/svc",
        "project": "team",
        "model": "resnet50",
        "share_pct_sm": share,
        "memory_mib_limit": memory,
        "batch": 8,
        "latency_ms_limit": 200.0,
        "launch_s": 6.0,
    }
    return WorkerSpec(**(fields | more))  # type: ignore[arg-type]


def replica_target(replica: str = "r1", share: int = 30, memory: int = 4000, **more: object) -> ReplicaTarget:
    """A service's replica."""
    fields = {
        "replica": replica,
        "kind": "service",
        "workload": "team/svc",
        "project": "team",
        "model": "resnet50",
        "share_pct_sm": share,
        "memory_mib_limit": memory,
        "batch": 8,
        "batch_min": 1,
        "batch_max": 32,
        "clock_mhz_sm_min": 300,
        "clock_mhz_sm_max": 1590,
        "latency_ms_limit": 200.0,
        "launch_s": 6.0,
    }
    return ReplicaTarget(**(fields | more))  # type: ignore[arg-type]


def device_target(uuid: str, *replicas: ReplicaTarget, **more: object) -> DeviceTarget:
    """What a device shall hold."""
    fields = {"mode": "mps", "clock_mhz_sm": None, "power_limit_w": None}
    return DeviceTarget(uuid=uuid, replicas=replicas, **(fields | more))  # type: ignore[arg-type]


def node_target(generation: int, *devices: DeviceTarget, node: str = NODE) -> NodeTarget:
    """What the node shall hold."""
    return NodeTarget(node=node, generation=generation, plan=f"plan-{generation}", devices=devices)
