"""Turns of a lane: as they came, the oldest gives way, and nothing is done for who has hung up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from app.api import app as edge
from app.api.app import LANES, Lanes, TurnQueue
from app.api.auth import Authenticator
from app.errors import RateLimitedError
from app.services.declared.tokens import Actor
from app.store.tokens import Purpose, Role

NODE = Actor(token_id="node", role=Role.AGENT, purpose=Purpose.NODE, subject="a")
AFTER_S = 7.0


class Work:
    """An application that works on a request until the test lets it end; and the requests' far ends."""

    def __init__(self, lane: TurnQueue) -> None:
        self.lane = lane
        self.begun: list[str] = []
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.begun.append(message["body"].decode())
        await self.may_end.wait()

    def ask(self, body: str, gone: asyncio.Event | None = None) -> asyncio.Task[None]:
        """A request whose body comes in two parts, and whose client stays until `gone`."""
        parts = [body[:1].encode(), body[1:].encode()]

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            raise AssertionError("a lane answers nothing")

        scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
        return asyncio.ensure_future(self.lane.serve(self, scope, receive, send))


async def settled() -> None:
    """Until whatever can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_take_turns_as_they_came() -> None:
    async def run() -> None:
        work = Work(TurnQueue(1, 10, AFTER_S))
        tasks = []
        for name in "abcd":
            tasks.append(work.ask(name * 2))
            await settled()
        assert work.begun == ["aa"]
        assert len(work.lane.waiting) == 3
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert work.begun == ["aa", "bb", "cc", "dd"]
        # The turn was given back: who comes now does not wait.
        await asyncio.wait_for(work.ask("ee"), 5)

    asyncio.run(run())


def test_the_oldest_gives_way_and_hears_when_to_come_again() -> None:
    async def run() -> None:
        work = Work(TurnQueue(1, 2, AFTER_S))
        tasks = {}
        for name in ("first", "second", "third", "fourth"):
            tasks[name] = work.ask(name)
            await settled()
        with pytest.raises(RateLimitedError) as refused:
            await asyncio.wait_for(tasks.pop("second"), 5)
        assert refused.value.retry_after_s == AFTER_S
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks.values()), 5)
        assert work.begun == ["first", "third", "fourth"]

    asyncio.run(run())


def test_bodies_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "WAITING_BYTES_MAX", 10)

    async def run() -> None:
        work = Work(TurnQueue(1, 100, AFTER_S))
        tasks = []
        for body in ("at work", "12345", "67890", "more"):
            tasks.append(work.ask(body))
            await settled()
        assert [task.done() for task in tasks] == [False, True, False, False]
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert work.begun == ["at work", "67890", "more"]

    asyncio.run(run())


def test_who_waits_too_long_is_told_before_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "WAIT_S_MAX", 0.05)

    async def run() -> None:
        work = Work(TurnQueue(1, 10, AFTER_S))
        begun, late = work.ask("at work"), work.ask("late")
        with pytest.raises(RateLimitedError):
            await asyncio.wait_for(late, 5)
        assert work.lane.waiting == {}
        work.may_end.set()
        await asyncio.wait_for(begun, 5)

    asyncio.run(run())


def test_nothing_is_done_for_who_has_hung_up() -> None:
    async def run() -> None:
        work, gone = Work(TurnQueue(1, 10, AFTER_S)), asyncio.Event()
        tasks = [work.ask("at work"), work.ask("gone", gone), work.ask("stays")]
        await settled()
        gone.set()
        with pytest.raises(ClientDisconnect):
            await asyncio.wait_for(tasks.pop(1), 5)
        assert len(work.lane.waiting) == 1
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert work.begun == ["at work", "stays"]

    asyncio.run(run())


def test_a_failure_gives_its_turn_back() -> None:
    async def run() -> None:
        lane = TurnQueue(1, 10, AFTER_S)

        async def fail(*_: Any) -> None:
            raise ValueError("broken")

        work = Work(lane)
        for _ in range(3):
            scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
            with pytest.raises(ValueError, match="broken"):
                await asyncio.wait_for(lane.serve(fail, scope, _whole, _nowhere), 5)
        work.may_end.set()
        await asyncio.wait_for(work.ask("works"), 5)

    asyncio.run(run())


async def _whole() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _nowhere(_: Any) -> None:
    return None


def test_strangers_wait_apart_and_all_else_nowhere() -> None:
    authenticator = Authenticator(lambda secret: NODE if secret == "good" else None, lambda: 0.0, 0.0)
    lanes = Lanes(authenticator, AFTER_S)

    def lane(path: str, secret: str, method: str = "POST") -> TurnQueue | None:
        return lanes.lane_of({"path": path, "method": method}, f"Bearer {secret}")

    reports, join = LANES
    stranger = lane(reports, "good")
    assert stranger is lane(join, "bad") is lane(reports, "") is not None
    for secret in ("good", "bad"):
        authenticator.look_up(secret)
    assert len({lane(reports, "good"), lane(join, "good"), stranger}) == 3
    assert lane(reports, "bad") is stranger
    assert lane("/v1/health", "good") is lane(reports, "good", "GET") is None
