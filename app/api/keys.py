"""Keys in paths: which parts a document's key has, what each may look like, and where the body repeats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import Path

from solvers.domain.device import PowerScope
from solvers.domain.value import NAME_PATTERN

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

Name = Annotated[str, Path(pattern=NAME_PATTERN, max_length=63, description="Name, as in the document.")]
Project = Annotated[str, Path(pattern=NAME_PATTERN, max_length=63, description="Project of the document.")]
NodeKey = Annotated[str, Path(pattern=NAME_PATTERN, max_length=63, description="Node id.")]
Uuid = Annotated[str, Path(pattern=ID_PATTERN, max_length=96, description="GPU or MIG UUID.")]
PlanKey = Annotated[str, Path(pattern=DIGEST_PATTERN, description="Plan id: the digest of its canonical form.")]
Opaque = Annotated[str, Path(pattern=ID_PATTERN, max_length=96, description="Id, as the API gave it.")]
Scope = Annotated[PowerScope, Path(description="What the cap covers.")]
Subject = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=96, description="What is capped.")]


def by_name(name: Name) -> tuple[str, ...]:
    """Key of a named document."""
    return (name,)


def by_project_and_name(project: Project, name: Name) -> tuple[str, ...]:
    """Key of a workload."""
    return (project, name)


def by_node(node: NodeKey) -> tuple[str, ...]:
    """Key of a node."""
    return (node,)


def by_uuid(uuid: Uuid) -> tuple[str, ...]:
    """Key of a device."""
    return (uuid,)


def by_scope_and_subject(scope: Scope, subject: Subject) -> tuple[str, ...]:
    """Key of a power cap."""
    return (scope.value, subject)


BY_PATH: Mapping[tuple[str, ...], Callable[..., tuple[str, ...]]] = {
    ("name",): by_name,
    ("project", "name"): by_project_and_name,
    ("node",): by_node,
    ("uuid",): by_uuid,
    ("scope", "subject"): by_scope_and_subject,
}
"""How a key is read by what its parts are called in the path."""
