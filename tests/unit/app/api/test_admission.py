"""Turns of a lane: as they came, nobody behind who is late, and nothing is done for who has hung up."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import random
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from app.api import admission
from app.api.admission import AGAIN_S_MAX, AT_ONCE_MAX, LANES, LATE_S, PACE_S, Door, Lanes, Shares, TurnQueue
from app.api.auth import Authenticator
from app.errors import RateLimitedError
from app.services.declared.tokens import Actor
from app.store.ingest import ALIVE_S
from app.store.tokens import Purpose, Role

NODE = Actor(token_id="node", role=Role.AGENT, purpose=Purpose.NODE, subject="a")
AFTER_S = 7.0
INTERVAL_S = 5.0


class Work:
    """An application that works on a request until the test lets it end; and the requests' far ends."""

    def __init__(self, lane: TurnQueue) -> None:
        self.lane = lane
        self.begun: list[str] = []
        self.read = b""
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
                self.read += parts[0]
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


def test_who_finds_no_place_hears_when_to_come_again() -> None:
    async def run() -> None:
        work = Work(TurnQueue(1, 2, AFTER_S))
        tasks = {}
        for name in ("first", "second", "third", "fourth"):
            assert work.lane.is_full == (name == "fourth")
            tasks[name] = work.ask(name)
            await settled()
        with pytest.raises(RateLimitedError) as refused:
            await asyncio.wait_for(tasks.pop("fourth"), 5)
        assert refused.value.retry_after_s == AFTER_S
        assert work.read == b"firstsecondthird"
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks.values()), 5)
        assert work.begun == ["first", "second", "third"]

    asyncio.run(run())


def test_nobody_is_let_in_behind_who_is_late() -> None:
    """However many places are free: whoever came would wait for as long."""

    async def run() -> None:
        now = [0.0]
        work = Work(TurnQueue(3, 10, AFTER_S, lambda: now[0]))
        tasks = []
        for name in "ab":
            tasks.append(work.ask(name * 2))
            await settled()
            now[0] += 0.6 * LATE_S
        assert work.lane.is_full
        with pytest.raises(RateLimitedError):
            await asyncio.wait_for(work.ask("late"), 5)
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert not work.lane.is_full
        await asyncio.wait_for(work.ask("cc"), 5)
        assert work.begun == ["aa", "bb", "cc"]

    asyncio.run(run())


def test_behind_who_is_late_as_much_is_let_in_as_is_worked_on_in_that_time() -> None:
    """Where all that came before had to be gone first, nothing would be left to do."""

    async def run() -> None:
        now = [0.0]
        lane = TurnQueue(100, 100, AFTER_S, lambda: now[0])
        quick, slow = Work(lane), Work(lane)
        quick.may_end.set()
        for _ in range(8):
            now[0] += PACE_S / 8
            await asyncio.wait_for(quick.ask("1234567890"), 5)
        tasks = [slow.ask("12345")]
        await settled()
        now[0] += 1.1 * LATE_S
        for _ in range(7):
            assert not lane.is_full
            tasks.append(slow.ask("12345"))
            await settled()
        # 40 bytes are here, and 40 a second were worked on.
        assert lane.is_full
        now[0] += 10 * PACE_S
        assert lane.is_full
        slow.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert not lane.is_full

    asyncio.run(run())


def test_the_more_were_told_to_come_again_the_later_the_next_is_to() -> None:
    """Each behind those that were told before, in steps of what one of those that are here takes."""
    now = [0.0]
    lane = TurnQueue(3, 3, AFTER_S, lambda: now[0])
    for _ in range(4):
        lane._here[object()] = now[0]
    now[0] = 8.0
    told = [lane.refuse().retry_after_s for _ in range(20)]
    # Not before there is something new to say, and not later than a node is believed in.
    assert told == [min(AGAIN_S_MAX, max(AFTER_S, 2.0 * place)) for place in range(1, 21)]
    assert 1.5 * AGAIN_S_MAX <= ALIVE_S
    now[0] += 10.0
    lane._here = {object(): now[0] - 1.0}
    assert lane.refuse().retry_after_s == AGAIN_S_MAX - 10.0 + 1.0
    now[0] += 100.0
    assert lane.refuse().retry_after_s > AFTER_S
    assert TurnQueue(1, 1, 60.0, lambda: 0.0).refuse().retry_after_s == 60.0


STORE_S, ASK_S, TELL_S = 0.006, 0.0025, 0.0012
"""What a report, a request and a refusal cost one processor here: ten times what they do."""


class Fleet:
    """Nodes as agents are, in time of their own, before a lane behind which one processor stores and refuses."""

    def __init__(self, nodes: int, *, keeps: bool) -> None:
        self.now_s = self.busy_until_s = 0.0
        self.stored = 0
        self._keeps = keeps
        self._random = random.Random(1)
        self._lane = TurnQueue(*LANES["/v1/agent/reports"], INTERVAL_S, lambda: self.now_s)
        self._made_s = [self._random.uniform(0.0, INTERVAL_S) for _ in range(nodes)]
        self._kept = [0] * nodes
        self._come = [(made_s, node) for node, made_s in enumerate(self._made_s)]
        self._waiting: list[tuple[int, int]] = []
        self._owed_s = 0.0
        heapq.heapify(self._come)

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            at_s, node = self._come[0]
            if self._waiting and self.busy_until_s <= at_s:
                self.now_s = max(self.now_s, self.busy_until_s)
                self._store()
            else:
                self.now_s = max(self.now_s, at_s)
                heapq.heappop(self._come)
                self._ask(node)

    def _ask(self, node: int) -> None:
        made = max(0, 1 + int((self.now_s - self._made_s[node]) / INTERVAL_S))
        self._made_s[node] += made * INTERVAL_S
        self._kept[node] = self._kept[node] + made if self._keeps else 1
        if self._lane.is_full:
            self._owed_s += TELL_S
            pause_s = math.ceil(self._lane.refuse().retry_after_s) * self._random.uniform(0.5, 1.5)
            heapq.heappush(self._come, (self.now_s + pause_s, node))
            return
        sent = min(50, self._kept[node])
        self._kept[node] -= sent
        self._lane._here[node], self._lane._held = self.now_s, self._lane._held + sent
        self._waiting.append((node, sent))

    def _store(self) -> None:
        """One commit, after what refusals took; its senders come again when there is more to say."""
        batch = self._waiting[:32]
        del self._waiting[:32]
        reports = sum(sent for _, sent in batch)
        self.now_s += self._owed_s + len(batch) * ASK_S + reports * STORE_S
        self.busy_until_s, self._owed_s = self.now_s, 0.0
        self.stored += reports
        for node, sent in batch:
            del self._lane._here[node]
            self._lane._held -= sent
            self._lane._count(sent)
            heapq.heappush(self._come, (self.now_s if self._kept[node] else self._made_s[node], node))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_fleet_of_five_times_the_capacity_costs_less_than_a_fifth_of_it(keeps: bool) -> None:
    """Where all come again after an interval, refusals are ten for each stored report, and take more than half."""
    fleet = Fleet(int(5 * INTERVAL_S / (STORE_S + ASK_S)), keeps=keeps)
    fleet.run(20.0)
    before = fleet.stored
    fleet.run(80.0)
    assert (fleet.stored - before) * (STORE_S + ASK_S) / 60.0 >= 0.8


def test_bodies_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAITING_BYTES_MAX", 10)

    async def run() -> None:
        work = Work(TurnQueue(1, 100, AFTER_S))
        tasks = []
        for body in ("at work", "12345", "67890", "more"):
            tasks.append(work.ask(body))
            await settled()
        assert [task.done() for task in tasks] == [False, False, False, True]
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert work.begun == ["at work", "12345", "67890"]

    asyncio.run(run())


def test_who_waits_too_long_is_told_before_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S_MAX", 0.05)

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


@pytest.mark.parametrize("has_turn", [False, True], ids=["waiting", "about to begin"])
def test_who_is_ended_leaves_no_turn_behind(has_turn: bool) -> None:
    async def run() -> None:
        work = Work(TurnQueue(1, 10, AFTER_S))
        tasks = [work.ask("at work"), work.ask("ended"), work.ask("stays")]
        await settled()
        while has_turn and len(work.lane.waiting) > 1:
            work.may_end.set()
            await asyncio.sleep(0)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks.pop(1)
        work.may_end.set()
        await asyncio.wait_for(asyncio.gather(*tasks, work.ask("later")), 5)
        assert work.begun == ["at work", "stays", "later"]
        assert work.lane.waiting == {}

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
    authenticator = Authenticator(
        lambda secrets: [NODE if secret == "good" else None for secret in secrets], lambda: 0.0, 0.0
    )
    lanes = Lanes(authenticator, AFTER_S, lambda: 0.0)

    def lane(path: str, secret: str, method: str = "POST") -> TurnQueue | None:
        return lanes.lane_of(method, path, f"Bearer {secret}")

    reports, join = LANES
    strangers = {path: lane(path, "good") for path in (reports, join)}
    assert lane(reports, "bad") is lane(reports, "") is strangers[reports]
    for secret in ("good", "bad"):
        asyncio.run(authenticator.look_up(secret))
    assert len({lane(reports, "good"), lane(join, "good"), *strangers.values()}) == 4
    assert lane(reports, "bad") is strangers[reports]
    assert lane("/v1/health", "good") is lane(reports, "good", "GET") is None


def test_the_door_answers_for_lanes_that_are_full() -> None:
    authenticator = Authenticator(lambda secrets: [NODE for _ in secrets], lambda: 0.0, 0.0)
    lanes, ending, counted = Lanes(authenticator, AFTER_S, lambda: 0.0), [False], []
    door = Door(lanes, lambda: ending[0], lambda: "process", lambda *told: counted.append(told))
    reports, join = LANES

    def ask(path: str = reports, **headers: str) -> bytes | None:
        said = {"authorization": "Bearer good", **headers}
        return door.meet("POST", path, [(name.encode(), text.encode()) for name, text in said.items()])

    assert ask() is None
    stranger = lanes.lane_of("POST", reports, "Bearer good")
    assert stranger is not None
    stranger._here[object()] = -2.0 * LATE_S
    head, _, body = (ask() or b"").partition(b"\r\n\r\n")
    problem = json.loads(body)
    assert (problem["status"], problem["code"], problem["request_id"]) == (429, "rate-limited", "process-1")
    fields = dict(line.split(": ") for line in head.decode().split("\r\n"))
    assert fields == {
        "content-type": "application/problem+json",
        "retry-after": f"{AFTER_S:.0f}",
        "x-request-id": "process-1",
        "content-length": str(len(body)),
    }
    assert b'"request_id":"my-own-id"' in (ask(**{"x-request-id": "my-own-id"}) or b"")
    assert b'"request_id":"process-2"' in (ask(**{"x-request-id": '"}'}) or b"")
    assert counted == [("POST", reports, 429, 0.0)] * 3
    # The more were told, the later.
    later = [(ask() or b"").partition(b"retry-after: ")[2].partition(b"\r\n")[0] for _ in range(9)]
    assert later == [b"8", b"10", b"12", b"14", b"16", b"18", b"20", b"20", b"20"]
    # Others are not meant, nor anybody once his token is known; and who ends says so at each answer.
    assert ask(join) is ask("/v1/nodes") is None
    asyncio.run(authenticator.look_up("good"))
    assert ask() is None
    known = lanes.lane_of("POST", reports, "Bearer good")
    assert known is not None
    known._here[object()] = -2.0 * LATE_S
    assert ask() is not None
    ending[0] = True
    assert ask() is None


def _crowd(shares: Shares, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(shares.enter("token")) for _ in range(count)]


def test_what_is_more_than_a_tokens_part_waits_in_turn_and_leaves_nothing_behind() -> None:
    async def life() -> None:
        shares = Shares()
        come = _crowd(shares, AT_ONCE_MAX + 3)
        await asyncio.sleep(0)
        assert [each.done() for each in come] == [True] * AT_ONCE_MAX + [False] * 3
        await asyncio.wait_for(shares.enter("another"), 5.0)
        come[-2].cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        shares.leave("token")
        # Handed on, and then cancelled: the next one has it.
        come[AT_ONCE_MAX].cancel()
        await asyncio.wait(come)
        assert [each.cancelled() for each in come[AT_ONCE_MAX:]] == [True, True, False]
        for _ in range(AT_ONCE_MAX):
            shares.leave("token")
        shares.leave("another")
        assert (shares._going, shares._lines) == ({}, {})

    asyncio.run(life())


def test_who_waits_too_long_or_behind_too_many_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S_MAX", 0.05)
    monkeypatch.setattr(admission, "IN_LINE_MAX", 2)

    async def life() -> None:
        shares = Shares()
        come = _crowd(shares, AT_ONCE_MAX + 3)
        told = await asyncio.gather(*come, return_exceptions=True)
        assert [type(each) for each in told[AT_ONCE_MAX:]] == [RateLimitedError] * 3
        for _ in range(AT_ONCE_MAX):
            shares.leave("token")
        assert not shares._lines

    asyncio.run(life())
