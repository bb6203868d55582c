"""The declarative kinds: one table of what users and agents declare, read by store, services, API, client and CLI.

Another kind is another entry, beside its domain type and a migration; no other module lists them. Nothing is imported
but the domain's values: a script needs the base install only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from solvers.domain.budget import MonthlyBudget
from solvers.domain.device import Device, GpuType, Node, PowerCap
from solvers.domain.policy import Policy
from solvers.domain.webhook import Webhook
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob
from solvers.errors import InputError, did_you_mean

DEFAULT = "default"
"""Name of the project and the policy that are always there."""

CHECKED_MAX = 2000
"""So many documents the API checks together."""
PROFILES_RANK = 5
"""Measurements come after the models and GPU types they are about, and before the workloads that need them."""


class Audience(Enum):
    """Whose tokens may do something: the cluster's only, a project's too, or nobody's but an administrator's."""

    CLUSTER = "cluster"
    PROJECTS = "projects"
    ADMINISTRATORS = "administrators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A field that names documents of another kind, one or several; empty it names none."""

    field: str
    kind: Kind
    keeps: bool = True
    """Whether what is named cannot be deleted meanwhile."""
    granted: str | None = None
    """A name that needs no document."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    name: str
    """One of them, as files and commands say it: `gpu-type`."""
    plural: str
    """Several of them, as in URLs: `gpu-types`."""
    domain: type[Any]
    """Class of the value whose plain form is the spec."""
    rank: int
    """Place in the order of application: what others refer to comes first. Deletion goes the other way."""
    key: tuple[str, ...] = ("name",)
    """Fields that name a document."""
    in_path: tuple[str, ...] = ()
    """What the key is called in paths, where not as in the document."""
    in_table: tuple[str, ...] = ()
    """What the key is called in the table, where not as in the document."""
    copied: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Columns beside the key that repeat a field of the spec."""
    references: tuple[Reference, ...] = ()
    readers: Audience = Audience.PROJECTS
    writers: Audience = Audience.CLUSTER
    deletable: bool = True
    said: str = ""
    """In a sentence, where not as in files."""
    has_default: bool = False
    """Whether one called `default` is always there."""
    listed: tuple[str, ...] = ()
    """Fields that a list shows beside the key; a dotted name walks into the document."""

    def __str__(self) -> str:
        return self.plural

    @property
    def words(self) -> str:
        return self.said or self.name.replace("-", " ")

    @property
    def noun(self) -> str:
        """One of them as an identifier: in operations of the API and in audit events."""
        return self.name.replace("-", "_")

    @property
    def table(self) -> str:
        """Several of them as an identifier: the table, and the field of a set of changes."""
        return self.plural.replace("-", "_")

    @property
    def path_key(self) -> tuple[str, ...]:
        return self.in_path or self.key

    @property
    def column_key(self) -> tuple[str, ...]:
        return self.in_table or self.key

    @property
    def in_project(self) -> bool:
        """Whether documents of this kind belong to a project; their keys are then (project, name)."""
        return self.key[0] == "project"

    @property
    def labelled(self) -> bool:
        """Whether documents of this kind have labels, and lists can be chosen from by them."""
        return "labels" in self.domain.__dataclass_fields__

    def named_in(self, value: object) -> Iterator[tuple[Kind, str, str]]:
        """Documents that a value of this kind names: of which kind, which one, and the pointer to where it says so."""
        for reference in self.references:
            named, pointer = getattr(value, reference.field), f"/{reference.field}"
            if isinstance(named, tuple):
                yield from ((reference.kind, name, f"{pointer}/{index}") for index, name in enumerate(named))
            elif named not in (None, reference.granted):
                yield reference.kind, named, pointer


GPU_TYPE = Kind(
    name="gpu-type",
    plural="gpu-types",
    said="GPU type",
    domain=GpuType,
    rank=0,
    listed=("product", "sm_count", "memory_mib", "tdp_w"),
)
MODEL = Kind(
    name="model",
    plural="models",
    domain=ModelVariant,
    rank=1,
    listed=("family", "parameters_million", "memory_mib_weights", "accuracy_pct"),
)
POLICY = Kind(
    name="policy",
    plural="policies",
    domain=Policy,
    rank=1,
    has_default=True,
    listed=("planners", "deadline_s", "utilisation_max", "cooldown_s"),
)
PROJECT = Kind(
    name="project",
    plural="projects",
    domain=Project,
    rank=0,
    writers=Audience.ADMINISTRATORS,
    has_default=True,
    listed=(
        "description",
        "quota_gpus",
        "quota_replicas_min",
        "quota_budget_usd_per_h",
        "quota_workloads",
        "priority_max",
    ),
)
POWER_CAP = Kind(
    name="power-cap",
    plural="power-caps",
    domain=PowerCap,
    rank=4,
    key=("scope", "subject"),
    readers=Audience.CLUSTER,
    listed=("limit_w",),
)
NODE = Kind(
    name="node",
    plural="nodes",
    domain=Node,
    rank=2,
    key=("id",),
    in_path=("node",),
    readers=Audience.CLUSTER,
    listed=("rack", "failure_domain", "region", "price_kind", "schedulable"),
)
DEVICE = Kind(
    name="device",
    plural="devices",
    domain=Device,
    rank=3,
    key=("id",),
    in_path=("uuid",),
    in_table=("uuid",),
    copied=MappingProxyType({"node_id": "node", "gpu_type": "gpu_type"}),
    # A node that goes takes its devices along.
    references=(Reference(field="node", kind=NODE, keeps=False), Reference(field="gpu_type", kind=GPU_TYPE)),
    readers=Audience.CLUSTER,
    deletable=False,
    listed=("node", "gpu_type", "index", "memory_mib", "mode", "schedulable"),
)
_OF_WORKLOADS = (
    Reference(field="project", kind=PROJECT),
    Reference(field="model", kind=MODEL),
    Reference(field="gpu_types_allowed", kind=GPU_TYPE),
    Reference(field="policy", kind=POLICY, granted=DEFAULT),
)
SERVICE = Kind(
    name="service",
    plural="services",
    domain=Service,
    rank=6,
    key=("project", "name"),
    references=(*_OF_WORKLOADS, Reference(field="alternatives", kind=MODEL)),
    writers=Audience.PROJECTS,
    listed=("model", "slo.latency_ms", "slo.percentile", "rate_rps_declared", "priority", "mode"),
)
JOB = Kind(
    name="job",
    plural="jobs",
    domain=TrainingJob,
    rank=6,
    key=("project", "name"),
    references=(*_OF_WORKLOADS, Reference(field="gpu_type_reference", kind=GPU_TYPE)),
    writers=Audience.PROJECTS,
    listed=("model", "iterations_total", "memory_mib", "priority", "mode"),
)
TASK = Kind(
    name="task",
    plural="tasks",
    domain=OfflineTask,
    rank=6,
    key=("project", "name"),
    references=_OF_WORKLOADS,
    writers=Audience.PROJECTS,
    listed=("model", "inputs_total", "slo.kind", "priority", "mode"),
)
WEBHOOK = Kind(
    name="webhook",
    plural="webhooks",
    domain=Webhook,
    rank=4,
    references=(Reference(field="project", kind=PROJECT),),
    readers=Audience.CLUSTER,
    writers=Audience.ADMINISTRATORS,
    listed=("url", "events", "project", "enabled"),
)
BUDGET = Kind(
    name="budget",
    plural="budgets",
    domain=MonthlyBudget,
    rank=6,
    references=(Reference(field="project", kind=PROJECT),),
    readers=Audience.CLUSTER,
    listed=("project", "label.key", "label.value", "usd_per_month"),
)
KINDS: tuple[Kind, ...] = (
    GPU_TYPE, MODEL, POLICY, PROJECT, POWER_CAP, NODE, DEVICE, SERVICE, JOB, TASK, WEBHOOK, BUDGET
)  # fmt: skip


def workloads() -> tuple[Kind, ...]:
    """Kinds whose documents belong to projects, and are planned."""
    return tuple(kind for kind in KINDS if kind.in_project)


def namesake(kind: Kind, holders: Iterable[Kind]) -> str | None:
    """What speaks against a workload whose name these kinds have in its project: plans, replicas and progress go by it,
    whatever the kind.
    """
    other = next((item for item in holders if item is not kind), None)
    if other is None:
        return None
    return f"a {other.words} has this name already: services, jobs and tasks of a project share their names"


def named(word: str) -> Kind:
    """The kind that a word means: singular or plural, any case, '_' for '-'. Raises InputError naming the known."""
    wanted = word.strip().lower().replace("_", "-")
    for kind in KINDS:
        if wanted in (kind.name, kind.plural):
            return kind
    raise InputError(f"unknown kind {word!r}{did_you_mean(wanted, names(), all_known=True)}")


def names() -> tuple[str, ...]:
    """What the kinds are called, in the order of application."""
    return tuple(kind.name for kind in sorted(KINDS, key=lambda kind: kind.rank))
