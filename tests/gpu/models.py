"""The step about the profiler: what it measures of networks, and by clocks. Needs PyTorch."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agents.devices.base import WorkerReading, WorkerSpec
from agents.devices.nvidia.host import NvidiaDevices
from agents.profiling.loads import ClientLoad
from agents.profiling.session import ProfilingBench, measure
from agents.wire import WarmUpTarget
from tests.gpu.host import BATCHES_A_REQUEST, opened, spec
from tests.gpu.rig import Rig
from tests.waiting import spend

NETWORKS = ("resnet50", "mobilenet_v3_large", "transformer")
RESERVE_S = 60.0
"""What a point that never settles takes."""


def grid(rig: Rig) -> None:
    """Latency of a batch as the profiler measures it: the middle of `surface`, and there by clocks."""
    clocks = rig.device.clocks_mhz_sm
    points: list[int | None] = [None]
    if not rig.refusal("set_clock"):
        points += [clocks[len(clocks) // 2], clocks[len(clocks) * 3 // 4]]
    with opened(rig) as host:
        for clock in points:
            for network in NETWORKS:
                if rig.left_s() > RESERVE_S:
                    _measured(rig, host, [spec(rig, network, network, share=50, batch=16)], clock)


def _measured(rig: Rig, host: NvidiaDevices, specs: Sequence[WorkerSpec], clock: int | None) -> None:
    bench = ProfilingBench(
        devices=host, uuid=rig.uuid, now_s=time.monotonic, wait_s=spend, samples=host.collect, begin=_begin
    )
    began_s = time.monotonic()
    for item in measure(bench, specs, clock):
        at = f"{item.model} batch {item.point.batch} at {item.point.share_pct_sm} %"
        at += f" {clock} MHz" if clock else ""
        note = f"± {item.half_width_pct or 0.0:.1f} %, {item.sm_count} SMs, {item.clock_mhz_sm} MHz, "
        note += f"{item.power_w or 0.0:.0f} W, {item.memory_mib or 0.0:.0f} MiB, {time.monotonic() - began_s:.0f} s"
        if item.problem or item.latency_ms_mean is None:
            rig.check(at, fine=False, value=item.problem or "no latency")
        else:
            rig.note(at, item.latency_ms_mean, "ms", note=note)


def _begin(worker: WorkerReading, concurrency: int) -> ClientLoad:
    path = f"/execute?batches={BATCHES_A_REQUEST}"
    request = WarmUpTarget(path=path, body="", content_type="", requests=1, timeout_s=60.0)
    return ClientLoad(worker.endpoint or "", request, 2)
