"""Every declarative kind at the edge: its route, its key, who may read and write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter

from app.api import keys, rules
from app.api.routers.documents import Noun, documents_router
from app.store.documents import Kind
from solvers.domain.device import Device, GpuType, Node, PowerCap
from solvers.domain.policy import Policy
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob

_NAMED = {"path": "{name}", "key": keys.by_name, "key_fields": ("name",)}
_OWNED = {"path": "{project}/{name}", "key": keys.by_project_and_name, "key_fields": ("project", "name")}
_DEVICE = {"path": "{uuid}", "key": keys.by_uuid, "key_fields": ("id",)}
_SHARED = {"read": rules.SHARED_READ, "write": rules.CLUSTER_WRITE}
_CLUSTER = {"read": rules.CLUSTER_READ, "write": rules.CLUSTER_WRITE}
_PROJECT = {"read": rules.SHARED_READ, "write": rules.PROJECT_WRITE}


def _noun(kind: Kind, model: type, one: str, *facts: Mapping[str, Any], **more: Any) -> Noun:
    merged: dict[str, Any] = {"many": kind.value.replace("-", "_")}
    for part in (*facts, more):
        merged |= part
    return Noun(kind=kind, model=model, route=kind.value, one=one, **merged)


NOUNS = (
    _noun(Kind.GPU_TYPE, GpuType, "gpu_type", _NAMED, _SHARED),
    _noun(Kind.MODEL, ModelVariant, "model", _NAMED, _SHARED),
    _noun(Kind.POLICY, Policy, "policy", _NAMED, _SHARED),
    _noun(Kind.PROJECT, Project, "project", _NAMED, read=rules.SHARED_READ, write=rules.CLUSTER_ADMIN),
    _noun(
        Kind.POWER_CAP,
        PowerCap,
        "power_cap",
        _CLUSTER,
        path="{scope}/{subject}",
        key=keys.by_scope_and_subject,
        key_fields=("scope", "subject"),
    ),
    _noun(Kind.NODE, Node, "node", _CLUSTER, path="{node}", key=keys.by_node, key_fields=("id",)),
    _noun(Kind.DEVICE, Device, "device", _CLUSTER, _DEVICE, deletable=False),
    _noun(Kind.SERVICE, Service, "service", _OWNED, _PROJECT),
    _noun(Kind.JOB, TrainingJob, "job", _OWNED, _PROJECT),
    _noun(Kind.TASK, OfflineTask, "task", _OWNED, _PROJECT),
)


def nouns_router() -> APIRouter:
    """The routes of all kinds."""
    router = APIRouter()
    for noun in NOUNS:
        router.include_router(documents_router(noun))
    return router
