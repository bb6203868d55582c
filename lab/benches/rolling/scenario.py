"""Scenario files of kind `rolling`: a fleet whose services are planned anew step by step, without requests.

Owns the form and what becomes of it: services told by what a whole GPU of each type serves, or LLMs by their token
latencies; rates spelt out or read from public data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from app.library import load_gpu_types, load_models
from app.services.beliefs.completion import with_token_profiles
from lab.arena.forms import Duration
from lab.arena.loading import Context, Heading, ScenarioForm, read_json
from lab.benches.rolling.bench import Rolling
from lab.benches.rolling.problems import (
    FILES,
    FOLDER,
    POLICY,
    PROJECT,
    GpuKind,
    InfernoCase,
    RollingHost,
    ServiceWish,
    fleet,
    inferno,
    inferno_wishes,
    wished,
)
from lab.benches.rolling.traces import (
    ChatForm,
    LengthsForm,
    MuxserveForm,
    Positive,
    Rate,
    TracedForm,
    azure_buckets,
    chat,
    dlrm_counts,
    muxserve_services,
    together,
    traced_services,
)
from lab.outcome import Bench, Better
from solvers.domain.codec import from_plain, to_plain
from solvers.domain.device import GpuType, PriceKind, PriceRow
from solvers.domain.ids import ModelName
from solvers.domain.policy import Policy
from solvers.domain.profile import TokenLengths
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Service, Slo, SloKind
from solvers.errors import FieldError

Count = Annotated[int, Field(ge=1, le=100_000)]
RATE_LEAST_RPS = 1e-3


class GpusForm(ScenarioForm):
    """GPUs of one type. A type of the library has its memory and price from there."""

    gpu_type: str
    count: Count
    gpus_per_node: Annotated[int, Field(ge=1, le=16)] = 8
    usd_per_h: Annotated[float, Field(ge=0, le=10_000)] | None = None


class WishForm(ScenarioForm):
    """A service by what a whole GPU serves of it."""

    name: str
    whole_rps: dict[str, Positive]
    rates_rps: Annotated[tuple[Rate, ...], Field(min_length=1)]
    """One a step."""
    priority: Annotated[int, Field(ge=1, le=1000)] = 100
    whole_gpus: bool = False


class DlrmForm(ScenarioForm):
    """Services of the DLRM cluster (Alibaba 2025): one instance alive is one `instance_rps` asked."""

    services: Annotated[int, Field(ge=1, le=156)] = 30
    """The largest of them."""
    from_h: Annotated[int, Field(ge=0)] = 0
    hours: Annotated[int, Field(ge=1, le=744)] = 48
    every_h: Annotated[int, Field(ge=1, le=24)] = 2
    scale: Positive = 1.0
    instance_rps: Positive = 100.0
    whole_rps: dict[str, Positive]


class InfernoForm(ScenarioForm):
    """The sample problem of Inferno: its services in their classes on its GPUs, those of single accelerators."""

    size: Literal["small", "large"] = "large"
    copies: Annotated[int, Field(ge=1, le=100)] = 1
    capacity: Positive = 1.0
    loads: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0,)
    """Times the sample's rates, one a step."""


class AzureForm(LengthsForm):
    """LLM requests of Azure (2023) as buckets by length, each a service; rates of stretches of the trace."""

    traces: tuple[Literal["code", "conv"], ...] = ("code", "conv")
    input_edges: tuple[int, ...] = (512, 2048, 8192)
    output_edges: tuple[int, ...] = (64, 512, 2048)


class RollingForm(Heading):
    """Pictures planned one after the other."""

    kind: Literal["rolling"]
    goal: str = "cost_usd"
    better: Better = Better.LOWER
    guard: str | None = "unserved_pct"
    step: Annotated[Duration, Field(gt=0)] = 3600.0
    fleet: tuple[GpusForm, ...] = ()
    services: tuple[WishForm, ...] = ()
    chats: tuple[ChatForm, ...] = ()
    dlrm: DlrmForm | None = None
    inferno: InfernoForm | None = None
    azure: AzureForm | None = None
    traced: tuple[TracedForm, ...] = ()
    """LLM requests of several traces, each with its own model and promise."""
    muxserve: MuxserveForm | None = None
    policy: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Fields of the policy that differ from the usual of this kind: cost by device, no energy, no margins."""


FORM = RollingForm


def build(form: RollingForm, context: Context) -> Bench:
    """The bench of a file. Raises InputError."""
    policy = _policy(form, context)
    if form.inferno is not None:
        return _inferno(form, form.inferno, context, policy)
    if not form.fleet:
        raise context.refusal((), "needs a fleet")
    bare = replace(_fleet(form, context), policy=policy)
    wishes = list(form.services)
    chats = list(form.chats)
    if form.dlrm is not None:
        wishes += _dlrm(form.dlrm, context)
    if form.azure is not None:
        chats += _azure(form.azure, context)
    chats += _llms(form, context)
    asked: list[WishForm | ChatForm] = [*wishes, *chats]
    steps = {len(each.rates_rps) for each in asked}
    if len(steps) != 1:
        raise context.refusal((), "needs services with as many rates each")
    picture = with_token_profiles(_with_chats(wished(bare, [_wish(each, form, context) for each in wishes]), chats))
    rates = {each.name: each.rates_rps for each in asked}
    return _bench(
        form, picture, [[rates[service.name][step] for service in picture.services] for step in range(*steps)]
    )


def _bench(form: RollingForm, picture: Snapshot, rates: list[list[float]]) -> Rolling:
    return Rolling(
        about=form.about(), picture=picture, rates_rps=tuple(tuple(step) for step in rates), step_s=form.step
    )


def _policy(form: RollingForm, context: Context) -> Policy:
    plain = to_plain(POLICY)
    assert isinstance(plain, dict)
    for name in form.policy:
        if name not in plain:
            raise context.refusal(("policy", name), "a policy has no such field")
    with context.document.placing("policy"):
        return from_plain(Policy, {**plain, "cooldown_s": 0.0, **form.policy})


def _fleet(form: RollingForm, context: Context) -> Snapshot:
    known = {str(each.name): each for each in load_gpu_types()}
    types: list[GpuType] = []
    hosts: list[RollingHost] = []
    for index, entry in enumerate(form.fleet):
        found = known.get(entry.gpu_type)
        if found is None and (entry.usd_per_h is None or form.chats or form.azure or form.traced or form.muxserve):
            raise context.refusal(("fleet", index, "gpu_type"), "no such type in the library; say usd_per_h")
        if found is not None:
            prices = found.prices
            if entry.usd_per_h is not None:
                prices = (PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=entry.usd_per_h, source="scenario"),)
            types.append(replace(found, prices=prices))
        for number in range(-(-entry.count // entry.gpus_per_node)):
            left = entry.count - number * entry.gpus_per_node
            name = f"{entry.gpu_type}-{number:04d}"
            hosts.append(RollingHost(name=name, kind=entry.gpu_type, gpus=min(left, entry.gpus_per_node)))
    kinds = [_kind(entry, known.get(entry.gpu_type)) for entry in form.fleet]
    bare = fleet(form.name, kinds, hosts)
    library = {each.name: each for each in types}
    return replace(bare, gpu_types=tuple(library.get(each.name, each) for each in bare.gpu_types))


def _kind(entry: GpusForm, found: GpuType | None) -> GpuKind:
    if found is None:
        return GpuKind(name=entry.gpu_type, usd_per_h=entry.usd_per_h or 0.0)
    return GpuKind(name=entry.gpu_type, usd_per_h=0.0, sm_count=found.sm_count, memory_mib=found.memory_mib)


def _wish(entry: WishForm, form: RollingForm, context: Context) -> ServiceWish:
    unknown = set(entry.whole_rps) - {each.gpu_type for each in form.fleet}
    if unknown:
        raise context.refusal((), f"{entry.name} runs on {min(unknown)}, which the fleet does not have")
    return entry.made(ServiceWish, rate_rps=max(entry.rates_rps[0], RATE_LEAST_RPS))


def _with_chats(picture: Snapshot, chats: list[ChatForm]) -> Snapshot:
    known = {each.name: each for each in load_models()}
    services = [
        Service(
            project=PROJECT,
            name=each.name,
            model=ModelName(each.model),
            slo=each.made(Slo, kind=SloKind.TOKENS),
            tokens=TokenLengths(input_tokens_mean=each.input_tokens, output_tokens_mean=each.output_tokens),
            rate_rps_declared=max(each.rates_rps),
            replicas_max=1024,
            affinity=Affinity(anti_affinity=AntiAffinity.OFF),
        )
        for each in chats
    ]
    names = {ModelName(each.model) for each in chats}
    if names - set(known):
        raise FieldError("chats", f"no model {min(names - set(known))} in the library")
    models = (*picture.models, *(known[name] for name in sorted(names)))
    return replace(
        picture,
        models=tuple(sorted(models, key=lambda each: each.name)),
        services=tuple(sorted((*picture.services, *services), key=lambda each: each.id)),
    )


def _dlrm(form: DlrmForm, context: Context) -> list[WishForm]:
    counts = dlrm_counts(context, form.services)
    hours = range(form.from_h, form.from_h + form.hours, form.every_h)
    return [
        WishForm(
            name=name.replace("_", "-"),
            whole_rps=form.whole_rps,
            rates_rps=tuple(form.scale * form.instance_rps * alive[hour] for hour in hours if hour < len(alive)),
        )
        for name, alive in counts.items()
    ]


def _azure(form: AzureForm, context: Context) -> list[ChatForm]:
    found = azure_buckets(context, form.traces, form.bin, (form.input_edges, form.output_edges))
    return [chat(form, bucket, bucket.name) for bucket in found]


def _llms(form: RollingForm, context: Context) -> list[ChatForm]:
    found = [
        service
        for index, each in enumerate(form.traced)
        for service in traced_services(each, ("traced", index), context)
    ]
    if form.muxserve is not None:
        found += muxserve_services(form.muxserve, ("muxserve",), context)
    return together(found)


def _inferno(form: RollingForm, asked: InfernoForm, context: Context, policy: Policy) -> Bench:
    files = {name: read_json(context, ("inferno",), FOLDER, asked.size, f"{name}-data.json") for name in FILES}
    case = inferno(files, InfernoCase(size=asked.size, copies=asked.copies, capacity=asked.capacity))
    wishes, kinds, counts = inferno_wishes(case)
    hosts = [
        RollingHost(name=f"{kind}-{number:04d}", kind=kind, gpus=min(8, count - 8 * number))
        for kind, count in sorted(counts.items())
        for number in range(-(-count // 8))
    ]
    picture = wished(replace(fleet(form.name, kinds, hosts), policy=policy), wishes)
    rate = {each.name: each.rate_rps for each in wishes}
    steps = [[load * rate[service.name] for service in picture.services] for load in asked.loads]
    return _bench(form, picture, steps)
