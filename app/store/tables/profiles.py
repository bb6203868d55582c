"""Profile points, pairs measured side by side, runs that measure, and which built-in documents were offered."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Identity, Integer, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from app.store.tables.metadata import metadata, moment

profile_points = Table(
    "profile_points",
    metadata,
    Column("model", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("neighbours", ARRAY(Text), primary_key=True, server_default="{}"),
    Column("clock_mhz_sm", Integer, primary_key=True, autoincrement=False),
    Column("share_pct_sm", Integer, primary_key=True, autoincrement=False),
    Column("batch", Integer, primary_key=True, autoincrement=False),
    Column("latency_ms_mean", Double, nullable=False),
    Column("latency_ms_p99", Double),
    Column("memory_mib", Double),
    Column("power_w", Double),
    Column("throughput_rps", Double),
    Column("l2_util_pct", Double),
    Column("dram_util_pct", Double),
    Column("origin", Text, nullable=False),
    Column("source", Text, nullable=False),
    moment("imported_at", default_now=True),
)

pair_points = Table(
    "pair_points",
    metadata,
    Column("gpu_type", Text, primary_key=True),
    Column("model_a", Text, primary_key=True),
    Column("batch_a", Integer, primary_key=True, autoincrement=False),
    Column("share_pct_a", Double, primary_key=True),
    Column("model_b", Text, primary_key=True),
    Column("batch_b", Integer, primary_key=True, autoincrement=False),
    Column("share_pct_b", Double, primary_key=True),
    Column("latency_ms_a", Double),
    Column("latency_ms_b", Double),
    Column("origin", Text, nullable=False),
    Column("source", Text, nullable=False),
    moment("imported_at", default_now=True),
)

library_documents = Table(
    "library_documents",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    moment("offered_at", default_now=True),
)

profile_runs = Table(
    "profile_runs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("node_id", Text, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("service", Text, nullable=False),
    Column("beside", Text),
    Column("budget_s", Double, nullable=False),
    Column("drain", Boolean, nullable=False),
    Column("state", Text, nullable=False, server_default="queued"),
    Column("measured", Integer, nullable=False, server_default="0"),
    Column("doubtful", Integer, nullable=False, server_default="0"),
    Column("detail", Text, nullable=False, server_default=""),
    moment("created_at", default_now=True),
    Column("created_by", Text, nullable=False),
    moment("started_at", nullable=True),
    moment("ended_at", nullable=True),
    moment("expires_at"),
)
