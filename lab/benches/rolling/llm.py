"""LLM services of a rolling scenario whose rates come from public traces.

Owns the forms and what becomes of them: requests of one trace as buckets by length, each a service with the trace's
promise and model; or the many services of a mean-rate table at loads that change step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from lab.arena.forms import Duration
from lab.arena.kinds import Context, ScenarioForm, Where
from lab.benches.rolling.sources import buckets, muxserve_rates, requests

Positive = Annotated[float, Field(gt=0, le=1e9)]


class TracedForm(ScenarioForm):
    """Requests of one trace in buckets by length, each a service called `<name>-in-<i>-out-<j>`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$")]
    trace: Literal["code", "conv", "mooncake"]
    model: str
    scale: Positive = 1.0
    """Times the trace's rates."""
    bin: Duration = 300.0
    input_edges: tuple[int, ...] = ()
    output_edges: tuple[int, ...] = ()
    first_token_ms: Positive
    inter_token_ms: Positive
    rate_rps_least: Annotated[float, Field(ge=0)] = 0.0
    """Buckets with a lower mean rate are left out: single odd requests."""


class MuxserveForm(ScenarioForm):
    """The 16 LLM services of the MuxServe study at their mean rates."""

    condense: int = 2000
    models: dict[str, str]
    """The library's model for each LLaMA of the table; services of others are left out."""
    loads: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0,)
    """Times the mean rates, one a step."""
    input_tokens: Positive = 100.0
    output_tokens: Positive = 261.0
    first_token_ms: Positive
    inter_token_ms: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Llm:
    """An LLM service step by step."""

    name: str
    model: str
    first_token_ms: float
    inter_token_ms: float
    input_tokens: float
    output_tokens: float
    rates_rps: tuple[float, ...]


def traced_services(form: TracedForm, where: Where, context: Context) -> list[Llm]:
    """The buckets of a trace. Raises InputError."""
    read = requests(context, (*where, "trace"), form.trace)
    bins = max(1, int(max(row[0] for row in read) // form.bin))
    return [
        Llm(
            name=f"{form.name}-{bucket.name}",
            model=form.model,
            first_token_ms=form.first_token_ms,
            inter_token_ms=form.inter_token_ms,
            input_tokens=bucket.input_tokens,
            output_tokens=bucket.output_tokens,
            rates_rps=tuple(form.scale * rate for rate in bucket.rates_rps),
        )
        for bucket in buckets(read, (form.input_edges, form.output_edges), bin_s=form.bin, bins=bins)
        if sum(bucket.rates_rps) / bins >= form.rate_rps_least
    ]


def muxserve_services(form: MuxserveForm, where: Where, context: Context) -> list[Llm]:
    """The services whose LLaMA the form knows. Raises InputError."""
    return [
        Llm(
            name=service,
            model=form.models[model],
            first_token_ms=form.first_token_ms,
            inter_token_ms=form.inter_token_ms,
            input_tokens=form.input_tokens,
            output_tokens=form.output_tokens,
            rates_rps=tuple(load * rate for load in form.loads),
        )
        for service, model, rate in muxserve_rates(context, where, form.condense)
        if model in form.models
    ]


def together(services: list[Llm]) -> list[Llm]:
    """All over as many steps as the shortest has."""
    steps = min((len(each.rates_rps) for each in services), default=0)
    return [
        Llm(
            name=each.name,
            model=each.model,
            first_token_ms=each.first_token_ms,
            inter_token_ms=each.inter_token_ms,
            input_tokens=each.input_tokens,
            output_tokens=each.output_tokens,
            rates_rps=each.rates_rps[:steps],
        )
        for each in services
    ]
