"""Looking changes nothing: every GET there is, by everybody, leaves every table as it was."""

from __future__ import annotations

import hashlib

import pytest
from psycopg import sql

from agents.wire import encode
from tests.integration.api.filled import fill
from tests.integration.api.routes import Requests, routes_of
from tests.integration.api.world import DEVICE, NODE, OWN, WHO, World
from tests.integration.store.samples import report

pytestmark = pytest.mark.integration

EXCEPT = {"tokens": "last_used_at"}
"""What a GET does write: when a token was last used."""
SERIES = f"/console/telemetry?subject=services/{OWN}/vision&field=offered_rps"
CONSOLE = (
    "/", "/services", f"/services/{OWN}/vision", "/plans", "/fleet", f"/nodes/{NODE}", f"/gpus/{DEVICE}", "/what-if",
    "/costs", "/costs.csv", "/work", "/models", "/policies", "/audit", "/settings", "/console/events", SERIES,
    "/static/console.css", "/static/console.js", "/v1/openapi.json", "/docs",
)  # fmt: skip
_RELATIONS = """
    SELECT relname, relkind FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'm', 'S') AND NOT relispartition
    ORDER BY relname
"""


def digests(world: World) -> dict[str, str]:
    """A digest of the rows of every table, and of the standing of every sequence."""
    found = {}
    with world.database.raw() as connection:
        for name, kind in connection.execute(_RELATIONS).fetchall():
            row = sql.SQL("last_value" if kind == "S" else "to_jsonb(t)")
            if name in EXCEPT:
                row = sql.SQL("to_jsonb(t) - {}").format(sql.Literal(EXCEPT[name]))
            query = sql.SQL("SELECT ({})::text FROM {} AS t ORDER BY 1").format(row, sql.Identifier(name))
            rows = [text for (text,) in connection.execute(query).fetchall()]
            found[name] = f"{len(rows)} rows {hashlib.sha256(repr(rows).encode()).hexdigest()}"
    return found


def _filled_tables(found: dict[str, str]) -> set[str]:
    return {name for name, told in found.items() if not told.startswith("0 rows")}


def test_no_get_writes_anything(world: World, requests: Requests) -> None:
    fill(world)
    gets = [route for route in routes_of(world) if route.method == "GET"]
    # Some paths name what must be made first.
    paths = {route.operation: requests.request(route)[0] for route in gets}
    assert len(paths) > 40
    cookies = {who: world.cookie(who) for who in WHO}
    before = digests(world)
    assert _filled_tables(before) >= {
        "services", "jobs", "tasks", "nodes", "devices", "plans", "cycles", "target_history", "receipts",
        "sample_shapes", "node_samples", "rate_samples", "profile_points", "events",
    }  # fmt: skip
    answered: dict[str, set[int]] = {operation: set() for operation in paths}
    for operation, path in paths.items():
        for who in (*WHO, NODE, None):
            answered[operation].add(world.call("GET", path, who).status_code)
    for path in CONSOLE:
        for who in ("operator", "own viewer", "node"):
            answered.setdefault(path, set()).add(world.call("GET", path, None, headers=cookies[who]).status_code)
    assert [operation for operation, statuses in answered.items() if 200 not in statuses] == []
    assert {status for statuses in answered.values() for status in statuses} == {200, 401, 403, 404}
    assert digests(world) == before


def test_the_digests_would_notice(world: World) -> None:
    fill(world)
    before = digests(world)
    sent = world.call("POST", "/v1/agent/reports", NODE, plain=encode(report(NODE, 2, boot_id="boot-1")))
    assert sent.is_success
    after = digests(world)
    changed = {name for name in before if before[name] != after[name]}
    assert {"node_states", "report_heads", "report_log"} <= changed
    assert "tokens" not in changed
