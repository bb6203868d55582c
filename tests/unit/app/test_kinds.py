"""One table of declarative kinds: whoever needs to know them reads it, and another kind is another entry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields as fields_of
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from sqlalchemy.orm import Session

import headroom_client
from app import kinds
from app.api import openapi
from app.api.routers.documents import router_for
from app.cli.declare import kind_and_key
from app.cli.planning import read_changes
from app.client.documents import read_documents
from app.errors import FieldsError, ReferencedError
from app.kinds import Kind, Reference
from app.services.declared import documents as declared
from app.services.declared.ownership import Estates
from app.store import documents
from app.store.tables import TABLES
from benchmarks.same.describing import describe_api
from headroom_client import Client
from solvers.domain.codec import to_plain
from solvers.domain.value import value

APP = Path(__file__).resolve().parents[3] / "app"
LISTED_MAX = 6
"""A summary of the fleet or a bill speaks of this many kinds without being a table of them."""


@value
class Zone:
    """A toy: what an operator would declare next."""

    name: str
    model: str
    beside: tuple[str, ...] = ()


ZONE = Kind(
    name="quiet-zone",
    plural="quiet-zones",
    domain=Zone,
    rank=2,
    references=(Reference(field="model", kind=kinds.MODEL), Reference(field="beside", kind=kinds.NODE, keeps=False)),
    listed=("model",),
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, ZONE))
    monkeypatch.setitem(headroom_client.wire.KINDS, ZONE.name, headroom_client.wire.KindPlace(ZONE.plural, ZONE.key))
    before = dict(openapi.BODIES)
    yield
    openapi.BODIES.clear()
    openapi.BODIES.update(before)


def test_another_kind_has_routes() -> None:
    described = describe_api(openapi.Described(routes=router_for(ZONE).routes))["paths"]
    assert set(described["/v1/quiet-zones/{name}"]) == {"get", "put", "patch", "delete"}
    assert described["/v1/quiet-zones"]["get"]["operationId"] == "list_quiet_zones"
    assert described["/v1/quiet-zones/{name}"]["put"]["summary"] == "Create or replace a quiet zone"


def test_another_kind_is_put_by_the_client() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        return httpx.Response(201, json={})

    with Client("http://control.test", "t", transport=httpx.MockTransport(answer)) as client:
        client.put("quiet-zone", {"name": "a", "model": "m"})
    assert seen == ["PUT /v1/quiet-zones/a"]


def test_another_kind_has_words_in_commands_and_files(tmp_path: Path) -> None:
    assert kind_and_key(["Quiet_Zones/a"]) == (ZONE, ("a",))
    file = tmp_path / "zones.yaml"
    file.write_text("kind: device\nid: d\n---\nkind: quiet-zone\nname: a\n---\nkind: model\nname: m\n")
    assert [item.label for item in read_documents([str(file)])] == ["model/m", "quiet-zone/a", "device/d"]
    assert read_changes([str(file)])["quiet_zones"] == [{"name": "a"}]


def test_another_kind_is_kept_from_naming_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {(kinds.MODEL, ("m",)), (kinds.NODE, ("n",))}
    monkeypatch.setattr(documents, "find", lambda _, kind, key: SimpleNamespace() if (kind, key) in known else None)
    monkeypatch.setattr(documents, "names", lambda _, kind: ["of"] if kind is kinds.NODE else ["m"])
    estates = Estates(cast("Session", None))
    declared.check_references(estates, ZONE, Zone(name="a", model="m", beside=("n",)), "default")
    with pytest.raises(FieldsError) as caught:
        declared.check_references(estates, ZONE, Zone(name="a", model="gone", beside=("n", "off")), "default")
    assert [(item.pointer, item.detail) for item in caught.value.faults] == [
        ("/model", "there is no model gone"),
        ("/beside/1", "there is no node off; did you mean of?"),
    ]


def test_what_another_kind_names_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = SimpleNamespace(key=("a",), spec=to_plain(Zone(name="a", model="m", beside=("n",))))
    monkeypatch.setattr(documents, "all_specs", lambda _, kind: [zone] if kind is ZONE else [])
    monkeypatch.setattr(declared.targets, "node_document", lambda *_: None)
    session = cast("Session", None)
    with pytest.raises(ReferencedError, match="model m is still used by quiet zone a"):
        declared.check_unused(session, kinds.MODEL, ("m",))
    declared.check_unused(session, kinds.NODE, ("n",))


def test_every_kind_says_what_its_values_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [item for item in vars(kinds).values() if isinstance(item, Kind)] == list(kinds.KINDS) == list(TABLES)
    for kind in kinds.KINDS:
        fields = {item.name for item in fields_of(kind.domain)}
        used = {*kind.key, *kind.copied.values(), *(item.field for item in kind.references)}
        used |= {name.partition(".")[0] for name in kind.listed}
        assert used <= fields
        assert all(item.kind.rank <= kind.rank for item in kind.references)
        assert {*kind.column_key, *kind.copied} <= set(TABLES[kind].c.keys())


def most_named(source: str) -> int:
    """How many kinds are named in one literal or one text of a module, at most."""
    words = {word: kind.name for kind in kinds.KINDS for word in (kind.name, kind.plural, kind.table, kind.noun)}
    constants = {name: item.name for name, item in vars(kinds).items() if isinstance(item, Kind)}
    most = 0
    for place in ast.walk(ast.parse(source)):
        if isinstance(place, ast.Constant) and isinstance(place.value, str):
            texts = re.findall(r"FROM ([\w-]+)", place.value)
            names = set[str]()
        elif isinstance(place, ast.Dict | ast.Tuple | ast.List | ast.Set | ast.Match):
            inside = list(ast.walk(place))
            texts = [node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            attributes = {node.attr for node in inside if isinstance(node, ast.Attribute)}
            names = {constants[name] for name in attributes & constants.keys()}
        else:
            continue
        most = max(most, len(names | {words[text] for text in texts if text in words}))
    return most


def test_nobody_else_lists_the_kinds() -> None:
    paths = [path for path in sorted(APP.rglob("*.py")) if path != APP / "kinds.py"]
    found = {str(path.relative_to(APP)): most_named(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: most for path, most in found.items() if most > LISTED_MAX} == {}


@pytest.mark.parametrize(
    "source",
    [
        "A = {'gpu-type': 0, 'model': 1, 'policy': 2, 'node': 3, 'device': 4, 'job': 5, 'task': 6}",
        "A = ('gpu_types', 'models', 'policies', 'nodes', 'devices', 'jobs', 'tasks')",
        "A = [kinds.GPU_TYPE, kinds.MODEL, kinds.POLICY, kinds.NODE, kinds.DEVICE, kinds.JOB, kinds.TASK]",
        "A = 'FROM gpu_types, FROM models, FROM policies, FROM nodes, FROM devices, FROM jobs, FROM tasks'",
    ],
)
def test_a_second_table_would_be_seen(source: str) -> None:
    assert most_named(source) == 7 > LISTED_MAX
