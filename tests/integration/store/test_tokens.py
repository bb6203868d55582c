"""Tokens are found by their secret while they live, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from app.demo.tokens import store_given
from app.services.declared.tokens import TokenRequest
from app.store import nodes, tokens
from app.store.engine import Database
from app.store.nodes import NodeKey
from app.store.pages import PageOrder
from app.store.tokens import HeldToken, Purpose, Role, TokenDraft
from solvers.errors import InputError, NotFoundError
from tests.integration.store.samples import put_node

pytestmark = pytest.mark.integration

VIEWER = TokenDraft(id="t1", name="dashboard", role=Role.VIEWER, created_by="root", project="vision")


def _create(database: Database, new: TokenDraft = VIEWER, secret: str = "hr_secret") -> tokens.Token:
    with database.transaction() as session:
        return tokens.create(session, new, secret)


def test_a_token_is_found_by_its_secret_alone(database: Database) -> None:
    made = _create(database)
    assert (made.role, made.project, made.purpose, made.expires_at) == (Role.VIEWER, "vision", None, None)
    with database.reading() as session:
        assert tokens.find_by_secrets(session, ["hr_secret"]).get("hr_secret") == made
        assert tokens.find_by_secrets(session, ["hr_secreT"]).get("hr_secreT") is None
        assert tokens.get(session, "t1") == made
        kept = session.execute(text("SELECT tokens::text FROM tokens")).scalar_one()
        assert "hr_secret" not in kept
        assert tokens.secret_hash("hr_secret").hex() in kept
        with pytest.raises(NotFoundError):
            tokens.get(session, "t2")


def test_expired_and_revoked_tokens_are_dead(database: Database) -> None:
    _create(database, replace(VIEWER, id="short", ttl_s=-1.0), "expired")
    long = _create(database, replace(VIEWER, id="long", ttl_s=3600.0), "alive")
    assert long.expires_at is not None
    assert (long.expires_at - long.created_at).total_seconds() == 3600.0
    with database.transaction() as session:
        assert tokens.find_by_secrets(session, ["expired"]).get("expired") is None
        assert tokens.find_by_secrets(session, ["alive"]).get("alive") == long
        first = tokens.revoke(session, "long")
        assert tokens.find_by_secrets(session, ["alive"]).get("alive") is None
    with database.transaction() as session:
        assert tokens.revoke(session, "long").revoked_at == first.revoked_at
        with pytest.raises(NotFoundError):
            tokens.revoke(session, "nobody")


def test_a_chosen_secret_whose_token_has_ended_is_told_by_name_and_nothing_is_stored(
    database: Database, database_url: str
) -> None:
    admin, join = (TokenRequest(name=name, role=role) for name, role in (("chief", Role.ADMIN), ("nodes", Role.AGENT)))
    assert store_given(database_url, {"hr_chief": admin}) == ["chief"]
    assert store_given(database_url, {"hr_chief": admin}) == []
    with database.transaction() as session:
        tokens.revoke(session, tokens.find_by_secrets(session, ["hr_chief"])["hr_chief"].id)
    with pytest.raises(InputError, match=r"ended, .*: chief; choose another secret"):
        store_given(database_url, {"hr_chief": admin, "hr_nodes": join})
    with database.reading() as session:
        assert tokens.find_by_secrets(session, ["hr_chief", "hr_nodes"]) == {}


def test_a_new_node_token_ends_the_older_ones(database: Database) -> None:
    agent = TokenDraft(id="a1", name="n1", role=Role.AGENT, created_by="join", purpose=Purpose.NODE, subject="n1")
    _create(database, agent, "one")
    _create(database, replace(agent, id="a2"), "two")
    _create(database, replace(agent, id="b1", subject="n2"), "other")
    with database.transaction() as session:
        assert tokens.revoke_of_subject(session, Purpose.NODE, "n1", keep="a2") == 1
    with database.reading() as session:
        assert tokens.find_by_secrets(session, ["one"]).get("one") is None
        assert tokens.find_by_secrets(session, ["two"]).get("two") is not None
        assert tokens.find_by_secrets(session, ["other"]).get("other") is not None


def test_a_token_that_is_held_with_other_keys_than_its_nodes_has_ended(database: Database) -> None:
    """What a process remembers of a node runs out with its keys, on every process."""
    agent = TokenDraft(id="a1", name="n1", role=Role.AGENT, created_by="join", purpose=Purpose.NODE, subject="n1")
    later = datetime.now(UTC) + timedelta(days=1)
    with database.transaction() as session:
        put_node(session, "n1")
        tokens.create(session, agent, "one")

        def good(keys: str | None) -> bool:
            return not tokens.ended(session, [HeldToken(id="a1", role="agent", keys=keys)])

        assert good(None)
        assert nodes.bind_key(session, "n1", NodeKey(key="k1", expires_at=later), alone=True)
        assert (good(None), good("k1"), nodes.keys_of(session, ["n1"]).get("n1")) == (False, True, ("k1",))
        assert nodes.bind_key(session, "n1", NodeKey(key="k0", expires_at=later), alone=False)
        assert (good("k1"), good("k0,k1"), nodes.keys_of(session, ["n1"]).get("n1")) == (False, True, ("k0", "k1"))
        nodes.revoke(session, "n1")
        assert (good("k0,k1"), good(""), nodes.keys_of(session, ["n1"]).get("n1")) == (False, True, ())
        assert not nodes.bind_key(session, "n1", NodeKey(key="k1", expires_at=later), alone=False)


def test_use_is_remembered_at_most_once_a_minute(database: Database) -> None:
    _create(database)
    with database.transaction() as session:
        assert tokens.touch(session, ["t1", "t2"]) == 1
        used = tokens.get(session, "t1").last_used_at
    with database.transaction() as session:
        assert tokens.touch(session, ["t1"]) == 0
        assert tokens.get(session, "t1").last_used_at == used
        session.execute(text("UPDATE tokens SET last_used_at = now() - interval '61 seconds'"))
        assert tokens.touch(session, ["t1"]) == 1


def test_pages_list_every_token(database: Database) -> None:
    for number in range(5):
        _create(database, replace(VIEWER, id=f"t{number}"), f"secret {number}")
    with database.reading() as session:
        first = tokens.page(session, PageOrder(limit=3))
        rest = tokens.page(session, PageOrder(limit=3, cursor=first.next_cursor))
    assert [token.id for token in (*first.items, *rest.items)] == [f"t{number}" for number in range(5)]
    assert rest.next_cursor is None
