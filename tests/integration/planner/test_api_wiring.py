"""The API as bootstrap wires it plans in its own child process and applies what it planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.bootstrap import build_api
from app.clock import new_id, new_secret
from app.settings import Settings
from app.store import tokens
from tests.integration.planner.world import World, check_history

pytestmark = pytest.mark.integration


def test_a_plan_is_made_and_applied_over_http(world: World, database_url: str, tmp_path: Path) -> None:
    world.build()
    secret = new_secret("hr")
    with world.database.transaction() as session:
        new = tokens.TokenDraft(id=new_id(), name="test", role=tokens.Role.OPERATOR, created_by="test")
        tokens.create(session, new, secret)
    api = build_api(Settings(database_url=database_url, home=tmp_path))
    with TestClient(api, headers={"Authorization": f"Bearer {secret}"}) as client:
        made = client.post("/v1/plans", json={"lane": "act"}, headers={"Idempotency-Key": "k1"})
        assert made.status_code == 201, made.text
        plan = made.json()["id"]
        applied = client.post(f"/v1/plans/{plan}/apply", headers={"Idempotency-Key": "k2"})
        assert applied.status_code == 200, applied.text
    check_history(world, [1])
    (actor,) = world.column("SELECT promoted_by FROM target_history")
    assert str(actor).startswith("token:")
