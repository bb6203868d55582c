"""Writes the API's description and the JSON Schemas of stored values into `openapi/`:
`python -m benchmarks.same.described [directory]`.

It opens no connection. The files are committed; a test fails when they drift from the code.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from agents.wire import NodeTarget
from app.api import messages
from app.api.app import create_app
from app.api.deps import ApiContext
from app.clock import SystemClock
from app.services.beliefs.beliefs import Beliefs
from app.services.planning.deciding import BARE, Remark, RolledBack
from app.settings import Settings
from app.store.engine import Database
from benchmarks.same.describing import describe_api
from benchmarks.same.meanings import describe
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.change import Target, Transition
from solvers.domain.device import Device, GpuType, Node, PowerCap
from solvers.domain.plan import Plan, Proposal
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob
from solvers.errors import EngineError
from solvers.planners import registry

VALUES: tuple[type, ...] = (
    CycleRecord,
    Device,
    GpuType,
    ModelVariant,
    Node,
    NodeTarget,
    OfflineTask,
    Plan,
    Policy,
    PowerCap,
    Profile,
    ProfilePoint,
    Project,
    Proposal,
    Service,
    Snapshot,
    Target,
    TrainingJob,
    Transition,
)
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _NoPlanning:
    """Stands where planning is wired in a real process; describing the API plans nothing."""

    def propose(self, lane: Lane, actor: str) -> str:
        """Refuse."""
        raise EngineError(f"{actor} cannot plan in {lane.value}: this process only describes the API")

    def apply(self, plan_id: str, actor: str, terms: Remark = BARE) -> int:  # noqa: ARG002 - the port names it
        """Refuse."""
        raise EngineError(f"{actor} cannot apply {plan_id}: this process only describes the API")

    def rollback(self, wanted: int | None, hold_s: float, actor: str, terms: Remark = BARE) -> RolledBack:  # noqa: ARG002
        """Refuse."""
        raise EngineError(f"{actor} cannot roll back to {wanted}: this process only describes the API")


def files() -> Mapping[str, str]:
    """Text of every generated file by its path inside `openapi/`."""
    found = {"openapi.json": _text(describe_api(application()))}
    for kind in VALUES:
        found[f"schemas/{kind.__name__}.json"] = _described(TypeAdapter(kind).json_schema(), kind)
    for message in messages.MESSAGES.values():
        found[f"schemas/{message.kind.__name__}.json"] = _described(message.json_schema(), message.kind)
    return found


def write(directory: Path) -> None:
    """Write all files and remove schemas that are not generated any more."""
    fresh = files()
    (directory / "schemas").mkdir(parents=True, exist_ok=True)
    for path in (directory / "schemas").glob("*.json"):
        if f"schemas/{path.name}" not in fresh:
            path.unlink()
    for name, text in fresh.items():
        (directory / name).write_text(text, encoding="utf-8")


def application() -> FastAPI:
    """The API over nothing: it can be described, and is never served."""
    database = Database("postgresql://localhost/never-opened")
    context = ApiContext(
        settings=Settings(),
        database=database,
        clock=SystemClock(),
        planning=_NoPlanning(),
        beliefs=Beliefs(database),
        propose=registry.propose,
    )
    return create_app(context)


def _described(schema: dict[str, Any], kind: type) -> str:
    describe({**schema.get("$defs", {}), kind.__name__: schema}, [kind])
    return _text({"$schema": DIALECT, "title": kind.__name__, **schema})


def _text(plain: dict[str, Any]) -> str:
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same.described", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("openapi"))
    write(parser.parse_args().folder)
