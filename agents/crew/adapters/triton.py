"""NVIDIA Triton Inference Server.

Owns its counters and the reload of a model with another batch size, which needs the server's explicit model control
and, while both copies are there, memory for two. Requests and inferences are different counts: a request may carry a
batch of its own, so batches are measured in inferences and everything else in requests. Times of execution are summed
over requests. It tells percentiles only with summaries switched on, and what waits but not what executes, so its drain
is ended by the server itself, which finishes what it has after SIGTERM (`--exit-timeout-secs`).
"""

from __future__ import annotations

import json
import math

from agents.crew.adapters.base import RELOAD, RELOAD_S, ServerAdapter, Talk
from agents.crew.prometheus import SeriesPage
from agents.crew.tally import Totals
from agents.devices.base import WorkerSpec
from agents.errors import WorkerError

_EXECUTION_US = (
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
)
_SUMMARY = "nv_inference_request_summary_us"


def totals(page: SeriesPage) -> Totals:
    """Triton's counters."""
    completed = page.total(("nv_inference_request_success",))
    spent_us = [found for name in _EXECUTION_US if (found := page.total((name,))) is not None]
    return Totals(
        completed=completed,
        failed=page.total(("nv_inference_request_failure",)),
        queue=page.total(("nv_inference_pending_request_count",)),
        executions=page.total(("nv_inference_exec_count",)),
        batched=page.total(("nv_inference_count",)),
        execution_s=1e-6 * math.fsum(spent_us) if spent_us else None,
        execution_weight=completed,
        latency=page.histogram(("nv_inference_first_response_histogram_ms",)),
        percentiles_ms=(_quantile_ms(page, 0.5), _quantile_ms(page, 0.95), _quantile_ms(page, 0.99)),
    )


def _quantile_ms(page: SeriesPage, level: float) -> float | None:
    found = [each.value for each in page.series.get(_SUMMARY, ()) if each.labels.get("quantile") == f"{level:g}"]
    return max(found) / 1000.0 if found else None


def retune(talk: Talk, spec: WorkerSpec) -> None:
    """Load the model anew with another largest batch, everything else as it is."""
    config = talk.get(f"/v2/models/{spec.model}/config")
    if not isinstance(config, dict):
        raise WorkerError(f"{spec.model}: no configuration to change")
    batching = config.get("dynamic_batching")
    if isinstance(batching, dict) and "preferred_batch_size" in batching:
        preferred = [size for size in batching["preferred_batch_size"] if size <= spec.batch]
        config["dynamic_batching"] = {**batching, "preferred_batch_size": preferred or [spec.batch]}
    config["max_batch_size"] = spec.batch
    content = {"parameters": {"config": json.dumps(config)}}
    talk.send("POST", f"/v2/repository/models/{spec.model}/load", content, timeout_s=RELOAD_S)
    held = talk.get(f"/v2/models/{spec.model}/config")
    if not isinstance(held, dict) or held.get("max_batch_size") != spec.batch:
        raise WorkerError(f"{spec.model} was loaded anew, and still has another largest batch than {spec.batch}")


TRITON = ServerAdapter(
    name="triton",
    batch_change=RELOAD,
    ready_path="/v2/health/ready",
    metrics_path="/metrics",
    names=("nv_inference_",),
    totals=totals,
    model_label="model",
    retune=retune,
)
