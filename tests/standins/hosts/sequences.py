"""Random desired states of a host, drawn so that each of them could be held.

Owns the drawing only: what is done with them, and what goes wrong meanwhile, is the business of whoever draws.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.wire import DeviceInventory, DeviceTarget, NodeTarget, ReplicaTarget, WorkerTarget
from tests.unit.agents.builders import NODE, replica_target

NAMES = ("a", "b", "c", "d", "e")
SHARES = (10, 20, 30, 40, 50, 60, 70, 100)
MEMORIES_MIB = (1_000, 4_000, 9_000, 20_000)
POWERS = (None, None, 0.6, 0.8)
MODES = ("mps", "mps", "mps", "dedicated", "time_sliced")


def draw_target(
    rng: random.Random, generation: int, inventory: Sequence[DeviceInventory], worker: WorkerTarget
) -> NodeTarget:
    """A target for these devices, full or empty, with some replicas on their way out."""
    free = list(NAMES)
    rng.shuffle(free)
    devices = []
    for device in inventory:
        if rng.random() < 0.1:
            continue
        mode = rng.choice(MODES)
        replicas = _draw_replicas(rng, device, free, 1 if mode == "dedicated" else rng.randint(0, 3), worker)
        part = rng.choice(POWERS)
        devices.append(
            DeviceTarget(
                uuid=device.uuid,
                mode=mode,
                clock_mhz_sm=rng.choice((None, *device.clocks_mhz_sm[-3:])),
                power_limit_w=None if part is None else float(round(part * device.power_limit_w_max)),
                replicas=tuple(replicas),
            )
        )
    return NodeTarget(node=NODE, generation=generation, plan=f"plan-{generation}", devices=tuple(devices))


def _draw_replicas(
    rng: random.Random, device: DeviceInventory, free: list[str], count: int, worker: WorkerTarget
) -> list[ReplicaTarget]:
    found: list[ReplicaTarget] = []
    share, memory = 100, device.memory_mib
    for _ in range(count):
        part, limit = rng.choice(SHARES), rng.choice(MEMORIES_MIB)
        if not free or part > share or limit > memory:
            continue
        share, memory = share - part, memory - limit
        found.append(
            replica_target(
                free.pop(),
                share=part,
                memory=limit,
                batch=rng.randint(1, 8),
                launch_s=0.1,
                worker=worker,
                retire_after_s=rng.choice((0.5, 3.0)) if rng.random() < 0.15 else None,
            )
        )
    return found


def held(target: NodeTarget) -> dict[str, tuple[str, int, int, int]]:
    """What shall be held in the end: device, share, memory and batch by replica."""
    return {
        replica.replica: (device.uuid, replica.share_pct_sm, replica.memory_mib_limit, replica.batch)
        for device in target.devices
        for replica in device.replicas
        if replica.retire_after_s is None
    }
