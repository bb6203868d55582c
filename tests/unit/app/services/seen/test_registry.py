"""What nodes may speak of is asked for together, never older than its time, and not against what was said meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from app.services.seen import telemetry
from app.services.seen.telemetry import REGISTRY_TTL_MS, Assigned, NodeRegistry
from app.store.targets import Standing

NODES = [f"n{number}" for number in range(5)]


class _World:
    """A database that only notes what it is asked, and a clock."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.now_ms = 0.0
        self.generation = 0
        self.meanwhile: Callable[[], None] = lambda: None
        database: Any = self
        clock: Any = self
        self.registry = NodeRegistry(database, clock, "main")

    def read(self, _query: object, names: tuple[str, ...], _cluster: str) -> tuple[Assigned, ...]:
        self.asked.append(tuple(names))
        self.meanwhile()
        standing = Standing(generation=self.generation)
        return tuple(Assigned(devices=frozenset((name,)), told=frozenset(), standing=standing) for name in names)

    def elapsed_ms(self) -> float:
        return self.now_ms

    def report(self, node: str) -> Assigned:
        """As a report asks."""
        known = self.registry.remembered(node, lambda _: True)
        return asyncio.run(self.registry.asked(node)) if known is None else known


def _nearly_over() -> _World:
    """Every node spoke of late, and what is known of it is as old as it may be."""
    world = _World()
    for world.now_ms in (0.0, 0.9 * REGISTRY_TTL_MS):
        for node in NODES:
            world.report(node)
    world.now_ms = REGISTRY_TTL_MS
    return world


def test_who_asks_asks_for_others_whose_time_is_half_over() -> None:
    world = _World()
    for node in NODES:
        world.now_ms += 1000.0
        world.report(node)
    assert world.asked == [(node,) for node in NODES]
    # Each goes on every five seconds for ten minutes; one asks for all.
    for _ in range(120):
        for node in NODES:
            world.now_ms += 1000.0
            assert world.report(node).devices == {node}
    assert 10 <= len(world.asked) - len(NODES) <= 21
    assert all(len(names) == len(NODES) for names in world.asked[len(NODES) + 1 :])


def test_nothing_is_remembered_for_longer_than_its_time() -> None:
    world = _World()
    for node in NODES:
        world.report(node)
    world.generation = 1
    for _ in range(9):
        world.now_ms += REGISTRY_TTL_MS / 10
        assert {world.report(node).standing.generation for node in NODES} == {0}
    world.now_ms += REGISTRY_TTL_MS / 10
    assert {world.report(node).standing.generation for node in NODES} == {1}
    assert len(world.asked) == len(NODES) + 1


def test_who_speaks_no_more_is_forgotten_and_asked_for_no_more() -> None:
    world = _World()
    for node in NODES:
        world.report(node)
    for _ in range(5):
        world.now_ms += REGISTRY_TTL_MS / 2
        world.report("n0")
    assert world.asked[-1] == ("n0",)
    assert len(world.registry) == 1


def test_so_many_are_asked_for_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(telemetry, "ALONG_MAX", 3)
    world = _nearly_over()
    world.report("n4")
    assert world.asked[-1] == ("n4", "n0", "n1", "n2")


def test_what_was_forgotten_meanwhile_stays_so() -> None:
    """A node joined again while others were asked for: it may have other devices now."""
    world = _nearly_over()
    world.meanwhile = lambda: world.registry.forget("n1")
    world.report("n0")
    assert set(world.asked[-1]) == set(NODES)
    world.meanwhile = lambda: None
    world.report("n1")
    assert world.asked[-1] == ("n1",)
