"""vLLM.

Owns its counters under their old and new names. Its batch is whatever runs at a moment and changes with every step, so
an execution is a step, its time the time between tokens. Nothing of it changes without a new process. SIGTERM aborts
what it has unless it was started with `--shutdown-timeout`, which belongs into the workload's command; by then it has
been drained.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.crew.adapters.base import RESTART, ServerAdapter
from agents.crew.prometheus import SeriesPage
from agents.crew.tally import Totals

_SUCCESS = ("vllm:request_success_total", "vllm:request_success")
_STEP_S = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_GIVEN_UP = ("abort", "error")


def totals(page: SeriesPage) -> Totals:
    """vLLM's counters."""
    running = page.total(("vllm:num_requests_running",))
    waiting = page.total(("vllm:num_requests_waiting",))
    latency = page.histogram(("vllm:e2e_request_latency_seconds",))
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
        latency=None if latency is None else latency.scaled(1000.0),
    )


def _given_up(labels: Mapping[str, str]) -> bool:
    return labels.get("finished_reason") in _GIVEN_UP


VLLM = ServerAdapter(
    name="vllm",
    batch_change=RESTART,
    ready_path="/health",
    metrics_path="/metrics",
    names=("vllm:",),
    totals=totals,
    model_label="model_name",
)
