"""The hub rings everybody once per generation, a listener that goes leaves nothing behind, and one whose token ends is
sent away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.api import streams
from app.api.metrics import doorbell_metrics
from app.api.streams import HEARTBEAT, PER_NODE_MAX, PER_TOKEN_MAX, Hub, Listener, StreamRegistry, doorbell_stream
from app.errors import RateLimitedError
from app.logs import EventLog
from app.services.declared.tokens import Actor
from app.store.tokens import Purpose, Role
from solvers.errors import TransientError

VIEWER = Actor(token_id="viewer", role=Role.VIEWER)
NODE = Actor(token_id="node", role=Role.AGENT, purpose=Purpose.NODE, subject="a")


class _Stream:
    """A stream with the far end in the test's hands."""

    def __init__(
        self, hub: Hub, heartbeat_s: float = 60.0, *, actor: Actor = VIEWER, registry: StreamRegistry | None = None
    ) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.registry = registry or _registry(hub)
        response = doorbell_stream(self.registry, actor, hub, heartbeat_s)
        self.task = asyncio.ensure_future(response({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            await self.lines.put(message["body"])

    async def line(self) -> bytes:
        return await asyncio.wait_for(self.lines.get(), 5)


def _hub() -> Hub:
    return Hub(doorbell_metrics(CollectorRegistry()))


def _registry(hub: Hub, ended: Callable[[list[Actor]], Sequence[Actor]] = lambda _: ()) -> StreamRegistry:
    return StreamRegistry(hub, ended, EventLog("test.quiet"))


def test_everybody_hears_the_current_generation_and_every_newer_one() -> None:
    async def run() -> None:
        hub = _hub()
        hub.ring(3)
        streams = [_Stream(hub) for _ in range(50)]
        assert {await stream.line() for stream in streams} == {b'{"generation": 3}\n'}
        hub.ring(4)
        assert {await stream.line() for stream in streams} == {b'{"generation": 4}\n'}
        hub.ring(2)
        hub.ring(4)
        await asyncio.sleep(0)
        assert all(stream.lines.empty() for stream in streams)
        for stream in streams:
            stream.gone.set()
        await asyncio.wait_for(asyncio.gather(*(stream.task for stream in streams)), 5)
        assert hub._bells == set()

    asyncio.run(run())


def test_silence_is_a_comment() -> None:
    async def run() -> None:
        stream = _Stream(_hub(), heartbeat_s=0.01)
        assert await stream.line() == b'{"generation": 0}\n'
        assert await stream.line() == HEARTBEAT
        stream.gone.set()
        await asyncio.wait_for(stream.task, 5)

    asyncio.run(run())


def test_closing_ends_streams_that_wait() -> None:
    async def run() -> None:
        hub = _hub()
        stream = _Stream(hub)
        await stream.line()
        stream.registry.closing.set()
        hub.wake()
        await asyncio.wait_for(stream.task, 5)

    asyncio.run(run())


def test_whose_token_ends_is_sent_away_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the database does not answer the first time."""
    monkeypatch.setattr(streams, "ASK_EVERY_S", 0.01)
    asked: list[list[Actor]] = []

    def ended(actors: list[Actor]) -> list[Actor]:
        asked.append(actors)
        if len(asked) == 1:
            raise TransientError("the database is away")
        return [actor for actor in actors if actor == VIEWER]

    async def run() -> None:
        hub = _hub()
        registry = _registry(hub, ended)
        gone, other = _Stream(hub, registry=registry), _Stream(hub, actor=NODE, registry=registry)
        await other.line()
        registry.start(asyncio.get_running_loop())
        await asyncio.wait_for(gone.task, 5)
        assert list(registry.open) == [NODE]
        other.gone.set()
        await asyncio.wait_for(other.task, 5)
        assert registry.open == {}
        registry.stop()
        await asyncio.to_thread(registry.join)
        assert set(asked[0]) == {VIEWER, NODE}

    asyncio.run(run())


def test_streams_of_a_token_are_bounded_and_a_nodes_oldest_gives_way() -> None:
    async def run() -> None:
        hub = _hub()
        registry = _registry(hub)
        viewers = [_Stream(hub, registry=registry) for _ in range(PER_TOKEN_MAX + 1)]
        with pytest.raises(RateLimitedError):
            await asyncio.wait_for(viewers.pop().task, 5)
        nodes = [_Stream(hub, actor=NODE, registry=registry) for _ in range(PER_NODE_MAX + 2)]
        for displaced in (nodes.pop(0), nodes.pop(0)):
            await asyncio.wait_for(displaced.task, 5)
        assert {actor: len(open_) for actor, open_ in registry.open.items()} == {
            VIEWER: PER_TOKEN_MAX, NODE: PER_NODE_MAX,
        }  # fmt: skip
        for stream in (*viewers, *nodes):
            stream.gone.set()
        await asyncio.wait_for(asyncio.gather(*(stream.task for stream in (*viewers, *nodes))), 5)
        assert (registry.open, hub.listeners) == ({}, 0)

    asyncio.run(run())


class _Feed:
    """A feed that breaks once."""

    def __init__(self, opened: list[int]) -> None:
        self._opened = opened

    def __enter__(self) -> _Feed:
        self._opened.append(1)
        if len(self._opened) == 1:
            raise ConnectionError("PostgreSQL restarts")
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def current(self) -> int:
        return 7

    def announced(self, timeout_s: float) -> list[int]:
        return [8]


class _Noting(Hub):
    """A hub that remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(doorbell_metrics(CollectorRegistry()))
        self.heard: list[int] = []
        self.rang_8 = asyncio.Event()

    def ring(self, generation: int) -> None:
        self.heard.append(generation)
        super().ring(generation)
        if generation == 8:
            self.rang_8.set()


def test_a_broken_feed_is_opened_again_and_asked_what_was_missed() -> None:
    async def run() -> None:
        hub = _Noting()
        opened: list[int] = []
        listener = Listener(hub, lambda: _Feed(opened), EventLog("test.quiet"))
        listener.start(asyncio.get_running_loop())
        await asyncio.wait_for(hub.rang_8.wait(), 10)
        listener.stop()
        await asyncio.to_thread(listener.join)
        assert len(opened) == 2
        assert hub.heard[:2] == [7, 8]

    asyncio.run(run())
