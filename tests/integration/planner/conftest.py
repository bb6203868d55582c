"""A world for each planning test, and one child process that plans for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.services.beliefs import beliefs
from app.services.planning.planning import Planning
from app.store.engine import Database
from app.workers.solve_pool import SolvePool
from solvers.domain.evidence import SilentReporter
from solvers.planners import registry
from tests.integration.learned import fitted_once
from tests.integration.planner.world import World


@pytest.fixture(autouse=True)
def learn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process learns while somebody waits."""
    monkeypatch.setattr(beliefs, "fitted", fitted_once)


@pytest.fixture(scope="session")
def pool() -> Iterator[SolvePool]:
    """The real planners in their child process."""
    opened = SolvePool(registry.tuned_for, SilentReporter())
    opened.warm()
    yield opened
    opened.close()


@pytest.fixture
def world(database: Database) -> World:
    """An empty world."""
    return World(database)


@pytest.fixture
def planning(world: World, pool: SolvePool) -> Planning:
    """Planning over the test's world."""
    return world.planning(pool)
