"""The steps about neighbours: `beside.csv`, pairs by share and batch, and `crowd.csv`, three at once.

Owns the columns of both. All workers stay up as clients of one daemon; whoever is not measured waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from agents.devices.base import WorkerReading
from agents.devices.nvidia.host import NvidiaDevices
from tests.gpu.host import all_ready, opened, spec
from tests.gpu.points import Point, alone, together, tuned
from tests.gpu.rig import Rig

TRAINING = "train:"
NETWORKS = ("resnet50", "mobilenet_v3_large", "transformer", "train:resnet50")
SPLITS = (30, 50, 70)
BATCHES = (16, 4, 1)
"""Of whoever serves; who trains keeps the first."""
MIXED = 16
"""The batch of one beside others that have the last of them."""
THIRD_PCT, HALF_PCT = 30, 50
MEMORY_PARTS = 0.95
RESERVE_S = 30.0


def beside(rig: Rig) -> None:
    """Workers with half of the device, or a little less or more, alone and beside each other, by batch."""
    part_mib = int(rig.device.memory_mib * MEMORY_PARTS / (len(NETWORKS) * len(SPLITS)))
    with opened(rig) as host:
        wanted = [
            spec(rig, f"{network.replace(':', '-')}-{share}", network, share=share, batch=BATCHES[0],
                 memory_mib=part_mib, captured=not network.startswith(TRAINING))
            for network, share in itertools.product(NETWORKS, SPLITS)
        ]  # fmt: skip
        workers = all_ready(rig, host, wanted)
        for batch in BATCHES:
            workers = [_with_batch(rig, host, worker, batch) for worker in workers]
            for worker in workers:
                if batch == BATCHES[0] or not _trains(worker):
                    _keep(rig, worker, None, alone(rig, worker))
            if not _measured(rig, _pairs(workers)) or not _crowded(rig, workers):
                return
        for place, worker in enumerate(workers):
            if _trains(worker) or worker.spec.share_pct_sm != HALF_PCT:
                continue
            fuller = _with_batch(rig, host, worker, MIXED)
            others = [each for each in workers[:place] + workers[place + 1 :] if not _trains(each)]
            if not _measured(rig, ((fuller, other) for other in others if _fills(fuller, other))):
                return
            _with_batch(rig, host, worker, BATCHES[-1])


def _trains(worker: WorkerReading) -> bool:
    return worker.spec.model.startswith(TRAINING)


def _with_batch(rig: Rig, host: NvidiaDevices, worker: WorkerReading, batch: int) -> WorkerReading:
    if _trains(worker):
        return worker
    if not tuned(rig, host, worker, batch):
        rig.check(f"{worker.worker} takes batch {batch}", fine=False)
    return next(each for each in host.workers() if each.worker == worker.worker)


def _fills(one: WorkerReading, other: WorkerReading) -> bool:
    return one.spec.share_pct_sm + other.spec.share_pct_sm == 100


def _pairs(workers: Sequence[WorkerReading]) -> Iterator[tuple[WorkerReading, WorkerReading]]:
    """Pairs that share the device between them, at least one of which serves."""
    for one, other in itertools.combinations(workers, 2):
        if _fills(one, other) and not (_trains(one) and _trains(other)):
            yield one, other


def _measured(rig: Rig, pairs: Iterator[tuple[WorkerReading, WorkerReading]]) -> bool:
    """Whether time was left for all of them."""
    for one, other in pairs:
        if rig.left_s() < RESERVE_S:
            rig.note("pairs", "not all reached")
            return False
        first, second = together(rig, (one, other))
        _keep(rig, one, other, first)
        _keep(rig, other, one, second)
    return True


def _crowded(rig: Rig, workers: Sequence[WorkerReading]) -> bool:
    """Three different networks with a third each; whether time was left for all of them."""
    thirds = [worker for worker in workers if worker.spec.share_pct_sm == THIRD_PCT]
    for group in itertools.combinations(thirds, 3):
        if rig.left_s() < RESERVE_S:
            rig.note("crowds", "not all reached")
            return False
        rows = rig.tables.setdefault("crowd", [])
        number = len(rows) // len(group)
        for worker, point in zip(group, together(rig, group), strict=True):
            rows.append({"group": number} | _named(worker) | point.row())
    return True


def _named(worker: WorkerReading) -> dict[str, object]:
    held = worker.spec
    return {
        "network": held.model,
        "share_pct": held.share_pct_sm,
        "sm_count": worker.sm_count,
        "batch": held.batch,
    }


def _keep(rig: Rig, worker: WorkerReading, other: WorkerReading | None, point: Point) -> None:
    rows = rig.tables.setdefault("beside", [])
    there = other.spec if other else None
    row = _named(worker) | {
        "beside": there.model if there else "",
        "beside_share_pct": there.share_pct_sm if there else "",
        "beside_batch": there.batch if there else "",
    }
    rows.append(row | point.row())
    if there is None or worker.spec.share_pct_sm != HALF_PCT:
        return
    (before,) = (each for each in rows if not each["beside"] and _same(each, row))
    slower = float(str(rows[-1]["latency_ms_p50"])) / float(str(before["latency_ms_p50"]))
    told = f"{worker.spec.model} × {worker.spec.batch} beside {there.model} × {there.batch}, half each"
    rig.note(told, slower, "times as long")


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(one[name] == other[name] for name in ("network", "share_pct", "batch"))
