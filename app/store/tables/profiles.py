"""Measured, simulated and scaled profile points."""

from __future__ import annotations

from sqlalchemy import Column, Double, Integer, Table, Text
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
    Column("memory_mib", Double, nullable=False),
    Column("power_w", Double),
    Column("origin", Text, nullable=False),
    Column("source", Text, nullable=False),
    moment("imported_at", default_now=True),
)
