"""What the edge keeps: access tokens, answers to repeated requests, audit events."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Identity, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from app.store.tables.metadata import metadata, moment

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("purpose", Text),
    Column("project", Text),
    Column("subject", Text),
    Column("secret_hash", LargeBinary, nullable=False),
    moment("created_at", default_now=True),
    Column("created_by", Text, nullable=False),
    moment("expires_at", nullable=True),
    moment("revoked_at", nullable=True),
    moment("last_used_at", nullable=True),
)
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("token_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("method", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("body_hash", LargeBinary, nullable=False),
    moment("reserved_at", default_now=True),
    moment("finished_at", nullable=True),
    Column("status", Integer),
    Column("headers", JSONB(none_as_null=True)),
    Column("body", LargeBinary),
)
events = Table(
    "events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    moment("at", default_now=True),
    Column("name", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("project", Text),
    Column("request_id", Text),
    Column("facts", JSONB, nullable=False, server_default=text("'{}'")),
)
