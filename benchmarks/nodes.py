"""Simulated nodes for load: what they join with, what they report, and a lean HTTP/1.1 connection that costs the
machine little.

Owns the shape of the load (devices and replicas per report) and what is read of it, which differs from report to report
as it does on real hosts: counts are whole, times and means have all their digits. Bodies are made once; only node,
sequence and time change.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from functools import cache
from zlib import crc32

from agents.wire import DeviceInventory, DeviceReport, Join, ReplicaReport, Report, encode

DEVICES = 8
REPLICAS_PER_DEVICE = 3
ROWS = DEVICES * (1 + REPLICAS_PER_DEVICE)
"""Device and replica rows in one report; the log row comes on top."""
BODIES = 64
"""So many different reports are made."""
BOOT = "boot-1"
INTERVAL_S = 5.0
GPU_TYPE = {
    "name": "t4",
    "product": "Tesla T4",
    "sm_count": 40,
    "memory_mib": 15360,
    "tdp_w": 70,
    "idle_w": 10,
    "power_limit_w_min": 60,
    "power_limit_w_max": 70,
    "memory_bandwidth_gb_per_s": 320,
    "pcie_bandwidth_gb_per_s": 16,
    "fp32_tflops": 8.1,
    "fp16_tflops": 65,
    "clocks_mhz_sm": [1590],
    "prices": [{"kind": "on_demand", "usd_per_h": 0.526}],
}


def join_of(node: str) -> Join:
    """The first message of a node."""
    return Join(
        node=node,
        boot_id=BOOT,
        agent_version="benchmark",
        protocol_version=1,
        rack="rack-0",
        failure_domain="zone-0",
        region="default",
        endpoint=None,
        devices=tuple(
            DeviceInventory(
                uuid=f"GPU-{node}-{index}",
                gpu_type="t4",
                product="Tesla T4",
                index=index,
                memory_mib=15360,
                sm_count=40,
                clocks_mhz_sm=(1590,),
                power_limit_w_min=60.0,
                power_limit_w_max=70.0,
            )
            for index in range(DEVICES)
        ),
    )


def report_of(node: str, sequence: int, observed_at_s: float) -> Report:
    """One report of a busy node."""
    draws = random.Random(sequence)
    uuids = [f"GPU-{node}-{index}" for index in range(DEVICES)]
    return Report(
        node=node,
        boot_id=BOOT,
        sequence=sequence,
        observed_at_s=observed_at_s,
        interval_s=INTERVAL_S,
        generation_applied=0,
        devices=tuple(_device(uuid, draws) for uuid in uuids),
        replicas=tuple(_replica(uuid, slot, draws) for uuid in uuids for slot in range(REPLICAS_PER_DEVICE)),
    )


def _device(uuid: str, draws: random.Random) -> DeviceReport:
    power_w = draws.uniform(55.0, 68.0)
    return DeviceReport(
        uuid=uuid,
        power_w=round(power_w, 3),
        energy_j=power_w * INTERVAL_S * draws.uniform(0.98, 1.02),
        utilisation_pct=float(draws.randrange(60, 90)),
        memory_mib_used=9216.0 + draws.randrange(-900, 900) / 16,
        clock_mhz_sm=draws.choice((1530, 1575, 1590)),
        temperature_c=float(draws.randrange(50, 60)),
        share_pct_sm_total=30 * REPLICAS_PER_DEVICE,
    )


def _replica(uuid: str, slot: int, draws: random.Random) -> ReplicaReport:
    completed, executions, latency_ms = draws.randrange(390, 430), draws.randrange(60, 64), draws.uniform(28.0, 35.0)
    return ReplicaReport(
        replica=f"default/service-{slot}#{uuid}",
        kind="service",
        workload=f"default/service-{slot}",
        project="default",
        model="resnet50",
        uuid=uuid,
        state="ready",
        share_pct_sm=30,
        sm_count=12,
        memory_mib_limit=3072,
        memory_mib_used=2710.0 + draws.randrange(-300, 300) / 16,
        batch=8,
        held_s=INTERVAL_S + draws.uniform(-0.003, 0.003),
        arrived=float(completed + draws.randrange(-2, 3)),
        completed=float(completed),
        violated=float(draws.choice((0, 0, 0, 1, 2))),
        dropped=0.0,
        queue_length=float(draws.randrange(0, 6)),
        batch_mean=completed / executions,
        latency_ms_p50=latency_ms,
        latency_ms_p95=latency_ms * draws.uniform(1.3, 1.5),
        latency_ms_p99=latency_ms * draws.uniform(1.7, 2.0),
        energy_j=draws.uniform(80.0, 100.0),
        executions=float(executions),
        execution_ms_mean=draws.uniform(18.0, 22.0),
    )


@cache
def _parts(number: int) -> tuple[bytes, bytes, bytes]:
    """One of the reports as bytes: what stands around sequence and time."""
    plain = encode(report_of("@node", number, 0.0))
    plain["sequence"], plain["observed_at_s"] = "@sequence", "@observed"
    text = json.dumps(plain, separators=(",", ":"))
    head, rest = text.split('"@sequence"')
    middle, tail = rest.split('"@observed"')
    return head.encode(), middle.encode(), tail.encode()


class Body:
    """Reports of a node as bytes, in which only node, sequence and time are written anew."""

    def __init__(self, node: str) -> None:
        self._node = node.encode()
        self._first = crc32(self._node)

    def at(self, sequence: int, observed_at_s: float) -> bytes:
        """The body of one report."""
        head, middle, tail = _parts((self._first + sequence) % BODIES)
        return (b"%b%d%b%.3f%b" % (head, sequence, middle, observed_at_s, tail)).replace(b"@node", self._node)


@dataclass(slots=True)
class Connection:
    """A kept-alive connection to the API with one token."""

    port: int
    token: str
    retry_after_s: float = 0.0
    """As the last answer told it; 0: it did not."""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a body; status and answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        self.writer.write(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % (path.encode(), self.token.encode(), len(body))
        )
        self.writer.write(body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length, self.retry_after_s = 0, 0.0
        for line in head.split(b"\r\n")[1:]:
            name, _, text = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(text)
            elif name.lower() == b"retry-after":
                self.retry_after_s = float(text)
        answer = await self.reader.readexactly(length) if length else b""
        return int(head.split(b" ", 2)[1]), answer

    def close(self) -> None:
        """Hang up."""
        if self.writer is not None:
            self.writer.close()
