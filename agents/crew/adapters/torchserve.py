"""TorchServe.

Owns its counters and the new registration with which a model gets another batch size: for a moment it is not registered
at all and requests are refused, so workloads that cannot bear that say `restart`. It tells neither what waits nor
percentiles. Its management listens one port above the worker's own, or on the same where metrics are there too.
"""

from __future__ import annotations

from agents.crew.adapters.base import RELOAD, RELOAD_S, ServerAdapter, Talk
from agents.crew.prometheus import SeriesPage
from agents.crew.tally import Totals
from agents.devices.base import WorkerSpec
from agents.errors import WorkerError

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:~")


def totals(page: SeriesPage) -> Totals:
    """TorchServe's counters. Latencies are cumulative, over requests."""
    completed = page.total(("Requests2XX", "ts_inference_requests_total"))
    refused, broken = page.total(("Requests4XX",)), page.total(("Requests5XX",))
    whole_us = page.total(("ts_inference_latency_microseconds",))
    queued_us = page.total(("ts_queue_latency_microseconds",))
    failed = None if refused is None and broken is None else (refused or 0.0) + (broken or 0.0)
    return Totals(
        completed=completed,
        failed=failed,
        execution_s=None if whole_us is None or queued_us is None else 1e-6 * max(0.0, whole_us - queued_us),
        execution_weight=page.total(("ts_inference_requests_total",)),
    )


def retune(talk: Talk, spec: WorkerSpec) -> None:
    """Take the model's registration back and register it anew, with as many of its workers as it had."""
    path = f"/models/{spec.model}"
    held = _registration(talk, path)
    least = held.get("minWorkers")
    workers = max(1, least) if isinstance(least, int) else 1
    query = f"url={_quoted(str(held['modelUrl']))}&model_name={_quoted(spec.model)}&batch_size={spec.batch}"
    delay = held.get("maxBatchDelay")
    query += f"&max_batch_delay={delay}" if isinstance(delay, int) else ""
    talk.send("DELETE", path, management=True)
    query += f"&initial_workers={workers}&synchronous=true"
    talk.send("POST", f"/models?{query}", management=True, timeout_s=RELOAD_S)
    if _registration(talk, path).get("batchSize") != spec.batch:
        raise WorkerError(f"{spec.model} was registered anew, and still has another batch size than {spec.batch}")


def _registration(talk: Talk, path: str) -> dict[str, object]:
    told = talk.get(path, management=True)
    found = told[0] if isinstance(told, list) and told else None
    if not isinstance(found, dict) or "modelUrl" not in found:
        raise WorkerError(f"{path}: no registration to change")
    return found


def _quoted(text: str) -> str:
    return "".join(each if each in _SAFE else "".join(f"%{byte:02X}" for byte in each.encode()) for each in text)


TORCHSERVE = ServerAdapter(
    name="torchserve",
    batch_change=RELOAD,
    ready_path="/ping",
    ready_text=b"Healthy",
    metrics_path="/metrics",
    names=("ts_", "Requests"),
    totals=totals,
    retune=retune,
)
