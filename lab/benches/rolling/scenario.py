"""Scenario files of kind `rolling`: a fleet whose services are planned anew step by step, without requests.

Owns the form and what becomes of it: services told by what a whole GPU of each type serves, or LLMs by their token
latencies; rates spelt out or read from public data: instances alive of the DLRM cluster, requests of LLM traces as
buckets by length, mean rates of many LLM services.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from app.library import load_gpu_types, load_models
from app.marked import Where
from app.services.beliefs.completion import with_token_profiles
from lab.arena.forms import Duration
from lab.arena.loading import Document, Heading, ScenarioForm
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
Rate = Annotated[float, Field(ge=0, le=1e9)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
DLRM, AZURE = "alibaba-dlrm-2025", "azure-llm-2023"
MUXSERVE = "muxserve-lmsys-rates"
TRACES = {
    "code": ((AZURE, "code.csv"),),
    "conv": ((AZURE, "conv.csv"),),
    "azure": ((AZURE, "code.csv"), (AZURE, "conv.csv")),
    "mooncake": (("mooncake-conversation", "conversation.csv"),),
}
"""Traces of LLM requests with the lengths of each; of several files, as long as the shortest."""
Request = tuple[float, int, int]
"""When, tokens in, tokens out."""


class TracedForm(ScenarioForm):
    """Requests of one trace in buckets by length, each a service of one promise called `<name>-in-<i>-out-<j>`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$")]
    trace: Literal["code", "conv", "azure", "mooncake"]
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


def traced_services(form: TracedForm, where: Where, document: Document) -> list[ChatForm]:
    """Requests between edges of prompt and answer lengths, the last open. Raises InputError without the data."""
    files = [document.rows((*where, "trace"), *parts) for parts in TRACES[form.trace]]
    read = [[(float(row["t_s"]), int(row["in_tokens"]), int(row["out_tokens"])) for row in rows] for rows in files]
    bins = max(1, int(min(max(row[0] for row in each) for each in read) // form.bin))
    found: dict[tuple[int, int], list[Request]] = defaultdict(list)
    for row in itertools.chain(*read):
        found[bisect_left(form.input_edges, row[1]), bisect_left(form.output_edges, row[2])].append(row)
    return [
        ChatForm(
            name=f"{form.name}-in-{key[0]}-out-{key[1]}",
            model=form.model,
            first_token_ms=form.first_token_ms,
            inter_token_ms=form.inter_token_ms,
            input_tokens=max(1.0, sum(row[1] for row in part) / len(part)),
            output_tokens=max(1.0, sum(row[2] for row in part) / len(part)),
            rates_rps=tuple(form.scale * rate for rate in rates),
        )
        for key, part in sorted(found.items())
        if sum(rates := _rates(part, form.bin, bins)) / bins >= form.rate_rps_least
    ]


def _rates(part: list[Request], bin_s: float, bins: int) -> list[float]:
    counts = Counter(int(at_s // bin_s) for at_s, _, _ in part)
    return [counts[number] / bin_s for number in range(bins)]


def muxserve_services(form: MuxserveForm, where: Where, document: Document) -> list[ChatForm]:
    """The services whose LLaMA the form knows. Raises InputError."""
    read = document.rows(where, MUXSERVE, "rates.csv")
    found = sorted(
        (row["service"], row["model"], float(row["rate_rps"])) for row in read if int(row["condense"]) == form.condense
    )
    if not found:
        known = ", ".join(sorted({row["condense"] for row in read}, key=int))
        raise document.refusal((*where, "condense"), f"there are only {known}")
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
        for service, model, rate in found
        if model in form.models
    ]


def together(services: list[ChatForm]) -> list[ChatForm]:
    """All over as many steps as the shortest has."""
    steps = min((len(each.rates_rps) for each in services), default=0)
    return [each.model_copy(update={"rates_rps": each.rates_rps[:steps]}) for each in services]


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
    traced: tuple[TracedForm, ...] = ()
    """LLM requests of several traces, each with its own model and promise."""
    muxserve: MuxserveForm | None = None
    policy: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Fields of the policy that differ from the usual of this kind: cost by device, no energy, no margins."""
    by_pursuit: bool = False
    """Whether the gate judges a plan by what its planner pursues, as production does; if not, all contenders' by the
    policy's objective."""


FORM = RollingForm


def build(form: RollingForm, document: Document) -> Bench:
    """The bench of a file. Raises InputError."""
    policy = _policy(form, document)
    if form.inferno is not None:
        return _inferno(form, form.inferno, document, policy)
    if not form.fleet:
        raise document.refusal((), "needs a fleet")
    bare = replace(_fleet(form, document), policy=policy)
    wishes = list(form.services)
    chats = list(form.chats)
    if form.dlrm is not None:
        wishes += _dlrm(form.dlrm, document)
    chats += _llms(form, document)
    asked: list[WishForm | ChatForm] = [*wishes, *chats]
    steps = {len(each.rates_rps) for each in asked}
    if len(steps) != 1:
        raise document.refusal((), "needs services with as many rates each")
    picture = with_token_profiles(_with_chats(wished(bare, [_wish(each, form, document) for each in wishes]), chats))
    rates = {each.name: each.rates_rps for each in asked}
    return _bench(
        form, picture, [[rates[service.name][step] for service in picture.services] for step in range(*steps)]
    )


def _bench(form: RollingForm, picture: Snapshot, rates: list[list[float]]) -> Rolling:
    return form.made(Rolling, about=form.about(), picture=picture, rates_rps=tuple(map(tuple, rates)))


def _policy(form: RollingForm, document: Document) -> Policy:
    plain = to_plain(POLICY)
    assert isinstance(plain, dict)
    for name in form.policy:
        if name not in plain:
            raise document.refusal(("policy", name), "a policy has no such field")
    with document.placing("policy"):
        policy = from_plain(Policy, {**plain, "cooldown_s": 0.0, **form.policy})
    document.check_settings(policy, "policy")
    return policy


def _fleet(form: RollingForm, document: Document) -> Snapshot:
    known = {str(each.name): each for each in load_gpu_types()}
    types: list[GpuType] = []
    hosts: list[RollingHost] = []
    for index, entry in enumerate(form.fleet):
        found = known.get(entry.gpu_type)
        if found is None and (entry.usd_per_h is None or form.chats or form.traced or form.muxserve):
            raise document.refusal(("fleet", index, "gpu_type"), "no such type in the library; say usd_per_h")
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


def _wish(entry: WishForm, form: RollingForm, document: Document) -> ServiceWish:
    unknown = set(entry.whole_rps) - {each.gpu_type for each in form.fleet}
    if unknown:
        raise document.refusal((), f"{entry.name} runs on {min(unknown)}, which the fleet does not have")
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


def _dlrm(form: DlrmForm, document: Document) -> list[WishForm]:
    read = document.rows(("dlrm",), DLRM, "gpu_instances_per_app_hourly.csv")
    alive = {name: [int(row[name]) for row in read] for name in read[0] if name != "t_h"}
    largest = sorted(alive, key=lambda name: (-sum(alive[name]), name))[: form.services]
    hours = range(form.from_h, form.from_h + form.hours, form.every_h)
    return [
        WishForm(
            name=name.replace("_", "-"),
            whole_rps=form.whole_rps,
            rates_rps=tuple(form.scale * form.instance_rps * alive[name][hour] for hour in hours if hour < len(read)),
        )
        for name in largest
    ]


def _llms(form: RollingForm, document: Document) -> list[ChatForm]:
    found = [
        service
        for index, each in enumerate(form.traced)
        for service in traced_services(each, ("traced", index), document)
    ]
    if form.muxserve is not None:
        found += muxserve_services(form.muxserve, ("muxserve",), document)
    return together(found)


def _inferno(form: RollingForm, asked: InfernoForm, document: Document, policy: Policy) -> Bench:
    paths = {name: document.source(("inferno",), FOLDER, asked.size, f"{name}-data.json") for name in FILES}
    files = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items()}
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
