"""Declarative documents, one table per kind, and the live state beside nodes, jobs and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Column, Double, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from app import kinds
from app.kinds import Kind
from app.store.tables.metadata import document_columns, metadata, moment

_MORE: Mapping[Kind, tuple[Column[Any], ...]] = {
    kinds.DEVICE: (
        moment("billed_from", default_now=True),
        moment("billed_until", nullable=True),
        Column("driver_version", Text, nullable=False, server_default=""),
        Column("capabilities", JSONB, nullable=False, server_default=text("'{}'")),
    ),
}
"""Columns that documents of a kind have beside their own."""


def _table(kind: Kind) -> Table:
    return Table(
        kind.table,
        metadata,
        *(Column(name, Text, primary_key=True) for name in kind.column_key),
        *(Column(name, Text, nullable=False) for name in kind.copied),
        *document_columns(),
        *_MORE.get(kind, ()),
    )


TABLES: Mapping[Kind, Table] = {kind: _table(kind) for kind in kinds.KINDS}
devices = TABLES[kinds.DEVICE]
node_states = Table(
    "node_states",
    metadata,
    Column("node_id", Text, primary_key=True),
    Column("boot_id", Text, nullable=False),
    Column("endpoint", Text),
    Column("agent_version", Text, nullable=False),
    moment("joined_at", default_now=True),
    moment("last_report_at", nullable=True),
    Column("generation_applied", BigInteger, nullable=False, server_default="0"),
)
job_progress = Table(
    "job_progress",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("done", Double, nullable=False, server_default="0"),
    Column("evictions", Integer, nullable=False, server_default="0"),
    moment("updated_at", default_now=True),
    moment("begun_at", nullable=True),
    moment("finished_at", nullable=True),
    Column("executions", Double, nullable=False, server_default="0"),
    Column("executed_ms", Double, nullable=False, server_default="0"),
)
