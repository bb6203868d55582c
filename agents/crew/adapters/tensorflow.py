"""TensorFlow Serving.

Owns its counters, whose names begin with a colon and whose latencies are in microseconds. Batching is set for the whole
server when it starts. Its metrics must be switched on in its monitoring configuration; it tells neither what waits nor
batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.crew.adapters.base import RESTART, ServerAdapter
from agents.crew.prometheus import SeriesPage
from agents.crew.tally import Totals

_COUNT = (":tensorflow:serving:request_count",)


def totals(page: SeriesPage) -> Totals:
    """TensorFlow Serving's counters."""
    latency = page.histogram((":tensorflow:serving:request_latency",))
    completed = page.total(_COUNT, _went_well)
    failed = page.total(_COUNT, lambda labels: not _went_well(labels))
    return Totals(
        # Where requests are counted at all, none of a kind is 0.
        completed=completed if completed is not None or failed is None else 0.0,
        failed=failed if failed is not None or completed is None else 0.0,
        latency=None if latency is None else latency.scaled(0.001),
    )


def _went_well(labels: Mapping[str, str]) -> bool:
    return labels.get("status", "OK") == "OK"


TENSORFLOW = ServerAdapter(
    name="tensorflow_serving",
    batch_change=RESTART,
    ready_path="/v1/models/{model}",
    ready_text=b"AVAILABLE",
    metrics_path="/monitoring/prometheus/metrics",
    names=(":tensorflow:serving:request_",),
    totals=totals,
    model_label="model_name",
)
