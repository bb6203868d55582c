"""A short life under random kills, as `make kills` lives many, and what its memory sees when it was betrayed."""

from __future__ import annotations

import random

import pytest

from tests.integration.faults.fleet import seed
from tests.integration.faults.house import House, Postgres
from tests.kills.life import Life
from tests.kills.writers import Importer, Poster, Putter, Reporting

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FAULTS, SEED = 4, 20_261


def test_a_short_life_under_kills_loses_and_doubles_nothing(postgres: Postgres) -> None:
    life = Life(postgres, SEED)
    try:
        life.live(FAULTS)
        assert life.faults.total() >= FAULTS
    finally:
        life.end()


def test_what_is_lost_or_doubled_is_seen(house: House) -> None:
    house.start_api()
    poster, putter, importer = Poster(house, "post"), Putter(house, "put"), Importer(house, "import")
    with house.client() as client:
        seed(client)
    for writer in (poster, putter, importer):
        for number in (1, 2):
            writer.write(number)
            writer.done = number
        assert writer.broken() == []
    house.change("UPDATE projects SET spec = jsonb_set(spec, '{description}', '\"1\"') WHERE name = 'put'")
    house.change("DELETE FROM tokens WHERE name = 'post-1'; UPDATE tokens SET name = 'post-3' WHERE name = 'post-2'")
    house.change("DELETE FROM profile_points WHERE model = 'import-2' AND batch = 1")
    assert putter.broken() == ["put: 2 was acknowledged, 1 stands"]
    assert len(poster.broken()) == 2
    assert importer.broken()[0].startswith("import-2: ")
    reporting = Reporting(house, "node-x", random.Random(1))
    assert reporting.broken() == []
    reporting.reporter.acknowledged.append(("boot-node-x-1", 1))
    assert reporting.broken() == ["node-x: reports lost or doubled"]
    for each in (poster, putter, importer, reporting):
        each.close()
