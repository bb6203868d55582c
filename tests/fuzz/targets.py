"""What is read here from others: how it looks when it is well, who reads it, and which errors are answers.

Anything else that a reader raises is a defect: an API would answer 500, an agent would stop.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agents.crew.metrics import read_page
from agents.crew.web import AnswerReader
from agents.devices.nvml.boards import parse_selection
from agents.errors import AgentError
from agents.helper.protocol import decode_answer, decode_request
from agents.mps.daemon import speaks_3
from agents.mps.protocols import memory_mib_in, number_in, pids_in, shortened
from agents.wire import NodeReceipt, NodeTarget, WireError, decode, encode
from app.api.body import parse
from app.api.messages import JOIN, RECEIPT, decode_edge_reports, decode_reports
from app.client.documents import read_documents
from app.services.profiles.profiles import read_csv
from app.store.pages import decode_cursor, encode_cursor
from solvers.domain.codec import from_plain, to_plain
from solvers.domain.ids import PolicyName
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service
from solvers.errors import HeadroomError
from tests import builders
from tests.integration.api.world import join_message
from tests.integration.store import samples
from tests.integration.store.plans import plan

SOLO = b"""model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms,memory_mib,power_w
resnet50,t4,1,100,1590,2.1,1100,60.5
resnet50,t4,8,50,,9.25,1300,
"""
PAIRS = b"""model_a,model_b,gpu_type,batch_a,batch_b,share_pct_a,share_pct_b,latency_ms_a,latency_ms_b
resnet50,bert,t4,8,4,50,50,12.5,31.05
"""
DOCUMENTS = b"""kind: service
project: demo
name: vision
model: resnet50
slo: {latency_ms: 60, percentile: 99}
rate_rps_declared: 100
---
- kind: project
  name: &name demo
- kind: model
  name: *name
"""
PROMETHEUS = b"""# TYPE vllm:request_success_total counter
vllm:request_success_total{model_name="m",finished_reason="stop"} 12.0
nv_inference_count{model="resnet\\"50\\\\",version="1"} 4.5e3 1395066363000
nv_inference_queue +Inf
"""
HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: identity\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\n\r\n"
REQUEST = b'{"v":1,"id":7,"verb":"lock_clock","device":"GPU-1","value":1200}\n'
ANSWER = b'{"v":1,"id":7,"ok":false,"code":"busy","message":"later","refusals":{"set_clock":"no"}}\n'
MPS = b"PID ID SERVER DEVICE NAMESPACE COMMAND\n1234 1 4321 GPU-1f 4026531836 /bin/worker\n10.5G 40.0\n"
NUMBER_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader."""

    name: str
    read: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    answers: tuple[type[Exception], ...] = ()
    """Errors that are good answers; empty: it never raises."""


def _json(item: Any) -> bytes:
    return json.dumps(item).encode()


def _wire(kind: type[Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            plain = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return decode(kind, plain)

    return read


def _plain(kind: type[Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            plain = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return from_plain(kind, plain)

    return read


def _csv(data: bytes) -> Any:
    return read_csv(data)({"t4": 1590})


@contextmanager
def _typed(text: str) -> Any:
    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before


def _documents(data: bytes) -> Any:
    with _typed(data.decode(errors="surrogateescape")):
        return read_documents(["-"])


def _page(data: bytes) -> Any:
    return read_page(data, ("vllm:", "nv_inference"))


def _http(data: bytes) -> Any:
    return AnswerReader().take(data, ended=False), AnswerReader().take(data, ended=True)


def _mps(data: bytes) -> Any:
    text = data.decode(errors="replace")
    found = [pids_in(text), shortened(text), speaks_3(text)]
    return [*found, *((number_in(line), memory_mib_in(line)) for line in text.splitlines())]


def _target() -> bytes:
    item = plan().assignments[0]
    replica = {"replica": item.replica, "kind": "service", "workload": "demo/vision", "project": "demo",
               "model": "resnet50", "share_pct_sm": 30, "memory_mib_limit": 2000, "batch": 8, "batch_min": 1,
               "batch_max": 8, "clock_mhz_sm_min": 300, "clock_mhz_sm_max": 1590, "latency_ms_limit": 60.0,
               "launch_s": 1.0}  # fmt: skip
    device = {"uuid": "GPU-a-0", "mode": "mps", "clock_mhz_sm": 1290, "power_limit_w": None, "replicas": [replica]}
    return _json({"node": "a", "generation": 3, "plan": "sha256:0", "devices": [device]})


def _receipt() -> bytes:
    found = NodeReceipt(
        node="a", boot_id="boot-1", generation=1, plan=None, outcome="applied", observed_at_s=1e9, elapsed_ms=1.0,
        devices=(), replicas=(),
    )  # fmt: skip
    return _json(encode(found))


def _report() -> bytes:
    devices = [samples.device_report("GPU-a-0")]
    replicas = [samples.replica_report("demo/vision#0", "GPU-a-0")]
    return _json(encode(samples.report("a", 1, devices=devices, replicas=replicas)))


TARGETS = (
    Target(name="csv", read=_csv, seeds=(SOLO, PAIRS), answers=(HeadroomError,)),
    Target(name="yaml", read=_documents, seeds=(DOCUMENTS,), answers=(HeadroomError,)),
    Target(name="prometheus", read=_page, seeds=(PROMETHEUS,)),
    Target(name="http", read=_http, seeds=(HTTP, CHUNKED)),
    Target(name="mps", read=_mps, seeds=(MPS,)),
    Target(name="selection", read=lambda data: parse_selection(data.decode(errors="replace")),
           seeds=(b"nvml:all", b"nvml:GPU-1,MIG-2"), answers=(AgentError,)),
    Target(name="helper-request", read=decode_request, seeds=(REQUEST,), answers=(AgentError,)),
    Target(name="helper-answer", read=decode_answer, seeds=(ANSWER,), answers=(AgentError,)),
    Target(name="node-target", read=_wire(NodeTarget), seeds=(_target(),), answers=(WireError,)),
    Target(name="report", read=decode_reports, seeds=(_report(),), answers=(HeadroomError,)),
    Target(name="edge-report", read=decode_edge_reports,
           seeds=(_json(encode(samples.edge_report(1, {"demo/vision": 3.0}))),), answers=(HeadroomError,)),
    Target(name="join", read=JOIN.decode, seeds=(_json(encode(join_message())),), answers=(HeadroomError,)),
    Target(name="receipt", read=RECEIPT.decode, seeds=(_receipt(),), answers=(HeadroomError,)),
    Target(name="service", read=lambda data: parse(Service, data), seeds=(_json(to_plain(builders.service())),),
           answers=(HeadroomError,)),
    Target(name="policy", read=lambda data: parse(Policy, data), seeds=(_json(to_plain(Policy(name=PolicyName("p")))),),
           answers=(HeadroomError,)),
    Target(name="snapshot", read=_plain(Snapshot), seeds=(_json(to_plain(builders.lab([builders.service()]))),),
           answers=(HeadroomError, OverflowError, RecursionError)),
    Target(name="cursor", read=lambda data: decode_cursor("plans", data.decode(errors="replace"), (str, int)),
           seeds=(encode_cursor("plans", ("2026-01-01", 7)).encode(),), answers=(HeadroomError,)),
)  # fmt: skip
