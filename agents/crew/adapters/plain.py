"""Workers that speak HTTP the way Headroom asks for it, or nothing at all.

Owns Headroom's own form of metrics and requests. Everything in it is optional; what a worker leaves out is not known.
`headroom_requests_total` counts answered requests, `headroom_requests_failed_total` those given up,
`headroom_requests_violated_total` the answered ones that were late, `headroom_requests_pending` those accepted and not
answered, `headroom_batches_total` and `headroom_batch_execution_seconds_total` batches and the time they took,
`headroom_request_latency_seconds` is a histogram of whole latencies, `headroom_iterations_total` what a job or task has
done. `POST /headroom/batch` takes `{"batch": n, "latency_ms_limit": x}` and may answer `{"batch": n}`;
`POST /headroom/drain` asks to finish.
"""

from __future__ import annotations

from agents.crew.adapters.base import LIVE, ServerAdapter, Talk
from agents.crew.prometheus import SeriesPage
from agents.crew.tally import Totals
from agents.devices.base import WorkerSpec
from agents.errors import WorkerError

BATCH_PATH, DRAIN_PATH = "/headroom/batch", "/headroom/drain"


def totals(page: SeriesPage) -> Totals:
    """Headroom's own form."""
    latency = page.histogram(("headroom_request_latency_seconds",))
    completed = page.total(("headroom_requests_total",))
    batches = page.total(("headroom_batches_total",))
    return Totals(
        completed=completed,
        failed=page.total(("headroom_requests_failed_total",)),
        violated=page.total(("headroom_requests_violated_total",)),
        queue=page.total(("headroom_requests_pending",)),
        executions=batches,
        batched=completed,
        execution_s=page.total(("headroom_batch_execution_seconds_total",)),
        execution_weight=batches,
        latency=None if latency is None else latency.scaled(1000.0),
        iterations=page.total(("headroom_iterations_total",)),
    )


def retune(talk: Talk, spec: WorkerSpec) -> None:
    """Tell batch size and latency limit."""
    told = talk.send("POST", BATCH_PATH, {"batch": spec.batch, "latency_ms_limit": spec.latency_ms_limit})
    if isinstance(told, dict) and told.get("batch", spec.batch) != spec.batch:
        raise WorkerError(f"told to take batches of {spec.batch}, it takes {told['batch']}")


PLAIN = ServerAdapter(
    name="http",
    batch_change=LIVE,
    ready_path="/health",
    metrics_path="/metrics",
    names=("headroom_",),
    totals=totals,
    drain_path=DRAIN_PATH,
    retune=retune,
)
