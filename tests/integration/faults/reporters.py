"""Nodes that only report: they join, then send numbered reports as fast as they are told to, each until it is
acknowledged.

Owns what an agent owes to the control plane: unacknowledged reports are sent again, in order, never changed. Every
number in a report is made from its sequence, so that a reader can tell whether it arrived whole.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx

from agents.transport import HttpAnswer
from agents.wire import DeviceInventory, DeviceReport, Join, ReplicaReport, Report, encode
from tests.integration.faults.fleet import CLOCK_MHZ, MEMORY_MIB, MODEL, PROJECT, SM_COUNT
from tests.waiting import spend

DEVICES_PER_NODE = 2
REPLICAS_PER_NODE = 3
BATCH_MAX = 4


def join_message(node: str, boot_id: str) -> Join:
    """What a node with two T4s says first."""
    return Join(
        node=node,
        boot_id=boot_id,
        agent_version="0.1.0",
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
                memory_mib=MEMORY_MIB,
                sm_count=SM_COUNT,
                clocks_mhz_sm=(300, CLOCK_MHZ),
                power_limit_w_min=60.0,
                power_limit_w_max=70.0,
            )
            for index in range(DEVICES_PER_NODE)
        ),
    )


def report(node: str, boot_id: str, sequence: int, observed_at_s: float) -> Report:
    """A report whose every row carries its sequence in `energy_j`."""
    return Report(
        node=node,
        boot_id=boot_id,
        sequence=sequence,
        observed_at_s=observed_at_s,
        interval_s=0.05,
        generation_applied=0,
        devices=tuple(
            DeviceReport(
                uuid=f"GPU-{node}-{index}",
                power_w=30.0,
                energy_j=float(sequence),
                utilisation_pct=50.0,
                memory_mib_used=4000.0,
                clock_mhz_sm=CLOCK_MHZ,
                share_pct_sm_total=60,
            )
            for index in range(DEVICES_PER_NODE)
        ),
        replicas=tuple(
            ReplicaReport(
                replica=f"vision/labels#{index}",
                kind="service",
                workload="vision/labels",
                project=PROJECT,
                model=MODEL,
                uuid=f"GPU-{node}-{index % DEVICES_PER_NODE}",
                state="ready",
                share_pct_sm=30,
                sm_count=12,
                memory_mib_limit=2000,
                memory_mib_used=1900.0,
                batch=4,
                held_s=0.05,
                arrived=float(sequence),
                completed=float(sequence),
                violated=0.0,
                dropped=0.0,
                queue_length=0.0,
                batch_mean=2.0,
                energy_j=float(sequence),
            )
            for index in range(REPLICAS_PER_NODE)
        ),
    )


class Reporter:
    """One node's reports; `pause_s`: between one that is acknowledged and the next, where others want to be heard."""

    def __init__(self, address: str, node: str, join_token: str, stream: random.Random, pause_s: float = 0.0) -> None:
        self.node = node
        self._pause_s = pause_s
        self.boot_id = f"boot-{node}-1"
        self.sequence = 0
        self.acknowledged: list[tuple[str, int]] = []
        self.refused: list[str] = []
        self.resent = 0
        self.repeats = 0
        self._stream = stream
        self._waiting: list[Report] = []
        self._http = httpx.Client(base_url=address, timeout=10.0)
        self._token = self._join(join_token)

    def _join(self, join_token: str) -> str:
        answer = self._post("/v1/agent/join", encode(join_message(self.node, self.boot_id)), join_token)
        assert answer.status_code in (200, 201), answer.text
        token: str = answer.json()["token"]
        return token

    def run(self, ending: threading.Event) -> None:
        """Send until told to end and everything that was made is acknowledged."""
        while not ending.is_set() or self._waiting:
            if not ending.is_set():
                self._make()
            if self._send():
                spend(self._pause_s)
            else:
                self.resent += 1
                spend(0.02)  # as an agent does before it asks again

    def _make(self) -> None:
        if len(self._waiting) < 200:
            self.sequence += 1
            self._waiting.append(report(self.node, self.boot_id, self.sequence, time.time()))

    def _send(self) -> bool:
        batch = self._waiting[: self._stream.randint(1, BATCH_MAX)]
        body: Any = [encode(each) for each in batch] if len(batch) > 1 else encode(batch[0])
        try:
            answer = self._post("/v1/agent/reports", body, self._token)
        except httpx.TransportError:
            return False
        told = HttpAnswer(answer.status_code, dict(answer.headers), answer.content)
        if told.later:
            spend(told.after_s or 0.0)
            return False
        del self._waiting[: len(batch)]
        if answer.is_success:
            self.acknowledged += [(each.boot_id, each.sequence) for each in batch]
            self.repeats += answer.json()["duplicates"]
        else:
            self.refused.append(f"{answer.status_code} {answer.text}")
        return True

    def _post(self, path: str, body: Any, token: str) -> httpx.Response:
        return self._http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()
