"""Tokens and repeatable POSTs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.orm import Session

from app import kinds
from app.clock import SystemClock
from app.kinds import Kind
from app.services.declared.tokens import Deed, TokenRequest, Tokens
from app.services.planning.planning import Leader
from app.settings import Settings
from app.store import documents, idempotency
from app.store.tokens import Role
from app.workers.scheduler import Housekeeping
from solvers.domain.ids import ProjectName
from solvers.domain.value import SHOWN_WORDS
from solvers.domain.workload import Project
from solvers.errors import FieldError
from tests.integration.api.world import CLUSTER, OWN, World, spec
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def test_a_secret_is_shown_once_and_stored_never(world: World) -> None:
    made = world.call("POST", "/v1/tokens", plain={"name": "ci", "role": "viewer", "project": OWN, "ttl_s": 60})
    assert made.status_code == 201
    issued = made.json()
    world.secrets["ci"] = issued["secret"]
    assert world.call("GET", "/v1/services", "ci").status_code == 200
    read = world.call("GET", made.headers["location"]).json()
    assert "secret" not in read
    assert read["expires_at"] is not None
    with world.database.raw() as connection:
        rows = connection.execute("SELECT secret_hash FROM tokens").fetchall()
    assert len(rows) > 5
    assert all(issued["secret"].encode() not in bytes(row[0]) for row in rows)


def test_a_revoked_token_is_out_at_once(world: World) -> None:
    issued = world.call("POST", "/v1/tokens", plain={"name": "gone", "role": "viewer"}).json()
    world.secrets["gone"] = issued["secret"]
    assert world.call("GET", "/v1/nodes", "gone").status_code == 200
    assert world.call("DELETE", f"/v1/tokens/{issued['id']}").status_code == 204
    assert world.call("GET", "/v1/nodes", "gone").status_code == 401
    assert world.call("DELETE", f"/v1/tokens/{issued['id']}").status_code == 204
    events = world.call("GET", f"/v1/events?subject=tokens/{issued['id']}").json()["items"]
    assert [event["name"] for event in events] == ["token.revoked", "token.created"]


def test_tokens_that_ended_long_ago_are_forgotten_but_for_their_names(world: World) -> None:
    """Every sign-in and every node that joins makes one."""
    made = {
        name: world.call("POST", "/v1/tokens", plain={"name": name, "role": "viewer", "ttl_s": 3600}).json()["id"]
        for name in ("ann by sign-in", "revoked", "just over", "good")
    }
    world.joined("gpu-9")
    with world.database.raw() as connection:
        (found,) = connection.execute("SELECT id FROM tokens WHERE purpose = 'node' AND subject = 'gpu-9'")
        ends = "UPDATE tokens SET {} = now() - make_interval(days => %s) WHERE id = %s"
        connection.execute(ends.format("expires_at"), (31, made["ann by sign-in"]))
        connection.execute(ends.format("revoked_at"), (31, made["revoked"]))
        connection.execute(ends.format("revoked_at"), (31, found[0]))
        connection.execute(ends.format("expires_at"), (29, made["just over"]))
    Housekeeping(world.database, Settings(cluster=CLUSTER), SystemClock()).retain(Leader(holder="test", fencing=1))
    gone, kept = {made["ann by sign-in"], made["revoked"], found[0]}, {made["just over"], made["good"]}
    listed = {item["id"] for item in world.call("GET", "/v1/tokens?limit=200").json()["items"]}
    assert (listed & gone, listed & kept) == (set(), kept)
    assert world.call("GET", f"/v1/tokens/{made['revoked']}").status_code == 404
    # The trail goes on saying who it was.
    names = Tokens(world.database).name_of
    assert [names(f"token:{made[name]}") for name in ("ann by sign-in", "good")] == ["ann by sign-in", "good"]
    assert names(f"token:{found[0]}") == "node gpu-9"


def test_an_expired_token_is_out(world: World) -> None:
    issued = world.call("POST", "/v1/tokens", plain={"name": "brief", "role": "viewer", "ttl_s": 3600}).json()
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET expires_at = now() - interval '1 second' WHERE id = %s", (issued["id"],))
    world.secrets["brief"] = issued["secret"]
    assert world.call("GET", "/v1/nodes", "brief").status_code == 401
    assert world.call("GET", f"/v1/tokens/{issued['id']}").json()["state"] == "expired"


def test_tokens_that_are_good_keep_their_project_and_expired_ones_do_not(world: World) -> None:
    assert world.call("PUT", "/v1/projects/brief", plain=spec(Project(name=ProjectName("brief")))).status_code == 201
    wanted = {"name": "brief", "role": "viewer", "project": "brief", "ttl_s": 3600}
    issued = world.call("POST", "/v1/tokens", plain=wanted).json()
    assert world.call("DELETE", "/v1/projects/brief").status_code == 409
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET expires_at = now() - interval '1 second' WHERE id = %s", (issued["id"],))
    assert world.call("DELETE", "/v1/projects/brief").status_code == 204


def test_a_project_does_not_go_while_a_token_for_it_is_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the token would be good for whoever makes a project of that name."""
    assert world.call("PUT", "/v1/projects/brief", plain=spec(Project(name=ProjectName("brief")))).status_code == 201
    find, rivals = documents.find, ThreadPoolExecutor(1)
    deleted: list[Future[int]] = []

    def found_then_deleted(session: Session, kind: Kind, key: documents.Key, **how: bool) -> documents.Stored | None:
        found = find(session, kind, key, **how)
        if (kind, key) == (kinds.PROJECT, ("brief",)) and not deleted:
            deleted.append(rivals.submit(lambda: world.call("DELETE", "/v1/projects/brief").status_code))
            wait_until(lambda: deleted[0].done() or world.waits())
        return found

    monkeypatch.setattr(documents, "find", found_then_deleted)
    wanted = {"name": "brief", "role": "viewer", "project": "brief"}
    assert world.call("POST", "/v1/tokens", plain=wanted).status_code == 201
    assert deleted[0].result() == 409
    rivals.shutdown()


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({"role": "agent"}, "/purpose"),
        ({"role": "agent", "purpose": "node"}, "/subject"),
        ({"role": "agent", "purpose": "join", "project": OWN}, "/project"),
        ({"role": "viewer", "purpose": "join"}, "/purpose"),
        ({"role": "viewer", "subject": "a"}, "/subject"),
        ({"role": "admin", "project": OWN}, "/project"),
        ({"role": "viewer", "project": "nowhere"}, "/project"),
        ({"role": "emperor"}, "/role"),
        ({"role": "viewer", "ttl_s": 0}, "/ttl_s"),
    ],
)
def test_senseless_tokens_are_refused(refusing_world: World, wanted: dict[str, Any], pointer: str) -> None:
    answer = refusing_world.call("POST", "/v1/tokens", plain={"name": "x", **wanted})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize("name", ["a\u202eb", "a\x07b", "a\x9b1mb", "a\u2028b"])
def test_a_name_shows_what_is_stored(refusing_world: World, name: str) -> None:
    """It stands in terminals and on pages beside what its token did."""
    answer = refusing_world.call("POST", "/v1/tokens", plain={"name": name, "role": "viewer"})
    (fault,) = answer.json()["errors"]
    assert (answer.status_code, fault["pointer"], fault["detail"]) == (422, "/name", SHOWN_WORDS)
    with pytest.raises(FieldError, match=f"name {SHOWN_WORDS}"):
        Tokens(refusing_world.database).issue(TokenRequest(name=name, role=Role.VIEWER), Deed(actor="local"))


def test_a_repeat_is_answered_and_not_done_again(world: World) -> None:
    headers = {"Idempotency-Key": "plan-1"}
    first = world.call("POST", "/v1/plans", plain={"lane": "act"}, headers=headers)
    again = world.call("POST", "/v1/plans", plain={"lane": "act"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert world.app.state.context.planning.proposed == 1


def test_a_token_is_made_with_its_answer_or_not_at_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dies before its answer is kept has made no token whose secret nobody knows."""

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    headers, wanted = {"Idempotency-Key": "once"}, {"name": "twice", "role": "viewer"}
    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "keep", die)
        assert world.call("POST", "/v1/tokens", plain=wanted, headers=headers).status_code == 500
    assert world.call("POST", "/v1/tokens", plain=wanted, headers=headers).status_code == 201
    made = world.call("GET", "/v1/tokens?limit=100").json()["items"]
    assert [token["name"] for token in made].count("twice") == 1


def test_a_key_belongs_to_one_request_of_one_token(world: World) -> None:
    headers = {"Idempotency-Key": "plan-2"}
    assert world.call("POST", "/v1/plans", plain={"lane": "act"}, headers=headers).status_code == 201
    other = world.call("POST", "/v1/plans", plain={"lane": "shadow"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
    assert world.call("POST", "/v1/plans", "operator", plain={"lane": "shadow"}, headers=headers).status_code == 201


def test_a_failure_gives_the_key_back(world: World) -> None:
    headers = {"Idempotency-Key": "import-1"}
    point = {
        "model": "late",
        "gpu_type": "t4",
        "batch": 1,
        "share_pct_sm": 100,
        "clock_mhz_sm": 1590,
        "latency_ms_mean": 5.0,
        "memory_mib": 900.0,
    }
    assert world.call("POST", "/v1/profiles", plain=[point], headers=headers).status_code == 422
    model = {"name": "late", "family": "late", "parameters_million": 1.0, "memory_mib_weights": 10.0}
    assert world.call("PUT", "/v1/models/late", plain=model).status_code == 201
    assert world.call("POST", "/v1/profiles", plain=[point], headers=headers).json()["points"] == 1


def test_a_replayed_token_keeps_its_secret(world: World) -> None:
    headers = {"Idempotency-Key": "token-1"}
    wanted = {"name": "ci", "role": "viewer"}
    first = world.call("POST", "/v1/tokens", plain=wanted, headers=headers).json()
    again = world.call("POST", "/v1/tokens", plain=wanted, headers=headers).json()
    assert (first["id"], again["secret"]) == (again["id"], None)
    with world.database.raw() as connection:
        stored = connection.execute("SELECT body FROM idempotency_keys").fetchall()
    assert len(stored) == 1
    assert first["secret"].encode() not in bytes(stored[0][0])
