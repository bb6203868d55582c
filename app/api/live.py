"""The stream of what changes: one thread reads the fleet for everybody who watches this process, and each stream tells
its topics as server-sent events, whole at first and then what differs.

An event's id says which process told it and where it stood there. Whoever comes back to the same process hears what it
missed, as long as that is kept; everybody else hears the whole again.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from app.api.metrics import StreamMetrics
from app.api.streams import FeedThread, Hub, LineStream, StreamRegistry
from app.clock import new_id
from app.logs import EventLog
from app.services.declared.tokens import Actor
from app.services.seen.feed import Fields, FollowedFleet, Picture, Topic, difference
from solvers.errors import TransientError

STREAMS_MAX = 512
KEPT_MAX = 2_000
READ_EVERY_S = 1.0
LEISURE, FRESH_LEISURE = 39.0, 99.0
"""What is dear to read is read so much more rarely: a fortieth of a core at most, whoever watches; and in between a
hundredth for what is cheap and waited for.
"""
LOOK_EVERY_S = 0.1
COME_AGAIN_MS = (200, 2000)
NOTHING = b": still here\n"
AWAY = b"event: away\ndata: {}\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What changed in one topic, and the number of that news."""

    number: int
    topic: Topic
    changes: Fields
    texts: dict[str | None, bytes] = field(default_factory=dict)
    """As an event, by the project it is cut to; made once for all who hear it."""

    def text(self, boot: str, project: str | None) -> bytes:
        if project not in self.texts:
            self.texts[project] = _event(self, boot, project)
        return self.texts[project]


def _event(told: News, boot: str, project: str | None) -> bytes:
    changes = told.changes
    if project is not None:
        own = {name: fields for name, fields in changes["set"].items() if name.startswith(f"{project}/")}
        changes = {**changes, "set": own, "gone": [name for name in changes["gone"] if name.startswith(f"{project}/")]}
        if not (own or changes["gone"] or changes.get("whole")):
            return b""
    data = json.dumps(changes, separators=(",", ":"))
    return f"id: {boot}.{told.number}\nevent: {told.topic}\ndata: {data}\n\n".encode()


class LiveBoard:
    """The newest picture and the news that led to it. Everything is the event loop's."""

    def __init__(self, metrics: StreamMetrics) -> None:
        self.hub = Hub(metrics, STREAMS_MAX)
        self.boot = new_id()[:8]
        self.number = 0
        self.is_away = False
        self._picture: Picture | None = None
        self._whole: dict[Topic, News] = {}
        self._kept: deque[News] = deque(maxlen=KEPT_MAX)

    def publish(self, picture: Picture, changes: dict[Topic, Fields]) -> None:
        """Take a reading over, and wake whoever waits if it says something new."""
        first, self._picture, was_away = self._picture is None, picture, self.is_away
        self.is_away = False
        if changes:
            self._whole = {}
        if not first:
            for topic, changed in changes.items():
                self.number += 1
                self._kept.append(News(number=self.number, topic=topic, changes=changed))
        if changes or was_away:
            self.hub.ring(self.hub.generation + 1)

    def away(self) -> None:
        """There is nothing new to be had for now."""
        if not self.is_away:
            self.is_away = True
            self.hub.ring(self.hub.generation + 1)

    @property
    def is_ready(self) -> bool:
        return self._picture is not None

    def whole(self, topic: Topic) -> News:
        """Everything that a topic has."""
        if topic not in self._whole:
            assert self._picture is not None
            changes = {"whole": True, "set": dict(self._picture[topic]), "gone": []}
            self._whole[topic] = News(number=self.number, topic=topic, changes=changes)
        return self._whole[topic]

    def since(self, number: int) -> list[News] | None:
        """What was told after this; None: that is not known any more."""
        if number > self.number or number < self.number - len(self._kept):
            return None
        return [told for told in self._kept if told.number > number]


class Follower:
    """One stream's place in the news."""

    def __init__(self, board: LiveBoard, topics: tuple[Topic, ...], project: str | None, last_id: str | None) -> None:
        self._board = board
        self._topics = topics
        self._project = project
        self._retry: bytes = b"retry: %d\n\n" % random.randint(*COME_AGAIN_MS)
        boot, _, number = (last_id or "").partition(".")
        self._at = int(number) if boot == board.boot and number.isdecimal() and len(number) < 16 else None

    def news(self) -> bytes:
        """What there is to say now."""
        said, self._retry = self._retry, b""
        board = self._board
        if board.is_away or not board.is_ready:
            return said + (AWAY if board.is_away else NOTHING)
        missed = None if self._at is None else board.since(self._at)
        if missed is None:
            missed = [board.whole(topic) for topic in self._topics]
        self._at = board.number
        texts = (told.text(board.boot, self._project) for told in missed if told.topic in self._topics)
        return said + (b"".join(texts) or (b"" if said else NOTHING))


class EventStream(LineStream):
    """Server-sent events."""

    media_type = "text/event-stream"


def live_stream(
    registry: StreamRegistry, actor: Actor, board: LiveBoard, follower: Follower, heartbeat_s: float
) -> EventStream:
    """A stream, which ends with its token."""
    stream = EventStream(registry, actor, board.hub, follower.news, heartbeat_s)
    stream.headers["x-content-type-options"] = "nosniff"
    return stream


class LiveReader(FeedThread[None]):
    """The thread that reads for the board while somebody watches: everything, and more often what is `fresh`."""

    def __init__(self, board: LiveBoard, fleet: FollowedFleet, log: EventLog) -> None:
        super().__init__("live", board.hub, nullcontext, self._watch, log)
        self._board = board
        self._fleet = fleet
        self._before: Picture = {}

    def _watch(self, _: None) -> None:
        due_s = fresh_due_s = 0.0
        while not self.closing.wait(LOOK_EVERY_S):
            now_s = time.monotonic()
            if not self._hub.listeners:
                continue
            if not self._before or now_s >= due_s:
                due_s = self._tell(self._fleet.picture, LEISURE)
                fresh_due_s = now_s + READ_EVERY_S
            elif now_s >= fresh_due_s:
                fresh_due_s = self._tell(lambda: self._fleet.freshened(self._before), FRESH_LEISURE)

    def _tell(self, read: Callable[[], Picture], leisure: float) -> float:
        """Read, and tell what differs; when to read again."""
        begun_s, spent_s = time.monotonic(), time.thread_time()
        try:
            after = read()
            self.tell(self._board.publish, after, difference(self._before, after))
            self._before = after
        except TransientError:
            self.tell(self._board.away)
        return begun_s + max(READ_EVERY_S, (1 + leisure) * (time.thread_time() - spent_s))
