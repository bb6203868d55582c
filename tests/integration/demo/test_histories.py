"""What the demo's nodes hold beside the database that they are started on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from agents.wire import NodeTarget, encode
from app.demo.fleet import NODES
from app.demo.home import Home
from app.demo.rooms import LocalRooms, Order
from app.settings import Settings
from app.store import targets
from app.store.engine import Database
from solvers.errors import StateError

pytestmark = pytest.mark.integration

NODE = NODES[0].name


def held(home: Path, generation: int, cluster_id: str | None, epoch: int | None) -> None:
    target = NodeTarget(node=NODE, generation=generation, plan=None, devices=(), cluster_id=cluster_id, epoch=epoch)
    file = home / "agents" / NODE / "target.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(encode(target)))


def test_nodes_that_would_refuse_the_database_are_told_before_they_start(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    rooms = LocalRooms(Order(settings=Settings(home=tmp_path)), Home(tmp_path), lambda _: None)
    rooms.migrate(database_url)
    held(tmp_path, 1, "another", 1)
    with pytest.raises(StateError, match="belongs to cluster another, which this database is not of"):
        rooms.migrate(database_url)
    with database.transaction() as session:
        targets.ensure_cluster(session, "default")
        session.execute(text("UPDATE cluster_state SET generation = 2"))
    standing = database.read(targets.standing, "default")
    with pytest.raises(StateError, match="belongs to cluster another"):
        rooms.migrate(database_url)
    held(tmp_path, 3, standing.cluster_id, standing.epoch)
    with pytest.raises(StateError, match=f"{NODE} holds generation 3, .* at 2: .*restore --new-epoch"):
        rooms.migrate(database_url)
    for generation, epoch in ((2, standing.epoch), (1, None)):
        held(tmp_path, generation, standing.cluster_id, epoch)
        rooms.migrate(database_url)
    with database.transaction() as session:
        targets.begin_epoch(session, "default")
    held(tmp_path, 3, standing.cluster_id, standing.epoch)
    rooms.migrate(database_url)
    (tmp_path / "agents" / NODE / "target.json").write_text("{")
    rooms.migrate(database_url)


def test_without_the_demo_nodes_are_not_of_this_machine(database_url: str, tmp_path: Path) -> None:
    held(tmp_path, 1, "another", 1)
    LocalRooms(Order(settings=Settings(home=tmp_path), demo=False), Home(tmp_path), lambda _: None).migrate(
        database_url
    )
