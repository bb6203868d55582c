"""What each model server tells and takes, held against pages as they write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from agents.crew.adapters import (
    ADAPTERS,
    ServerAdapter,
    Talk,
    adapter_of,
    batch_change_of,
    batch_untold,
    restart_needed,
)
from agents.crew.metrics import Totals, read_page
from agents.crew.web import Question, WebAnswer
from agents.errors import NotSupportedError, WorkerError
from agents.wire import WorkerTarget
from solvers.domain import worker as declared
from tests.unit.agents.crew.doubles import spec, target


def totals(name: str, text: str, model: str = "bert") -> Totals:
    adapter = ADAPTERS[name]
    page = read_page(text.encode(), adapter.names)
    return adapter.totals(page.of_model(model, adapter.model_label) if adapter.model_label else page)


def test_adapters_are_those_a_workload_may_name_and_none_promises_more_than_it_can() -> None:
    assert set(ADAPTERS) == {each.value for each in declared.Adapter}
    changes = {name: batch_change_of(target(adapter=name)) for name in ADAPTERS}
    assert set(changes.values()) <= {each.value for each in declared.BatchChange}
    assert changes == {
        "http": "live",
        "triton": "reload",
        "vllm": "restart",
        "torchserve": "reload",
        "tensorflow_serving": "restart",
    }
    assert all((adapter.retune is None) == (adapter.batch_change == "restart") for adapter in ADAPTERS.values())
    assert batch_change_of(target(adapter="triton", batch_change="restart")) == "restart"
    assert batch_change_of(target(adapter="vllm", batch_change="live")) == "restart"
    with pytest.raises(NotSupportedError):
        adapter_of(target(adapter="x"))


def test_only_what_a_server_cannot_be_told_needs_a_restart() -> None:
    held = spec(target(adapter="http"))
    assert not restart_needed(held, replace(held, batch=8, latency_ms_limit=9.0))
    for name in ("vllm", "tensorflow_serving"):
        fixed = spec(target(adapter=name))
        assert restart_needed(fixed, replace(fixed, batch=8))
        assert not restart_needed(fixed, replace(fixed, latency_ms_limit=9.0))
    assert restart_needed(held, replace(held, worker=target(command=("/bin/false",))))
    assert restart_needed(held, replace(held, worker=target(environment=(("A", "b"),))))
    assert not restart_needed(held, replace(held, worker=target(stop_s=3.0, drain_s=1.0, ready_path="/r")))
    assert restart_needed(held, replace(held, batch=8, worker=target(batch_change="restart")))
    assert not restart_needed(held, replace(held, batch=8, worker=None))


def test_triton_requests_and_inferences_are_told_apart() -> None:
    found = totals(
        "triton",
        'nv_inference_request_success{model="bert",version="1"} 10\n'
        'nv_inference_request_success{model="bert",version="2"} 2\n'
        'nv_inference_request_success{model="other",version="1"} 99\n'
        'nv_inference_request_failure{model="bert",reason="REJECTED",version="1"} 1\n'
        'nv_inference_request_failure{model="bert",reason="OTHER",version="1"} 2\n'
        'nv_inference_count{model="bert",version="1"} 80\n'
        'nv_inference_exec_count{model="bert",version="1"} 20\n'
        'nv_inference_pending_request_count{model="bert",version="1"} 4\n'
        'nv_inference_compute_input_duration_us{model="bert",version="1"} 1000\n'
        'nv_inference_compute_infer_duration_us{model="bert",version="1"} 118000\n'
        'nv_inference_compute_output_duration_us{model="bert",version="1"} 1000\n'
        'nv_inference_request_summary_us{model="bert",version="1",quantile="0.5"} 5000\n'
        'nv_inference_request_summary_us{model="bert",version="1",quantile="0.99"} NaN\n'
        'nv_energy_consumption{gpu_uuid="GPU-a"} 1e9\n',
    )
    assert (found.completed, found.failed, found.batched, found.executions, found.queue) == (12, 3, 80, 20, 4)
    assert found.execution_s == pytest.approx(0.12)
    assert found.execution_weight == 12
    assert found.percentiles_ms == (5.0, None, None)
    assert found.latency is None


VLLM = """
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 40.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 2.0
vllm:generation_tokens_total{engine="0",model_name="m"} 4000.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 1000.0
vllm:%s_sum{engine="0",model_name="m"} 25.0
vllm:%s_count{engine="0",model_name="m"} 2000.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 40.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 45.0
"""


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_vllm_is_read_under_its_old_and_new_names(name: str) -> None:
    found = totals("vllm", VLLM % (name, name))
    assert (found.completed, found.failed, found.queue, found.batch_now) == (45, 2, 5, 3)
    assert (found.executions, found.batched, found.execution_s, found.execution_weight) == (1000, 4000, 25.0, 2000)
    assert found.latency is not None
    assert found.latency.bounds == (300.0, math.inf)


def test_torchserve_tells_neither_what_waits_nor_percentiles() -> None:
    found = totals(
        "torchserve",
        'Requests2XX{Level="Host",Hostname="h"} 9\nRequests5XX{Level="Host",Hostname="h"} 1\n'
        'ts_inference_requests_total{model_name="bert",model_version="1",hostname="h"} 10\n'
        'ts_inference_latency_microseconds{model_name="bert",model_version="1",hostname="h"} 50000\n'
        'ts_queue_latency_microseconds{model_name="bert",model_version="1",hostname="h"} 10000\n',
    )
    assert found.execution_s == pytest.approx(0.04)
    assert replace(found, execution_s=None) == Totals(completed=9, failed=1, execution_weight=10)


def test_tensorflow_serving_names_begin_with_a_colon_and_latencies_are_microseconds() -> None:
    found = totals(
        "tensorflow_serving",
        ':tensorflow:serving:request_count{model_name="bert",status="OK"} 7\n'
        ':tensorflow:serving:request_count{model_name="bert",status="INVALID_ARGUMENT"} 2\n'
        ':tensorflow:serving:request_latency_bucket{model_name="bert",le="10000"} 7\n'
        ':tensorflow:serving:request_latency_bucket{model_name="bert",le="+Inf"} 9\n',
    )
    assert (found.completed, found.failed, found.queue) == (7, 2, None)
    assert found.latency is not None
    assert found.latency.bounds[0] == pytest.approx(10.0)
    fresh = totals("tensorflow_serving", ':tensorflow:serving:request_count{model_name="b",status="OK"} 7\n')
    assert (fresh.completed, fresh.failed) == (7, 0)


def test_headrooms_own_form() -> None:
    found = totals(
        "http",
        "headroom_requests_total 8\nheadroom_requests_failed_total 1\nheadroom_requests_violated_total 2\n"
        "headroom_requests_pending 3\nheadroom_batches_total 4\nheadroom_batch_execution_seconds_total 0.4\n"
        'headroom_request_latency_seconds_bucket{le="0.05"} 8\nheadroom_request_latency_seconds_bucket{le="+Inf"} 8\n'
        "headroom_iterations_total 5\n",
    )
    assert (found.completed, found.failed, found.violated, found.queue, found.iterations) == (8, 1, 2, 3, 5)
    assert (found.executions, found.execution_s, found.execution_weight) == (4, 0.4, 4)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
@pytest.mark.parametrize("text", ["", "<html>404</html>", "up 1\n"])
def test_pages_of_something_else_tell_nothing(name: str, text: str) -> None:
    found = totals(name, text)
    assert replace(found, percentiles_ms=None) == Totals()
    assert found.percentiles_ms in (None, (None, None, None))


@pytest.mark.parametrize(
    ("name", "body", "ready"),
    [
        ("http", b"", True),
        ("torchserve", b'{"status": "Healthy"}', True),
        ("torchserve", b'{"status": "Unknown"}', False),
        ("tensorflow_serving", b'{"model_version_status": [{"state": "AVAILABLE"}]}', True),
        ("tensorflow_serving", b'{"model_version_status": [{"state": "LOADING"}]}', False),
    ],
)
def test_readiness_is_more_than_a_status_where_the_server_says_more(name: str, body: bytes, ready: bool) -> None:
    adapter = ADAPTERS[name]
    assert adapter.is_ready(WebAnswer(status=200, body=body)) is ready
    assert not adapter.is_ready(WebAnswer(status=503, body=body))
    assert not adapter.is_ready(WebAnswer(status=0, problem="refused"))


class Listener:
    """A server that answers by method and path, and remembers."""

    def __init__(self, answers: dict[str, list[WebAnswer]]) -> None:
        self.answers = answers
        self.heard: list[Question] = []

    def __call__(self, question: Question) -> WebAnswer:
        self.heard.append(question)
        waiting = self.answers.get(f"{question.method} {question.path.partition('?')[0]}", [WebAnswer(status=404)])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def told(name: str, listener: Callable[[Question], WebAnswer], batch: int = 8) -> None:
    adapter: ServerAdapter = ADAPTERS[name]
    assert adapter.retune is not None
    adapter.retune(Talk(ask=listener, host="h", port=10, management_port=11), spec(target(adapter=name), batch=batch))


def plain(content: object) -> WebAnswer:
    return WebAnswer(status=200, body=json.dumps(content).encode())


def test_a_plain_worker_is_told_batch_and_limit_and_may_answer_what_it_took() -> None:
    listener = Listener({"POST /headroom/batch": [plain({"batch": 8})]})
    told("http", listener)
    assert json.loads(listener.heard[0].body) == {"batch": 8, "latency_ms_limit": 50.0}
    told("http", Listener({"POST /headroom/batch": [WebAnswer(status=204)]}))
    with pytest.raises(WorkerError, match="it takes 4"):
        told("http", Listener({"POST /headroom/batch": [plain({"batch": 4})]}))
    with pytest.raises(NotSupportedError):
        told("http", Listener({}))
    with pytest.raises(WorkerError, match="refused"):
        told("http", lambda question: WebAnswer(status=0, problem="refused"))


def test_an_answer_nested_without_end_says_nothing() -> None:
    told("http", lambda question: WebAnswer(status=200, body=b"[" * 100_000))


def test_triton_loads_the_model_anew_with_the_rest_of_its_configuration() -> None:
    config = {"name": "bert", "max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [4, 16], "x": 1}}
    listener = Listener(
        {
            "GET /v2/models/bert/config": [plain(config), plain({**config, "max_batch_size": 8})],
            "POST /v2/repository/models/bert/load": [WebAnswer(status=200)],
        }
    )
    told("triton", listener)
    sent = json.loads(json.loads(listener.heard[1].body)["parameters"]["config"])
    assert sent == {
        "name": "bert",
        "max_batch_size": 8,
        "dynamic_batching": {"preferred_batch_size": [4], "x": 1},
    }


def test_triton_that_did_not_take_it_is_found_out() -> None:
    config = plain({"name": "bert", "max_batch_size": 4})
    load = {"POST /v2/repository/models/bert/load": [WebAnswer(status=200)]}
    with pytest.raises(WorkerError, match="still has another largest batch"):
        told("triton", Listener({"GET /v2/models/bert/config": [config], **load}))
    refused = {"POST /v2/repository/models/bert/load": [WebAnswer(status=400, body=b"explicit model control")]}
    with pytest.raises(WorkerError, match="explicit model control"):
        told("triton", Listener({"GET /v2/models/bert/config": [config], **refused}))


def test_torchserve_is_registered_anew_over_its_management_port() -> None:
    held = {"modelUrl": "a b&c.mar", "batchSize": 4, "maxBatchDelay": 50, "minWorkers": 2}
    listener = Listener(
        {
            "GET /models/bert": [plain([held]), plain([{**held, "batchSize": 8}])],
            "DELETE /models/bert": [WebAnswer(status=200)],
            "POST /models": [WebAnswer(status=200)],
        }
    )
    told("torchserve", listener)
    assert {question.port for question in listener.heard} == {11}
    assert listener.heard[2].path == (
        "/models?url=a%20b%26c.mar&model_name=bert&batch_size=8&max_batch_delay=50&initial_workers=2&synchronous=true"
    )
    with pytest.raises(WorkerError):
        told("torchserve", Listener({"GET /models/bert": [plain({})]}))


@pytest.mark.parametrize(
    ("adapter", "command", "change", "untold"),
    [
        ("triton", ("tritonserver",), None, True),
        ("triton", ("tritonserver", "--model-repository=/m/b{batch}"), None, False),
        ("triton", ("tritonserver",), "restart", False),
        ("torchserve", ("torchserve",), None, True),
        ("vllm", ("vllm", "serve"), None, False),
        ("http", ("serve",), None, False),
        ("http", ("serve",), "live", True),
        ("http", ("serve", "--batch={batch}"), "live", False),
    ],
)
def test_servers_are_told_their_batch_when_nothing_they_start_with_says_it(
    adapter: str, command: tuple[str, ...], change: str | None, untold: bool
) -> None:
    described = WorkerTarget(command=command, adapter=adapter, batch_change=change)
    assert batch_untold(described) is untold
    said = replace(described, environment=(("BATCH", "{batch}"),))
    assert not batch_untold(said)
