"""The package that Python programs import: it stands alone, whatever else is called `app`, and knows every kind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import headroom_client
from app import kinds
from headroom_client import AsyncClient, Client, WrongUseError
from headroom_client.calls import Calls, Method
from headroom_client.wire import KINDS
from tests.unit.app.client.awaited import Awaited

ALONE = """
import importlib.abc, sys

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused())
import headroom_client
with headroom_client.Client("http://127.0.0.1:9", "t", attempts_max=1) as client:
    try:
        client.put("service", {{"project": "a", "name": "b"}})
    except headroom_client.UnreachableError as error:
        print(error.message)
print(sorted(name for name in {refused!r} if name in sys.modules))
"""
PRODUCT = ("app", "solvers", "agents", "lab")
SERVER = (
    "yaml",
    "typer",
    "rich",
    "pydantic",
    "fastapi",
    "starlette",
    "sqlalchemy",
    "psycopg",
    "numpy",
    "scipy",
    "ortools",
)


def test_it_needs_nothing_of_the_product_and_of_others_httpx_alone(tmp_path: Path) -> None:
    (tmp_path / "headroom_client").symlink_to(Path(headroom_client.__file__).parent)
    code = ALONE.format(refused=(*PRODUCT, *SERVER))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told, loaded = done.stdout.splitlines()
    assert told.startswith("cannot reach http://127.0.0.1:9")
    assert loaded == "[]"


def test_its_kinds_are_the_servers() -> None:
    assert {name: (place.plural, place.key) for name, place in KINDS.items()} == {
        kind.name: (kind.plural, kind.key) for kind in kinds.KINDS
    }


def test_wrong_use_is_told_before_anything_is_sent() -> None:
    with Client("http://127.0.0.1:9", "t") as client, pytest.raises(WrongUseError, match="did you mean service"):
        client.get("servise", "a", "b")
    with pytest.raises(ValueError, match="must start with http"):
        Client("127.0.0.1", "t")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1:99999", "names port 99999; ports are 1 to 65535"),
        ("http://127.0.0.1:0", "names port 0; ports are 1 to 65535"),
        ("http://127.0.0.1:-1", "names port -1; ports are 1 to 65535"),
        ("http://127.0.0.1:abc", "cannot be read: Invalid port: 'abc'"),
        ("http://127.0.0.1:8080 ", "has a blank in it"),
        ("http://a b", "has a blank in it"),
        ("http://", "names no host"),
        ("http://a..b:8080", "names a host that no machine can have"),
        (f"http://{'a' * 70}.example", "names a host that no machine can have"),
        ("http://127.0.0.1:8080/?a=b", "has more behind its path"),
        ("http://127.0.0.1:8080/#a", "has more behind its path"),
        ("http://user:secret@127.0.0.1:8080", "of 127.0.0.1 holds a user or a password"),
    ],
)
def test_an_address_at_which_nothing_can_be_asked_is_wrong_use(address: str, told: str) -> None:
    with pytest.raises(WrongUseError) as raised:
        Client(address, "t")
    assert told in raised.value.message
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1", "http://[::1]:65535/", "https://a.example/headroom", "http://b\u00fccher.example"]
)
def test_an_address_may_have_a_proxys_path(address: str) -> None:
    with Client(address, "t") as client:
        assert client.server == address.rstrip("/")


# -- what both ask, beside the description of the API -----------------------------------------------------------------

DESCRIBED = json.loads((Path(__file__).resolve().parents[2] / "openapi" / "openapi.json").read_text())["paths"]
PLAN = f"sha256:{'0' * 64}"
NODE = {"id": "n", "labels": {}}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "apply_plan": ((PLAN,), {"comment": "c", "if_match": "1"}),
    "budget_forecasts": ((), {}),
    "call": (("GET", "/v1/fleet"), {}),
    "check": (([{"kind": "node", "document": NODE}],), {}),
    "costs": ((), {"by": "project", "accounting": "share"}),
    "create_profile_run": (({"service": "a/b"},), {}),
    "create_token": (({"name": "t", "role": "viewer"},), {}),
    "cycle": (("c",), {}),
    "cycle_states": (("c",), {}),
    "delete": (("service", "a", "b"), {}),
    "delete_profile_run": ((1,), {}),
    "diff_plan": ((PLAN,), {}),
    "drain": (("n", "why"), {}),
    "drained": (("n",), {}),
    "explain": ((PLAN,), {"workload": "a/b"}),
    "fleet": ((), {}),
    "focus": ((), {"project": "p"}),
    "get": (("power-cap", "node", "n"), {}),
    "health": ((), {}),
    "import_profiles": ((), {"csv": "a,b", "skip_bad": True}),
    "items": (("services",), {"project": "p", "label": ["a=b", "c"]}),
    "logs": (("a", "b"), {"tail": 3, "follow": True}),
    "next_points": (("m", "g", 3), {}),
    "patch": (("node", ("n",), {"labels": None}), {"if_match": "1"}),
    "plan": (({"lane": "act"},), {}),
    "predict": (([{"model": "m"}],), {}),
    "profile_run": ((1,), {}),
    "put": (("node", NODE), {"only_create": True}),
    "ready": ((), {}),
    "reject_plan": ((PLAN, "no"), {}),
    "resume_planning": ((), {}),
    "revoke_node": (("n",), {}),
    "revoke_token": (("t",), {}),
    "roll_back": (({"generation": 3},), {}),
    "routes": (("7", "a/b"), {}),
    "sign_in_link": ((), {}),
    "simulate": (({"changes": {}},), {}),
    "snapshot": ((), {}),
    "stored_plan": ((PLAN,), {}),
    "submit_task": (({"model": "m"},), {}),
    "target": ((), {}),
    "task_status": (("a", "b"), {}),
    "uncordon": (("n",), {}),
    "watch_routes": (("a/b",), {}),
}


def asked(kind: type[Client | AsyncClient], name: str) -> httpx.Request:
    """What one call sends."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        body = {"items": [], "path": "/x"}
        return httpx.Response(200, json=body)

    words, terms = CALLS[name]
    transport = httpx.MockTransport(answer)
    made: Any = Client("http://c", "t", transport=transport)
    if kind is AsyncClient:
        made = Awaited(AsyncClient("http://c", "t", transport=transport))
    with made as client:
        found = getattr(client, name)(*words, **terms)
        if name in ("items", "logs", "watch_routes"):
            list(found)
    (request,) = seen
    return request


def test_every_call_is_tried_here() -> None:
    assert sorted(CALLS) == sorted(name for name, found in vars(Calls).items() if isinstance(found, Method))


@pytest.mark.parametrize("name", CALLS)
def test_both_clients_ask_the_same_as_the_api_is_described(name: str) -> None:
    waits, awaited = (asked(kind, name) for kind in (Client, AsyncClient))
    assert (waits.method, waits.url, waits.content) == (awaited.method, awaited.url, awaited.content)
    own = ("idempotency-key", "user-agent")
    assert [pair for pair in waits.headers.items() if pair[0] not in own] == [
        pair for pair in awaited.headers.items() if pair[0] not in own
    ]
    (path,) = (path for path in DESCRIBED if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", path), waits.url.path))
    operation = DESCRIBED[path][waits.method.lower()]
    known = {
        where: {item["name"].lower() for item in operation.get("parameters", ()) if item["in"] == where}
        for where in ("query", "header")
    }
    assert set(waits.url.params) <= known["query"]
    assert {"if-match", "if-none-match"} & {*waits.headers} <= known["header"]
    if waits.content:
        assert waits.headers["content-type"] in operation["requestBody"]["content"]
    else:
        assert not operation.get("requestBody", {}).get("required")
