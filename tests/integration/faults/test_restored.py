"""An older state of the database comes back, as from a backup: agents hold newer generations, and refuse what they are
told until the operator says that this history goes on; then they follow at once, also those that restarted meanwhile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.faults.fleet import DEVICES, busy, seed
from tests.integration.faults.house import House
from tests.integration.faults.invariants import Watch, behind, meets

pytestmark = pytest.mark.integration

NODES = ("node-a", "node-b")
CONNECTED = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND starts_with(application_name, 'headroom')
"""
BOOT = "SELECT boot_id FROM node_states WHERE node_id = 'node-a'"
HEARD = "SELECT count(*) FROM node_states WHERE last_report_at > now() - interval '3 seconds'"


def held(house: House, node: str) -> dict[str, Any]:
    """The target that an agent keeps."""
    found: dict[str, Any] = json.loads((house.home / "agents" / node / "target.json").read_text(encoding="utf-8"))
    return found


def refused(house: House, node: str) -> list[str]:
    """What a node refused, in words, newest first."""
    query = "SELECT problems[1] FROM receipts WHERE node_id = %s AND outcome = 'refused' ORDER BY id DESC"
    return [row[0] for row in house.rows(query, node)]


def test_agents_follow_a_restored_database_once_they_are_told_to(house: House, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    api = house.start_api()
    with house.client() as client:
        seed(client)
    agents = {node: house.start_agent(node, DEVICES) for node in NODES}
    planner = house.start_planner()
    house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
    house.postgres.dump(house.url, backup)
    saved = house.rows("SELECT cluster_id::text, epoch FROM cluster_state")
    # Two changes, so that what is held is beyond what comes back whatever a last plan before the backup did.
    for name in ("labels", "search"):
        with house.client() as client:
            busy(client, name)
        house.await_true(f"{name} is busy", lambda name=name: meets(house, name) and not behind(house, *NODES))
    agents["node-a"].kill()
    boot = house.one(BOOT)
    agents["node-a"] = house.start_agent("node-a", DEVICES)
    house.await_true("the agent is back", lambda: house.one(BOOT) != boot and not behind(house, *NODES))
    planner.kill()
    api.kill()
    newest = {node: held(house, node) for node in NODES}
    house.postgres.restore(house.url, backup)
    standing = house.generation()
    assert all(told["generation"] > standing for told in newest.values())
    assert house.rows("SELECT cluster_id::text, epoch FROM cluster_state") == saved
    assert {(told["cluster_id"], told["epoch"]) for told in newest.values()} == set(saved)

    api = house.start_api()
    house.await_true("agents refuse", lambda: all(refused(house, node) for node in NODES))
    assert f"generation {standing} is older than" in refused(house, "node-b")[0]
    assert {node: held(house, node) for node in NODES} == newest

    busy_still = house.run("restore", "--new-epoch")
    assert (busy_still.returncode, "API process" in busy_still.stderr) == (5, True), busy_still
    api.kill()
    house.await_true("its connections are gone", lambda: not house.one(CONNECTED))
    begun = house.run("restore", "--new-epoch")
    assert begun.returncode == 0, begun.stderr
    ((cluster_id, epoch),) = house.rows("SELECT cluster_id::text, epoch FROM cluster_state")
    assert f"cluster {cluster_id}: epoch 1 is over, epoch {epoch} has begun" in begun.stdout
    assert (cluster_id, epoch > 1) == (saved[0][0], True)
    assert house.one("SELECT facts ->> 'epoch_before' FROM events WHERE name = 'epoch.began'") == "1"

    house.start_api()
    house.await_true("agents follow", lambda: not behind(house, *NODES))
    for node in NODES:
        told = held(house, node)
        assert (told["generation"], told["cluster_id"], told["epoch"]) == (standing, cluster_id, epoch)
    # The agent that started after the backup was made is known again, and its reports count.
    house.await_true("both are heard", lambda: house.one(HEARD) == len(NODES))
    house.start_planner()
    with house.client() as client:
        busy(client, "search")
    house.await_true("planning goes on", lambda: meets(house, "search") and not behind(house, *NODES))
    assert all(agent.alive for agent in agents.values()), house.story()
    assert house.tracebacks() == ""
    Watch(house)()
