"""Readable builders of LLM services for tests: one model, its invented steps on every GPU type, a service that chats.

Owns defaults that make sense together: on an A100 a replica serves some requests a second, on a T4 hardly one. The
numbers are invented and belong to tests alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from solvers.domain.device import Device
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant, Service, Slo, SloKind
from tests import builders

MODEL = ModelName("chatter-7b")
LENGTHS = TokenLengths(input_tokens_mean=400, output_tokens_mean=150, input_tokens_p99=1600)


def model(name: str = MODEL, **changes: Any) -> ModelVariant:
    """Seven thousand million parameters."""
    made = ModelVariant(
        name=ModelName(name),
        family="chatter",
        parameters_million=7000.0,
        memory_mib_weights=13400.0,
        kv_cache_mib_per_token=0.5,
        launch_s=60.0,
    )
    return replace(made, **changes)


def profile(type_name: str, model_name: str = MODEL, **changes: Any) -> TokenProfile:
    """Steps that are as much faster as the tests' law makes the type."""
    speed = builders.SPEED[type_name]
    made = TokenProfile(
        model=ModelName(model_name),
        gpu_type=GpuTypeName(type_name),
        decode_fixed_ms=72.0 / speed,
        decode_per_sequence_ms=0.6 / speed,
        decode_per_token_ms=0.0015 / speed,
        prefill_fixed_ms=6.0,
        prefill_per_token_ms=0.36 / speed,
        prefill_per_token_squared_ms=3e-6,
        memory_mib_weights=13400.0,
        kv_cache_mib_per_token=0.5,
    )
    return replace(made, **changes)


def slo(**changes: Any) -> Slo:
    """The first token within a second and a half, the next within 250 ms."""
    made = Slo(kind=SloKind.TOKENS, first_token_ms=1500.0, inter_token_ms=250.0, percentile=95.0)
    return replace(made, **changes)


def service(name: str = "chat", **changes: Any) -> Service:
    """Four requests a second."""
    made = builders.service(name, model=MODEL, slo=slo(), rate_rps_declared=4.0, tokens=LENGTHS)
    return replace(made, **changes)


def lab(services: Iterable[Service], **changes: Any) -> Snapshot:
    """The small mixed fleet, whose types are all profiled for the model."""
    asked = tuple(services)
    models = (model(), builders.model())
    known = (profile("a100"), profile("l4"), profile("t4"), profile("v100"))
    seen = tuple(builders.profile("resnet50", name) for name in ("a100", "l4", "t4", "v100"))
    given: dict[str, object] = {"models": models, "profiles": seen, "token_profiles": known, **changes}
    return builders.lab(asked, **given)


def assignment(replica: str, on: Device, **changes: Any) -> Assignment:
    """A standing replica with 32 sequences at once."""
    clock = builders.gpu_type(on.gpu_type).clock_mhz_sm_max
    shape = builders.gpu_type(on.gpu_type)
    made = builders.assignment(
        replica,
        on,
        workload=WorkloadId(replica.partition("#")[0]),
        model=MODEL,
        share_pct_sm=100,
        memory_mib_limit=23232,
        batch=32,
        envelope=Envelope(batch_min=1, batch_max=32, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
        latency_ms_planned=1000.0,
        capacity_rps=1.0,
        power_w_planned=shape.tdp_w - shape.idle_w,
    )
    return replace(made, **changes)
