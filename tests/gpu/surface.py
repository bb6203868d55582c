"""The step that fills `surface.csv`: a batch's time, power and memory over network, share and batch, alone.

All workers of a network are clients of one daemon at a time, each with its share; one works while the others wait, so
that a point costs a second and no start of a process.
"""

from __future__ import annotations

import itertools
import time

from agents.devices.base import WorkerReading
from agents.devices.nvidia.host import NvidiaDevices
from tests.gpu.host import all_ready, ask, ended, opened, spec
from tests.gpu.points import alone, tuned
from tests.gpu.rig import Rig
from tests.waiting import spend

NETWORKS = ("resnet50", "mobilenet_v3_large", "vgg19", "transformer")
SHARES = (10, 20, 30, 50, 75, 100)
BATCHES = (1, 4, 16, 64)
EAGER, EAGER_SHARES = "resnet50", (20, 50, 100)
"""The network that is measured without graphs, too, and where."""
MEMORY_PARTS = 0.95
RESERVE_S = 30.0


def surface(rig: Rig) -> None:
    """Every network at every share and batch, alone, and one of them launched kernel by kernel."""
    with opened(rig) as host:
        for network, captured in ((EAGER, False), *((each, True) for each in NETWORKS)):
            if rig.networks and network not in rig.networks:
                continue
            if rig.left_s() < RESERVE_S:
                rig.note(network, "not reached")
                return
            _network(rig, host, network, captured=captured)


def _network(rig: Rig, host: NvidiaDevices, network: str, *, captured: bool) -> None:
    idle_w = _idle_w(rig)
    part_mib = int(rig.device.memory_mib * MEMORY_PARTS / len(SHARES))
    shares = SHARES if captured else EAGER_SHARES
    began_s = time.monotonic()
    workers = all_ready(
        rig,
        host,
        [
            spec(rig, f"{network}-{share}", network, share=share, memory_mib=part_mib, captured=captured)
            for share in shares
        ],
    )
    name = f"{network}, {'graphs' if captured else 'kernel by kernel'}"
    rig.note(f"{name}: {len(workers)} workers ready after", time.monotonic() - began_s, "s")
    for worker, batch in itertools.product(workers, BATCHES):
        taken = tuned(rig, host, worker, batch)
        point = alone(rig, worker)
        row = {"network": network, "captured": int(captured), "share_pct": worker.spec.share_pct_sm}
        row |= {"sm_count": worker.sm_count, "batch": batch} | point.row()
        row |= {"idle_power_w": round(idle_w, 1)} | _memory(rig, worker)
        rig.tables.setdefault("surface", []).append(row)
        if not taken:
            rig.check(f"{worker.worker} takes batch {batch}", fine=False)
    for share in (shares[0], shares[-1]):
        of_share = [row for row in rig.tables["surface"] if row["network"] == network and row["share_pct"] == share]
        told = ", ".join(f"{row['batch']}: {row['latency_ms_mean']}" for row in of_share[-len(BATCHES) :])
        rig.note(f"{name} at {share} %, ms by batch", told)
    for worker in workers:
        ended(rig, host, worker)


def _idle_w(rig: Rig) -> float:
    spend(1.0)
    return rig.boards.reading(rig.uuid).power_w or 0.0


def _memory(rig: Rig, worker: WorkerReading) -> dict[str, object]:
    """What the worker holds: by its own limit, since drivers list clients of MPS without memory, and by PyTorch."""
    facts = ask(worker, "/facts")
    return {"memory_mib": worker.spec.memory_mib_limit - facts["free_mib"], "torch_mib": facts["reserved_mib"]}
