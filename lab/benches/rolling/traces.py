"""Services of a rolling scenario out of public data: instances alive of the DLRM cluster, requests of LLM traces as
buckets by length, mean rates of many LLM services.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from lab.arena.forms import Duration
from lab.arena.loading import Context, ScenarioForm, Where, rows

DLRM, AZURE = "alibaba-dlrm-2025", "azure-llm-2023"
MUXSERVE = "muxserve-lmsys-rates"
TRACES = {
    "code": (AZURE, "code.csv"),
    "conv": (AZURE, "conv.csv"),
    "mooncake": ("mooncake-conversation", "conversation.csv"),
}
"""Traces of LLM requests with the lengths of each."""
Request = tuple[float, int, int]
"""When, tokens in, tokens out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Requests of like lengths: mean lengths, and rates over equal stretches."""

    name: str
    input_tokens: float
    output_tokens: float
    rates_rps: tuple[float, ...]


def dlrm_counts(context: Context, services: int) -> dict[str, list[int]]:
    """Instances alive hour by hour, of so many services, the largest. Raises InputError where the data is missing."""
    read = rows(context, ("dlrm",), DLRM, "gpu_instances_per_app_hourly.csv")
    names = [name for name in read[0] if name != "t_h"]
    alive = {name: [int(row[name]) for row in read] for name in names}
    largest = sorted(names, key=lambda name: (-sum(alive[name]), name))[:services]
    return {name: alive[name] for name in largest}


def azure_buckets(
    context: Context, traces: tuple[str, ...], bin_s: float, edges: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[Bucket]:
    """Buckets between edges of prompt and answer lengths, the last of each open. Raises InputError."""
    read = {trace: requests(context, ("azure", "traces"), trace) for trace in traces}
    last_s = min(max(row[0] for row in each) for each in read.values())
    return buckets(
        [row for each in read.values() for row in each], edges, bin_s=bin_s, bins=max(1, int(last_s // bin_s))
    )


def requests(context: Context, where: Where, trace: str) -> list[Request]:
    """All requests of one of `TRACES`. Raises InputError where the data is missing."""
    return [
        (float(row["t_s"]), int(row["in_tokens"]), int(row["out_tokens"]))
        for row in rows(context, where, *TRACES[trace])
    ]


def buckets(
    read: list[Request], edges: tuple[tuple[int, ...], tuple[int, ...]], *, bin_s: float, bins: int
) -> list[Bucket]:
    """Requests between edges of prompt and answer lengths, the last of each open, over so many stretches."""
    found: dict[tuple[int, int], list[Request]] = defaultdict(list)
    for row in read:
        found[bisect_left(edges[0], row[1]), bisect_left(edges[1], row[2])].append(row)
    return [
        Bucket(
            name=f"in-{key[0]}-out-{key[1]}",
            input_tokens=max(1.0, sum(row[1] for row in part) / len(part)),
            output_tokens=max(1.0, sum(row[2] for row in part) / len(part)),
            rates_rps=_rates(part, bin_s, bins),
        )
        for key, part in sorted(found.items())
    ]


def _rates(part: list[Request], bin_s: float, bins: int) -> tuple[float, ...]:
    counts = [0] * bins
    for at_s, _, _ in part:
        if int(at_s // bin_s) < bins:
            counts[int(at_s // bin_s)] += 1
    return tuple(count / bin_s for count in counts)


def muxserve_rates(context: Context, where: Where, condense: int) -> list[tuple[str, str, float]]:
    """Services with the LLaMA that their authors gave them and their mean rates. Raises InputError."""
    read = rows(context, where, MUXSERVE, "rates.csv")
    found = [(row["service"], row["model"], float(row["rate_rps"])) for row in read if int(row["condense"]) == condense]
    if not found:
        known = ", ".join(sorted({row["condense"] for row in read}, key=int))
        raise context.refusal((*where, "condense"), f"there are only {known}")
    return sorted(found)


Rate = Annotated[float, Field(ge=0, le=1e9)]
Positive = Annotated[float, Field(gt=0, le=1e9)]


class LengthsForm(ScenarioForm):
    """Requests in buckets by length, each a service of one promise."""

    model: str
    scale: Positive = 1.0
    """Times the trace's rates."""
    bin: Duration = 300.0
    input_edges: tuple[int, ...] = ()
    output_edges: tuple[int, ...] = ()
    first_token_ms: Positive
    inter_token_ms: Positive


class TracedForm(LengthsForm):
    """Requests of one trace in buckets by length, each a service called `<name>-in-<i>-out-<j>`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$")]
    trace: Literal["code", "conv", "mooncake"]
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


class ChatForm(ScenarioForm):
    """An LLM service."""

    name: str
    model: str
    first_token_ms: Positive
    inter_token_ms: Positive
    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95.0
    input_tokens: Annotated[float, Field(ge=1)]
    output_tokens: Annotated[float, Field(ge=1)]
    rates_rps: Annotated[tuple[Rate, ...], Field(min_length=1)]


def chat(form: LengthsForm, bucket: Bucket, name: str) -> ChatForm:
    return ChatForm(
        name=name,
        model=form.model,
        first_token_ms=form.first_token_ms,
        inter_token_ms=form.inter_token_ms,
        input_tokens=bucket.input_tokens,
        output_tokens=bucket.output_tokens,
        rates_rps=tuple(form.scale * rate for rate in bucket.rates_rps),
    )


def traced_services(form: TracedForm, where: Where, context: Context) -> list[ChatForm]:
    """The buckets of a trace. Raises InputError."""
    read = requests(context, (*where, "trace"), form.trace)
    bins = max(1, int(max(row[0] for row in read) // form.bin))
    return [
        chat(form, bucket, f"{form.name}-{bucket.name}")
        for bucket in buckets(read, (form.input_edges, form.output_edges), bin_s=form.bin, bins=bins)
        if sum(bucket.rates_rps) / bins >= form.rate_rps_least
    ]


def muxserve_services(form: MuxserveForm, where: Where, context: Context) -> list[ChatForm]:
    """The services whose LLaMA the form knows. Raises InputError."""
    return [
        ChatForm(
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


def together(services: list[ChatForm]) -> list[ChatForm]:
    """All over as many steps as the shortest has."""
    steps = min((len(each.rates_rps) for each in services), default=0)
    return [each.model_copy(update={"rates_rps": each.rates_rps[:steps]}) for each in services]
