"""What a profile run asks of the control plane and tells it: orders, the next points, results, whether to go on.

Owns those calls, made as the node itself, and the reading of their answers. What the control plane does not answer is
asked again by the caller; what it refuses is a `RefusedError` with its own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.errors import AgentError
from agents.profiling.points import MeasuringPoint
from agents.transport import HttpAnswer, HttpConnection, UnreachableError
from agents.wire import ProfileOrder, WireError, decode_points_asked, decode_profile_orders


class RefusedError(AgentError):
    """The control plane does not take what a run told, or does not answer what it asked."""

    code = "refused"


class Control:
    """Calls to the control plane. Not thread-safe."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    def use_token(self, token: str) -> None:
        """Call as the node with this token."""
        self._connection.token = token

    def orders(self) -> tuple[ProfileOrder, ...]:
        """What this node has to measure. Raises RefusedError and UnreachableError."""
        try:
            return decode_profile_orders(self._call("GET", "/v1/agent/profile-runs").json())
        except WireError as error:
            raise RefusedError(f"an order cannot be read: {error}") from None

    def points(self, run: int) -> tuple[MeasuringPoint, ...]:
        """The points to measure next, most useful first. Raises RefusedError and UnreachableError."""
        try:
            asked = decode_points_asked(self._call("GET", f"/v1/agent/profile-runs/{run}/points").json())
        except WireError as error:
            raise RefusedError(f"points cannot be read: {error}") from None
        return tuple(
            MeasuringPoint(batch=item.batch, share_pct_sm=item.share_pct_sm, clock_mhz_sm=item.clock_mhz_sm)
            for item in asked
        )

    def tell(self, run: int, news: dict[str, Any], points: Sequence[Any] = (), pairs: Sequence[Any] = ()) -> bool:
        """How far a run got, with what it measured since; whether to go on. Raises RefusedError, UnreachableError."""
        body = {**news, "points": list(points), "pairs": list(pairs)}
        found = self._call("POST", f"/v1/agent/profile-runs/{run}", body).json()
        return isinstance(found, dict) and found.get("going_on") is True

    def _call(self, method: str, path: str, body: object = None) -> HttpAnswer:
        answer = self._connection.call(method, path, body)
        if answer.ok:
            return answer
        if answer.status >= 500 or answer.status in (408, 425, 429):
            raise UnreachableError(answer.reason())
        raise RefusedError(answer.reason())
