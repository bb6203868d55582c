"""The served cluster, one of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.store.engine import Database
from tests.integration.api.world import World, build_world


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    """The application over a database of this test's own."""
    made = build_world(database)
    yield made
    made.client.close()
