"""Reports of nodes that are known here: what comes most often goes from the connection to the store and back, past the
application, which costs more than a report does.

Whoever has to be asked about first, and whatever is sent in an unusual way, goes the way of all requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from app.api.admission import Answer, Errand, TurnQueue
from app.api.auth import NODE_AGENT, Authenticator
from app.api.body import JSON
from app.api.forms import answer
from app.api.metrics import RequestMetrics
from app.api.problems import escaped
from app.api.routers.agent import stored
from app.authority import Presented
from app.logs import EventLog
from app.services.seen.telemetry import Acknowledged, Telemetry

PATH = "/v1/agent/reports"
SHORT_BYTES_MAX = 64 * 1024
"""Connections keep so much of a body before anybody reads it."""
_JSON = JSON.encode()
_acknowledged = lru_cache(maxsize=64)(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortWay:
    """From the connection to the store."""

    authenticator: Authenticator
    telemetry: Telemetry
    metrics: RequestMetrics
    elapsed_ms: Callable[[], float]
    is_ending: Callable[[], bool]
    log: EventLog
    body_bytes_max: int

    def errand(self, lane: TurnQueue, said: Mapping[bytes, bytes], request_id: str) -> Errand | None:
        """Who takes a report with this head when its body is there; None: the application."""
        scheme, _, secret = said.get(b"authorization", b"").decode("latin-1").partition(" ")
        length = said.get(b"content-length", b"")
        usual = (
            scheme.lower() == "bearer"
            and said.get(b"content-type", _JSON) == _JSON
            and b"transfer-encoding" not in said
            and length.isdigit()
            and int(length[:20]) <= min(SHORT_BYTES_MAX, self.body_bytes_max)
        )
        return _Delivery(self, lane, secret, request_id, self.elapsed_ms()).take if usual else None


@dataclass(frozen=True, slots=True)
class _Delivery:
    way: ShortWay
    lane: TurnQueue
    secret: str
    request_id: str
    began_ms: float

    async def take(self, body: bytes, receive: Receive, shown: Presented | None) -> Answer | None:
        way = self.way
        try:
            done = await self.lane.work(len(body), receive, lambda: self._store(body, shown))
        except ClientDisconnect:
            # The application counts it.
            return None
        except Exception as error:  # noqa: BLE001 - the last resort, as at the edge
            told = escaped(way.log, error, request_id=self.request_id, method="POST", path=PATH)
        else:
            if done is None:
                return None
            told = _acknowledged(done)
        way.metrics.observe("POST", PATH, told.status_code, (way.elapsed_ms() - self.began_ms) / 1000.0)
        return Answer.of(told, self.request_id, closes=way.is_ending())

    async def _store(self, body: bytes, shown: Presented | None) -> Acknowledged | None:
        authenticator = self.way.authenticator
        # Who is due to be asked about again is, here: all others would wait in line for that a second time.
        known, actor = await authenticator.recalled(self.secret)
        if actor is None or not known or actor.has_expired or not NODE_AGENT.admits(actor):
            return None
        if authenticator.doubt(actor, shown) is not None:
            return None
        authenticator.throttle(actor, len(body))
        return await stored(self.way.telemetry, actor, body)
