"""Reading what workers write: nodes that hold a workload's replicas are asked, hand over the last lines and what comes
for as long as somebody reads, and nothing of it stays here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agents.wire import LogPiece, LogRequest
from app import kinds
from app.clock import SystemClock, new_id
from app.errors import FieldsError, RateLimitedError
from app.store import documents, logs
from app.store.engine import Database
from app.store.logs import LogsTaken
from solvers.errors import NotFoundError, did_you_mean

LENGTH_MAX = 256 * 1024
"""Characters of a piece."""
ASK_AGAIN_S = 5.0
NOT_ASKED = "did not ask what is wanted of it: it is away, or its agent is older than `headroom logs`"
Foreign = Callable[[str, str, Sequence[str]], None]
"""Leaves an audit event about a node that spoke of what is not its own: its name, a code, what it named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWish:
    """`lines` of a workload (`project/name`) or of one replica of it first; then what comes, when `follow`."""

    workload: str
    replica: str | None
    lines: int
    follow: bool
    as_text: bool = False
    """Lines of text, behind the replica's name, in place of JSON."""


class LogReaders:
    def __init__(self, database: Database, clock: SystemClock, foreign: Foreign) -> None:
        self._database = database
        self._clock = clock
        self._foreign = foreign

    def open(self, wish: LogWish) -> LogReading:
        """Begin to read. Raises NotFoundError for a workload that is not there or was never anywhere, and for a replica
        that is not its own.
        """
        key = tuple(wish.workload.split("/"))
        with self._database.transaction() as session:
            if all(documents.find(session, kind, key) is None for kind in kinds.workloads()):
                raise NotFoundError(f"there is no service, job or task {wish.workload}")
            known = logs.replicas_of(session, wish.workload)
            if wish.replica is not None and wish.replica not in known:
                near = did_you_mean(wish.replica, known, all_known=True)
                raise NotFoundError(f"{wish.workload} had no replica {wish.replica} within a day{near}")
            if wish.replica is None and True not in known.values():
                were = f"; name one that was: {', '.join(known)}" if known else ""
                raise NotFoundError(f"no node holds a replica of {wish.workload} now{were}")
        return LogReading(self._database, self._clock, wish)

    def wanted_of(self, node: str) -> tuple[LogRequest, ...]:
        """What somebody reads on a node."""
        with self._database.transaction() as session:
            return logs.wanted_of(session, node)

    def hand_over(self, request: int, node: str, piece: LogPiece) -> None:
        """Take what a node was asked for. Raises NotFoundError where it was not, RateLimitedError while its reader does
        not keep up, FieldsError for too much at once.
        """
        if sum(map(len, piece.lines)) > LENGTH_MAX:
            raise FieldsError.of("/lines", f"more than {LENGTH_MAX} characters at once", "bound-exceeded")
        with self._database.transaction() as session:
            if logs.keep(session, request, node, piece):
                return
            owner = logs.asked_of(session, request)
        if owner == node:
            raise RateLimitedError("who reads this has not taken what came before", retry_after_s=1.0)
        if owner is not None:
            self._foreign(node, "logs-not-asked", [str(request)])
        raise NotFoundError("nobody reads this")


class LogReading:
    """Somebody who reads, for one thread at a time."""

    def __init__(self, database: Database, clock: SystemClock, wish: LogWish) -> None:
        self._database = database
        self._clock = clock
        self._wish = wish
        self._reader = new_id()
        self._ask_at_ms = clock.elapsed_ms()
        self._settled: set[tuple[str, str]] = set()
        """Node and replica of whom something was told."""

    def news(self) -> bytes | None:
        """What came since, as lines of JSON; None: that was all."""
        now_ms = self._clock.elapsed_ms()
        with self._database.transaction() as session:
            if now_ms >= self._ask_at_ms:
                # Replicas come and go while somebody follows.
                logs.ask(session, self._reader, self._wish.workload, self._wish.replica, self._wish.lines)
                self._ask_at_ms = now_ms + ASK_AGAIN_S * 1000.0
            taken = logs.take(session, self._reader)
        told = [line for each in taken for line in self._told(each)]
        if not told and not self._wish.follow and {(each.node_id, each.replica) for each in taken} <= self._settled:
            return None
        return b"".join(self._written(line) for line in told)

    def close(self) -> None:
        with self._database.transaction() as session:
            logs.end(session, self._reader)

    def _written(self, told: dict[str, object]) -> bytes:
        if not self._wish.as_text:
            return json.dumps(told).encode() + b"\n"
        return f"{told['replica']}: {told.get('line', told.get('problem'))}\n".encode()

    def _told(self, taken: LogsTaken) -> Iterator[dict[str, object]]:
        who = {"node": taken.node_id, "replica": taken.replica}
        key = (taken.node_id, taken.replica)
        if taken.late and key not in self._settled:
            why = f"did not answer within {logs.PATIENCE_S:g} s" if taken.asked else NOT_ASKED
            yield {**who, "problem": f"node {taken.node_id} {why}"}
            self._settled.add(key)
        for piece in taken.pieces:
            self._settled.add(key)
            if piece.get("problem") is not None:
                yield {**who, "problem": piece["problem"]}
            lines = piece["lines"]
            assert isinstance(lines, list)
            yield from ({**who, "line": line} for line in lines)
