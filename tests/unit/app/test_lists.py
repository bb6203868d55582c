"""Every list of a document has a most: it is described, told by its field where a document is put, and never in the way
of reading what was stored before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from app import kinds
from app.kinds import Kind
from solvers.domain.device import USD_PER_H_MAX, Label, Taint
from solvers.domain.ids import DeviceId, GpuTypeName, ProjectName, ServiceId
from solvers.domain.policy import MEMORY_MARGIN_MIB_MAX, SECONDS_MAX, Pool
from solvers.domain.value import SHOWN_WORDS, overlong
from solvers.domain.worker import EnvironmentVariable, WorkerCommand
from solvers.domain.workload import Affinity, Project
from tests import builders

BOUNDED_OTHERWISE = {"objective", "energy_usd_per_kwh_by_hour"}
"""Terms stand there once each, and prices of 24 hours."""


def _lists(schema: Any, definitions: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Arrays and maps of free keys in a schema, by the name of the field."""
    if isinstance(schema, list):
        for part in schema:
            yield from _lists(part, definitions, name)
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield from _lists(definitions[schema["$ref"].rpartition("/")[2]], definitions, name)
    if schema.get("type") == "array" or isinstance(schema.get("additionalProperties"), dict):
        yield name, schema
    for field, part in schema.get("properties", {}).items():
        yield from _lists(part, definitions, field)
    for key in ("items", "anyOf", "allOf", "oneOf"):
        yield from _lists(schema.get(key), definitions, name)


@pytest.mark.parametrize("kind", kinds.KINDS, ids=str)
def test_every_list_of_a_document_says_how_long_it_may_be(kind: Kind) -> None:
    schema = TypeAdapter(kind.domain).json_schema()
    endless = {name for name, found in _lists(schema, schema.get("$defs", {}), "") if "maxItems" not in found}
    assert endless <= BOUNDED_OTHERWISE


def test_a_test_finds_what_has_no_end() -> None:
    schema = {"properties": {"a": {"anyOf": [{"type": "array"}]}, "b": {"additionalProperties": {"type": "string"}}}}
    assert [name for name, _ in _lists(schema, {}, "")] == ["a", "b"]


TAINTS = tuple(Taint(key=f"k{number}") for number in range(65))
LABELS = tuple(Label(key=f"k{number}", value="v") for number in range(33))
TYPES = tuple(GpuTypeName(f"t{number}") for number in range(257))
FOES = Affinity(avoid_services=tuple(ServiceId(f"a/b{number}") for number in range(257)))
WORKER = WorkerCommand(
    command=("run",), environment=tuple(EnvironmentVariable(name=f"A{number}", value="") for number in range(257))
)
POOL = Pool(devices=tuple(DeviceId(f"d{number}") for number in range(50_001)), gpu_types=TYPES)


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (builders.service(affinity=FOES), {"affinity/avoid_services": 256}),
        (builders.service(gpu_types_allowed=TYPES, tolerations=TAINTS), {"gpu_types_allowed": 256, "tolerations": 64}),
        (builders.service(worker=WORKER), {"worker/environment": 256}),
        (builders.job(tolerations=TAINTS), {"tolerations": 64}),
        (builders.task(gpu_types_allowed=TYPES), {"gpu_types_allowed": 256}),
        (builders.node("n", labels=LABELS, taints=TAINTS), {"labels": 32, "taints": 32}),
        (replace(builders.policy(), pool=POOL), {"pool/devices": 50_000, "pool/gpu_types": 256}),
        (Project(name=ProjectName("p"), environment_allowed=tuple(TYPES)), {"environment_allowed": 256}),
        (builders.service(gpu_types_allowed=TYPES[:256], tolerations=TAINTS[:64]), {}),
    ],
)
def test_longer_lists_are_read_and_told_where_they_are_put(item: object, told: dict[str, int]) -> None:
    found = {error.field: error.message for error in overlong(item)}
    assert found.keys() == told.keys()
    assert all(f"may list {most:,} at most, got " in found[field] for field, most in told.items())


TURNED = (Label(key="team", value="a\u202eb"),)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (Project(name=ProjectName("p"), description="a\u2066b"), "description"),
        (Project(name=ProjectName("p"), labels=TURNED), "labels/0/value"),
        (builders.node("n", labels=(Label(key="site", value="north"), *TURNED)), "labels/1/value"),
        (builders.node("n", region="\u200eeu"), "region"),
        (replace(builders.gpu_type("t4"), product="T4\x9b1m"), "product"),
    ],
)
def test_text_that_turns_its_direction_is_read_and_told_where_it_is_put(item: object, field: str) -> None:
    """Terminals and browsers would show another name than is stored."""
    (error,) = overlong(item)
    assert (error.field, error.message) == (field, f"{field.rpartition('/')[2]} {SHOWN_WORDS}")


def test_text_of_any_language_may_be_put() -> None:
    for said in ("زمین\u200cشناسی", "שלום", "👩\u200d🔬 at night", "un\u00a0peu"):
        assert list(overlong(Project(name=ProjectName("p"), description=said))) == []


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("stale_after_s", SECONDS_MAX),
        ("cooldown_s", SECONDS_MAX),
        ("gain_usd_per_h_min", USD_PER_H_MAX),
        ("memory_margin_mib", MEMORY_MARGIN_MIB_MAX),
    ],
)
def test_larger_numbers_are_read_and_told_where_they_are_put(field: str, most: float) -> None:
    """Beyond 64 bits, what was stored could not be put again, nor anything beside it."""
    assert list(overlong(builders.policy(**{field: most}))) == []
    (error,) = overlong(builders.policy(**{field: 1e308}))
    assert (error.field, error.message) == (field, f"{field} must lie between 0 and {most}, got 1e+308")
