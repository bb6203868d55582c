"""Declarative documents, one table per kind, and the live state beside nodes, jobs and tasks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from app.store.tables.metadata import document_columns, metadata, moment

gpu_types = Table("gpu_types", metadata, Column("name", Text, primary_key=True), *document_columns())
models = Table("models", metadata, Column("name", Text, primary_key=True), *document_columns())
policies = Table("policies", metadata, Column("name", Text, primary_key=True), *document_columns())
projects = Table("projects", metadata, Column("name", Text, primary_key=True), *document_columns())
power_caps = Table(
    "power_caps",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    *document_columns(),
)
nodes = Table("nodes", metadata, Column("id", Text, primary_key=True), *document_columns())
devices = Table(
    "devices",
    metadata,
    Column("uuid", Text, primary_key=True),
    Column("node_id", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    *document_columns(),
    moment("billed_from", default_now=True),
    moment("billed_until", nullable=True),
    Column("driver_version", Text, nullable=False, server_default=""),
    Column("capabilities", JSONB, nullable=False, server_default=text("'{}'")),
)
services = Table(
    "services",
    metadata,
    Column("project", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    *document_columns(),
)
jobs = Table(
    "jobs",
    metadata,
    Column("project", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    *document_columns(),
)
tasks = Table(
    "tasks",
    metadata,
    Column("project", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    *document_columns(),
)
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
