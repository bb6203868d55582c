"""Steps that fill tables: a batch's time over network, share and batch, and what two workers do to each other.

Owns the columns of `surface.csv` and `beside.csv`. All workers of a network are clients of one daemon at a time, each
with its share; one works while the others wait, so that a point costs a second and no start of a process.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agents.devices.base import WorkerReading
from agents.devices.nvidia.host import NvidiaDevices
from agents.errors import BusyError
from tests.gpu.host import all_ready, ask, ended, opened, spec
from tests.gpu.rig import Rig
from tests.waiting import spend

NETWORKS = ("resnet50", "mobilenet_v3_large", "vgg19", "transformer")
SHARES = (10, 20, 30, 50, 75, 100)
BATCHES = (1, 4, 16, 64)
EAGER, EAGER_SHARES = "resnet50", (20, 50, 100)
"""The network that is measured without graphs, too, and where."""
BESIDE = ("resnet50", "mobilenet_v3_large", "transformer", "train:resnet50")
SPLITS = (30, 50, 70)
BESIDE_BATCH = 16
PAIR_POINTS = 1.5
"""A pair is measured so much longer than a point."""
MEMORY_PARTS = 0.95
RESERVE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Point:
    """What a stretch of batches showed."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    count: int
    power_w: float | None
    clock_mhz: int
    throttle: str

    def row(self) -> dict[str, object]:
        return {
            "latency_ms_mean": round(self.mean_ms, 4),
            "latency_ms_p50": round(self.p50_ms, 4),
            "latency_ms_p99": round(self.p99_ms, 4),
            "batches": self.count,
            "power_w": "" if self.power_w is None else round(self.power_w, 1),
            "clock_mhz": self.clock_mhz,
            "throttle": self.throttle,
        }


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
        tuned = _tuned(rig, host, worker, batch)
        point = _alone(rig, worker)
        row = {"network": network, "captured": int(captured), "share_pct": worker.spec.share_pct_sm}
        row |= {"sm_count": worker.sm_count, "batch": batch} | point.row()
        row |= {"idle_power_w": round(idle_w, 1)} | _memory(rig, worker)
        rig.tables.setdefault("surface", []).append(row)
        if not tuned:
            rig.check(f"{worker.worker} takes batch {batch}", fine=False)
    for share in (shares[0], shares[-1]):
        of_share = [row for row in rig.tables["surface"] if row["network"] == network and row["share_pct"] == share]
        told = ", ".join(f"{row['batch']}: {row['latency_ms_mean']}" for row in of_share[-len(BATCHES) :])
        rig.note(f"{name} at {share} %, ms by batch", told)
    for worker in workers:
        ended(rig, host, worker)


def beside(rig: Rig) -> None:
    """Workers with half of the device, or a little less or more, alone and beside each other."""
    part_mib = int(rig.device.memory_mib * MEMORY_PARTS / (len(BESIDE) * len(SPLITS)))
    with opened(rig) as host:
        wanted = [
            spec(rig, f"{network.replace(':', '-')}-{share}", network, share=share, batch=BESIDE_BATCH,
                 memory_mib=part_mib, captured=not network.startswith("train:"))
            for network, share in itertools.product(BESIDE, SPLITS)
        ]  # fmt: skip
        workers = all_ready(rig, host, wanted)
        for worker in workers:
            _keep(rig, worker, None, _alone(rig, worker))
        for one, other in itertools.combinations(workers, 2):
            if one.spec.share_pct_sm + other.spec.share_pct_sm != 100:
                continue
            if rig.left_s() < RESERVE_S:
                rig.note("pairs", "not all reached")
                return
            first, second = _together(rig, (one, other))
            _keep(rig, one, other, first)
            _keep(rig, other, one, second)
    rows = rig.tables["beside"]
    alone = {(row["network"], row["share_pct"]): row["latency_ms_mean"] for row in rows if not row["beside"]}
    for row in rows:
        if row["beside"] and row["share_pct"] == 50:
            slower = float(str(row["latency_ms_mean"])) / float(str(alone[row["network"], 50]))
            rig.note(f"{row['network']} beside {row['beside']}, half each", slower, "times as long")


def _keep(rig: Rig, worker: WorkerReading, other: WorkerReading | None, point: _Point) -> None:
    row: dict[str, object] = {"network": worker.spec.model, "share_pct": worker.spec.share_pct_sm}
    row |= {"sm_count": worker.sm_count, "batch": worker.spec.batch}
    row |= {"beside": other.spec.model if other else "", "beside_share_pct": other.spec.share_pct_sm if other else ""}
    rig.tables.setdefault("beside", []).append(row | point.row())


def _tuned(rig: Rig, host: NvidiaDevices, worker: WorkerReading, batch: int) -> bool:
    """Whether a worker took a batch size, by the agent's own verb."""

    def taken() -> bool:
        try:
            now = next(each for each in host.workers() if each.worker == worker.worker)
            host.tune(worker.worker, now.spec.tuned_as(spec(rig, "any", now.spec.model, share=1, batch=batch)))
        except BusyError:
            return False
        return True

    return rig.until(taken, 30.0) is not None


def _alone(rig: Rig, worker: WorkerReading) -> _Point:
    """One worker works for a while, and everybody else waits."""
    ask(worker, "/execute?batches=3")
    once_s = statistics.median(ask(worker, "/execute?batches=3")["seconds"])
    count = max(5, min(2000, round(rig.point_s / once_s)))
    before, began_s = rig.boards.reading(rig.uuid), time.monotonic()
    seconds = ask(worker, f"/execute?batches={count}")["seconds"]
    after, took_s = rig.boards.reading(rig.uuid), time.monotonic() - began_s
    power_w = None
    if before.energy_j_total is not None and after.energy_j_total is not None:
        power_w = (after.energy_j_total - before.energy_j_total) / took_s
    return _point(seconds, power_w, after.clock_mhz_sm, after.throttle)


def _together(rig: Rig, workers: Sequence[WorkerReading]) -> list[_Point]:
    """All work at once; of each what it did while the others worked, too."""
    seen: dict[str, list[tuple[float, list[float]]]] = {worker.worker: [] for worker in workers}
    pair_s = PAIR_POINTS * rig.point_s
    until_s = time.monotonic() + pair_s

    def work(worker: WorkerReading) -> None:
        once_s = statistics.median(ask(worker, "/execute?batches=3")["seconds"])
        count = max(2, round(pair_s / 6.0 / once_s))
        mine = seen[worker.worker]
        while not mine or time.monotonic() < until_s:
            seconds = ask(worker, f"/execute?batches={count}")["seconds"]
            mine.append((time.monotonic(), seconds))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    before, began_s = rig.boards.reading(rig.uuid), time.monotonic()
    for thread in threads:
        thread.start()
    spend(0.8 * pair_s)
    after, took_s = rig.boards.reading(rig.uuid), time.monotonic() - began_s
    for thread in threads:
        thread.join()
    over_s = min(rounds[-1][0] for rounds in seen.values())
    power_w = None
    if before.energy_j_total is not None and after.energy_j_total is not None:
        power_w = (after.energy_j_total - before.energy_j_total) / took_s
    found = []
    for worker in workers:
        rounds = seen[worker.worker]
        shared = [round_ for round_ in rounds if round_[0] <= over_s] or rounds[:1]
        seconds = [second for _, took in shared for second in took]
        found.append(_point(seconds, power_w, after.clock_mhz_sm, after.throttle))
    return found


def _point(seconds: Sequence[float], power_w: float | None, clock_mhz: int, throttle: str) -> _Point:
    ordered = sorted(1000.0 * second for second in seconds)
    return _Point(
        mean_ms=statistics.fmean(ordered),
        p50_ms=statistics.median(ordered),
        p99_ms=ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))],
        count=len(ordered),
        power_w=power_w,
        clock_mhz=clock_mhz,
        throttle=throttle,
    )


def _idle_w(rig: Rig) -> float:
    spend(1.0)
    return rig.boards.reading(rig.uuid).power_w or 0.0


def _memory(rig: Rig, worker: WorkerReading) -> dict[str, object]:
    """What the worker holds: by its own limit, since drivers list clients of MPS without memory, and by PyTorch."""
    facts = ask(worker, "/facts")
    return {"memory_mib": worker.spec.memory_mib_limit - facts["free_mib"], "torch_mib": facts["reserved_mib"]}
