"""Model servers by name: how each says that it is ready, what it counts, how it takes another batch size, how it is
drained, and what a change of a worker's description takes.

The paths of the worker's own description come before those here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from agents.crew.metrics import SeriesPage, Totals
from agents.crew.web import Question, WebAnswer
from agents.devices.base import WorkerSpec
from agents.errors import NotSupportedError, WorkerError
from agents.wire import WorkerTarget

LIVE, RELOAD, RESTART = "live", "reload", "restart"
QUICK_S = 5.0
RELOAD_S = 300.0
"""Loading a model anew takes as long as loading it did."""
_MISSING = (403, 404, 405, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation with one server. Waits for answers: not for the thread that watches all workers."""

    ask: Callable[[Question], WebAnswer]
    host: str
    port: int
    management_port: int

    def get(self, path: str, *, management: bool = False) -> object:
        """As `send`, without telling anything."""
        return self.send("GET", path, management=management)

    def send(
        self, method: str, path: str, content: object = None, *, management: bool = False, timeout_s: float = QUICK_S
    ) -> object:
        """Decoded JSON of an answer. Raises WorkerError, NotSupportedError where there is no such path."""
        question = Question(
            host=self.host,
            port=self.management_port if management else self.port,
            path=path,
            method=method,
            body=b"" if content is None else json.dumps(content).encode(),
            timeout_s=timeout_s,
        )
        answer = self.ask(question)
        if answer.status in _MISSING:
            raise NotSupportedError(f"{method} {path} {answer.told()}: this server cannot do that")
        if not answer.good:
            told = answer.body[:200].decode("utf-8", "replace")
            raise WorkerError(f"{method} {path} {answer.told()} {told}".strip())
        try:
            found: object = json.loads(answer.body) if answer.body.strip() else None
        except (ValueError, RecursionError):
            return None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAdapter:
    """A kind of model server. `{model}` in a path is the model's name."""

    name: str
    batch_change: str
    """The least that another batch size takes: live, reload or restart."""
    ready_path: str
    metrics_path: str
    names: tuple[str, ...]
    """What the names of the series read begin with."""
    totals: Callable[[SeriesPage], Totals]
    model_label: str = ""
    """The label that names the model."""
    ready_text: bytes = b""
    """What a good answer to readiness holds."""
    drain_path: str | None = None
    """Asked by POST to finish; servers without one just stop being asked."""
    retune: Callable[[Talk, WorkerSpec], None] | None = None
    """Hands over the batch size and latency limit, and reads back. Raises WorkerError."""

    def is_ready(self, answer: WebAnswer) -> bool:
        return answer.good and self.ready_text in answer.body


# --- Workers that speak HTTP the way Headroom asks for it, or nothing at all
#
# Everything of this form is optional; what a worker leaves out is not known. `headroom_requests_total` counts answered
# requests, `headroom_requests_failed_total` those given up, `headroom_requests_violated_total` the answered ones that
# were late, `headroom_requests_pending` those accepted and not answered, `headroom_batches_total` and
# `headroom_batch_execution_seconds_total` batches and the time they took, `headroom_request_latency_seconds` is a
# histogram of whole latencies, `headroom_iterations_total` what a job or task has done. `POST /headroom/batch` takes
# `{"batch": n, "latency_ms_limit": x}` and may answer `{"batch": n}`; `POST /headroom/drain` asks to finish.


BATCH_PATH, DRAIN_PATH = "/headroom/batch", "/headroom/drain"


def plain_totals(page: SeriesPage) -> Totals:
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
        latency=page.histogram(("headroom_request_latency_seconds",), scale=1000.0),
        iterations=page.total(("headroom_iterations_total",)),
    )


def retune_plain(talk: Talk, spec: WorkerSpec) -> None:
    told = talk.send("POST", BATCH_PATH, {"batch": spec.batch, "latency_ms_limit": spec.latency_ms_limit})
    if isinstance(told, dict) and told.get("batch", spec.batch) != spec.batch:
        raise WorkerError(f"told to take batches of {spec.batch}, it takes {told['batch']}")


PLAIN = ServerAdapter(
    name="http",
    batch_change=LIVE,
    ready_path="/health",
    metrics_path="/metrics",
    names=("headroom_",),
    totals=plain_totals,
    drain_path=DRAIN_PATH,
    retune=retune_plain,
)


# --- NVIDIA Triton Inference Server
#
# The reload of a model with another batch size needs the server's explicit model control and, while both copies are
# there, memory for two. Requests and inferences are different counts: a request may carry a batch of its own, so
# batches are measured in inferences and everything else in requests. Times of execution are summed over requests. It
# tells percentiles only with summaries switched on, and what waits but not what executes, so its drain is ended by the
# server itself, which finishes what it has after SIGTERM (`--exit-timeout-secs`).


_EXECUTION_US = (
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
)
_SUMMARY = "nv_inference_request_summary_us"


def triton_totals(page: SeriesPage) -> Totals:
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


def retune_triton(talk: Talk, spec: WorkerSpec) -> None:
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
    totals=triton_totals,
    model_label="model",
    retune=retune_triton,
)


# --- vLLM
#
# Its counters have old and new names. Its batch is whatever runs at a moment and changes with every step, so an
# execution is a step, its time the time between tokens. Nothing of it changes without a new process. SIGTERM aborts
# what it has unless it was started with `--shutdown-timeout`, which belongs into the workload's command; by then it has
# been drained.


_SUCCESS = ("vllm:request_success_total", "vllm:request_success")
_STEP_S = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_GIVEN_UP = ("abort", "error")


def vllm_totals(page: SeriesPage) -> Totals:
    running = page.total(("vllm:num_requests_running",))
    waiting = page.total(("vllm:num_requests_waiting",))
    return Totals(
        completed=page.total(_SUCCESS, lambda labels: not _given_up(labels)),
        failed=page.total(_SUCCESS, _given_up),
        queue=None if running is None or waiting is None else running + waiting,
        executions=page.total(("vllm:iteration_tokens_total_count",)),
        # A step gives every sequence that runs one token.
        batched=page.total(("vllm:generation_tokens_total", "vllm:generation_tokens")),
        batch_now=running,
        execution_s=page.total(tuple(f"{name}_sum" for name in _STEP_S)),
        execution_weight=page.total(tuple(f"{name}_count" for name in _STEP_S)),
        latency=page.histogram(("vllm:e2e_request_latency_seconds",), scale=1000.0),
    )


def _given_up(labels: Mapping[str, str]) -> bool:
    return labels.get("finished_reason") in _GIVEN_UP


VLLM = ServerAdapter(
    name="vllm",
    batch_change=RESTART,
    ready_path="/health",
    metrics_path="/metrics",
    names=("vllm:",),
    totals=vllm_totals,
    model_label="model_name",
)


# --- TorchServe
#
# A model gets another batch size by a new registration: for a moment it is not registered at all and requests are
# refused, so workloads that cannot bear that say `restart`. It tells neither what waits nor percentiles. Its management
# listens one port above the worker's own, or on the same where metrics are there too.


def torchserve_totals(page: SeriesPage) -> Totals:
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


def retune_torchserve(talk: Talk, spec: WorkerSpec) -> None:
    """Take the model's registration back and register it anew, with as many of its workers as it had."""
    path = f"/models/{spec.model}"
    held = _registration(talk, path)
    least = held.get("minWorkers")
    workers = max(1, least) if isinstance(least, int) else 1
    url, name = quote(str(held["modelUrl"]), safe="/:"), quote(spec.model, safe="/:")
    query = f"url={url}&model_name={name}&batch_size={spec.batch}"
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


TORCHSERVE = ServerAdapter(
    name="torchserve",
    batch_change=RELOAD,
    ready_path="/ping",
    ready_text=b"Healthy",
    metrics_path="/metrics",
    names=("ts_", "Requests"),
    totals=torchserve_totals,
    retune=retune_torchserve,
)


# --- TensorFlow Serving
#
# Its counters' names begin with a colon, and its latencies are in microseconds. Batching is set for the whole server
# when it starts. Its metrics must be switched on in its monitoring configuration; it tells neither what waits nor
# batches.


_COUNT = (":tensorflow:serving:request_count",)


def tensorflow_totals(page: SeriesPage) -> Totals:
    completed = page.total(_COUNT, _went_well)
    failed = page.total(_COUNT, lambda labels: not _went_well(labels))
    return Totals(
        # Where requests are counted at all, none of a kind is 0.
        completed=completed if completed is not None or failed is None else 0.0,
        failed=failed if failed is not None or completed is None else 0.0,
        latency=page.histogram((":tensorflow:serving:request_latency",), scale=0.001),
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
    totals=tensorflow_totals,
    model_label="model_name",
)


ADAPTERS = {adapter.name: adapter for adapter in (PLAIN, TRITON, VLLM, TORCHSERVE, TENSORFLOW)}


def adapter_of(worker: WorkerTarget) -> ServerAdapter:
    """The adapter a worker names. Raises NotSupportedError."""
    adapter = ADAPTERS.get(worker.adapter)
    if adapter is None:
        raise NotSupportedError(f"no adapter {worker.adapter!r}; there are {', '.join(sorted(ADAPTERS))}")
    return adapter


def batch_change_of(worker: WorkerTarget) -> str:
    """How this worker gets another batch size: as it says, but never by less than its server can. A `reload` where
    the server takes it live is live.
    """
    return RESTART if worker.batch_change == RESTART else adapter_of(worker).batch_change


def batch_untold(worker: WorkerTarget) -> bool:
    """Whether nothing in how this worker is started says its batch size, though its server can be told one: then it
    comes up with what its own files say.
    """
    texts = (*worker.command, *(text for _, text in worker.environment))
    if any("{batch}" in text for text in texts) or batch_change_of(worker) == RESTART:
        return False
    # Workers that speak plain HTTP need not take batch sizes; who says that they do is believed.
    return adapter_of(worker).retune is not None and (adapter_of(worker) is not PLAIN or worker.batch_change == LIVE)


def restart_needed(held: WorkerSpec, wanted: WorkerSpec) -> bool:
    """Whether only a new process can be as wanted, by what its server can be told while it runs. Share and memory are
    not looked at: they always need one. Simulated workers, which have no process, never do.
    """
    if held.worker is None or wanted.worker is None:
        return False
    if _started_with(held.worker) != _started_with(wanted.worker):
        return True
    return held.batch != wanted.batch and batch_change_of(wanted.worker) == RESTART


def _started_with(worker: WorkerTarget) -> WorkerTarget:
    """A description without what the agent alone goes by, and may change at any time."""
    return replace(worker, batch_change=None, ready_path=None, metrics_path=None, warm_up=None, drain_s=0.0, stop_s=0.0)
