"""Who reads what workers write, and what nodes handed over for them: lines lie here for seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from agents.wire import LogPiece, LogRequest, encode
from app.store.sql import named, records

CHANNEL = "headroom_logs"
READER_S = 15.0
"""Who does not look for so long reads no more."""
PATIENCE_S = 10.0
REPLICAS_MAX, REQUESTS_MAX, PIECES_MAX = 32, 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsTaken:
    """What a node handed over of a replica since its reader looked last, as plain pieces."""

    node_id: str
    replica: str
    pieces: Sequence[Mapping[str, object]]
    asked: bool
    late: bool
    """It has not answered, and should have."""


def ask(session: Session, reader: str, workload: str, replica: str | None, lines: int) -> None:
    """Have nodes asked that were not yet: those that hold the workload, or held the one replica within a day."""
    wanted = {"reader": reader, "workload": workload, "replica": replica, "lines": lines}
    limits = {"ttl_s": READER_S, "count": REPLICAS_MAX, "channel": CHANNEL}
    session.execute(named("ask_for_logs"), wanted | limits)


def replicas_of(session: Session, workload: str) -> dict[str, bool]:
    """Replicas of a workload within a day, and whether they are still held."""
    found = session.execute(named("replicas_with_logs"), {"workload": workload})
    return {row.replica: row.stands for row in found}


def take(session: Session, reader: str) -> tuple[LogsTaken, ...]:
    return records(session, LogsTaken, named("take_log_pieces"), reader=reader, ttl_s=READER_S, patience_s=PATIENCE_S)


def end(session: Session, reader: str) -> None:
    session.execute(named("end_log_reading"), {"reader": reader})


def wanted_of(session: Session, node: str) -> tuple[LogRequest, ...]:
    return records(session, LogRequest, named("log_requests_of_node"), node=node, count=REQUESTS_MAX)


def keep(session: Session, request: int, node: str, piece: LogPiece) -> bool:
    """Whether it was kept."""
    told = {"request": request, "node": node, "piece": json.dumps([encode(piece)]), "count": PIECES_MAX}
    return session.execute(named("keep_log_piece"), told).one_or_none() is not None


def asked_of(session: Session, request: int) -> str | None:
    """Of which node this is wanted; None: nobody reads it any more."""
    found: str | None = session.execute(named("asked_of_node"), {"request": request}).scalar_one_or_none()
    return found
