"""What a part of a picture keeps: the rules that stand beside a picture's fields, and cutting by them.

There is no field without a rule. Which devices and workloads make a part, and what of shared caps and quotas is left to
it, is for whoever cuts to say.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from solvers.domain.device import Offer, PowerCap
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Assignment
from solvers.domain.policy import Policy
from solvers.domain.workload import Project

T = TypeVar("T")


class FieldRule(Enum):
    """What becomes of a field."""

    WHOLE = "whole"
    """It stays as it is."""
    SAID = "said"
    """Whoever cuts says what it is."""
    CUT = "cut"
    """It is a value with rules of its own."""


class Axis(Enum):
    """What a part is cut along: its devices, its workloads, and what follows from them."""

    NODES = "nodes"
    DEVICES = "devices"
    GPU_TYPES = "gpu types"
    WORKLOADS = "workloads"
    REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class Along:
    """Of a field's items those stay whose attribute of this name is in the part."""

    axis: Axis
    attribute: str


Keeps = FieldRule | Along


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One part: what belongs to it, and the fields that only whoever cuts can say, under their own names."""

    devices: frozenset[DeviceId]
    workloads: frozenset[str]
    assignments: tuple[Assignment, ...]
    """What stands in the part; its workloads are in the part, too."""
    policy: Policy
    policies: tuple[Policy, ...] = ()
    projects: tuple[Project, ...]
    power_caps: tuple[PowerCap, ...]
    offers: tuple[Offer, ...]


@cache
def rules(kind: type) -> Mapping[str, Keeps]:
    """The rule of every field. Raises TypeError for a field without exactly one."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {}
    for field in fields(kind):
        told = [item for item in getattr(hints[field.name], "__metadata__", ()) if isinstance(item, Keeps)]
        if len(told) != 1:
            raise TypeError(f"{kind.__name__}.{field.name} has {len(told)} rules of what a part keeps of it")
        found[field.name] = told[0]
    return found


def cut_by(item: T, cut: Cut, part: Mapping[Axis, Collection[str]]) -> T:
    """What a part keeps of a value. `part`: what belongs to it, along every axis."""
    picture: Any = item
    changed: dict[str, Any] = {}
    kind: type = type(picture)
    for name, rule in rules(kind).items():
        match rule:
            case Along(axis, attribute):
                kept = part[axis]
                changed[name] = tuple(each for each in getattr(picture, name) if getattr(each, attribute) in kept)
            case FieldRule.SAID:
                changed[name] = getattr(cut, name)
            case FieldRule.CUT:
                changed[name] = cut_by(getattr(picture, name), cut, part)
    found: T = replace(picture, **changed)
    return found
