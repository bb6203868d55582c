"""What a service found is what the API describes and answers: every answer's record keeps to its own description, and
its JSON is what it was when each answer was written twice.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from fastapi.encoders import jsonable_encoder
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter

from app.api.openapi import Route
from app.records import plain, record, record_of
from app.store.plans import PlanSummary, StoredPlan
from benchmarks.same.described import application
from solvers.cycle.record import CycleRecord
from solvers.domain.codec import to_plain
from solvers.domain.plan import Plan
from solvers.domain.workload import Slo
from tests import builders

MOMENT = datetime(2026, 3, 1, 12, 30, 5, 250, tzinfo=timezone(timedelta(hours=2)))
NUMBERS: Mapping[object, object] = {int: 3, float: 5.0, str: "word", bool: True, datetime: MOMENT, Any: {"a": [1, "b"]}}


def routes_of(router: Any) -> Iterator[APIRoute]:
    """Every route, also of routers within routers."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from routes_of(route.original_router)


def answered() -> dict[str, type]:
    """Records that a route of the API answers, alone, listed, or inside another one; by name."""
    routes = routes_of(application())
    waiting: list[Any] = [(item.described() if isinstance(item, Route) else item).response_model for item in routes]
    found: dict[str, type] = {}
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            waiting += [field.annotation for field in kind.model_fields.values()]
        elif is_dataclass(kind) and isinstance(kind, type):
            if kind.__module__.startswith("app.") and kind.__name__ not in found:
                found[kind.__name__] = kind
                waiting += typing.get_type_hints(kind).values()
        else:
            waiting += typing.get_args(kind)
    return found


def sample(kind: Any) -> Any:
    """Some value of a type, as full as it can be."""
    if isinstance(kind, typing.NewType):
        return sample(kind.__supertype__)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in NUMBERS:
        return NUMBERS[kind]
    if origin is typing.Literal:
        return parts[0]
    if origin is tuple:
        return (sample(parts[0]), sample(parts[0]))
    if origin in (dict, Mapping) or kind is dict:
        return {"key": sample(parts[1])}
    if origin in (typing.Union, types.UnionType):
        return None if parts[0] is CycleRecord else sample(parts[0])
    if issubclass(kind, Enum):
        return list(kind)[-1]  # the first is a late field's default, and then it is left out
    if kind is Slo:
        return builders.slo()
    return kind(**{name: sample(hint) for name, hint in typing.get_type_hints(kind).items()})


RECORDS = answered()


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_an_answer_keeps_to_its_description(name: str) -> None:
    made = sample(RECORDS[name])
    read = TypeAdapter(RECORDS[name]).validate_json(json.dumps(plain(made)))
    assert plain(read) == plain(made)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_an_answer_is_the_json_that_it_was(name: str) -> None:
    made = sample(RECORDS[name])
    assert plain(made) == jsonable_encoder(asdict(made))


def test_answers_are_described_once() -> None:
    assert len(RECORDS) > 40
    assert not (Path(__file__).parents[3] / "app" / "api" / "schemas").exists()


def test_no_source_is_read_before_somebody_asks_for_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its docstrings are read a module at a time then; a class at a time took a fifth of the first visit."""

    def refuse(kind: object) -> None:
        raise AssertionError(f"the source of {kind} is read")

    monkeypatch.setattr(inspect, "getsourcelines", refuse)
    TypeAdapter(PlanSummary)


def test_values_of_the_core_stay_canonical_and_moments_keep_their_offset() -> None:
    @record
    class Both:
        """A record of its own numbers and the core's."""

        at: datetime
        usd: float
        slo: Slo

    made = Both(at=MOMENT, usd=5.0, slo=builders.slo(60.0))
    assert json.dumps(plain(made)["usd"]) == "5.0"
    assert json.dumps(plain(made)["slo"]) == json.dumps(to_plain(builders.slo(60.0)))
    assert plain(made)["at"] == "2026-03-01T12:30:05.000250+02:00"


def test_a_record_of_another_keeps_what_it_says() -> None:
    summary = sample(PlanSummary)
    stored = record_of(StoredPlan, summary, plan=sample(Plan), gap_told="far")
    assert {field.name: getattr(stored, field.name) for field in fields(PlanSummary)} == {
        field.name: getattr(summary, field.name) for field in fields(PlanSummary)
    }
