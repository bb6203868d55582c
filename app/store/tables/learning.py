"""What outcomes taught: points by configuration, what is watched, where learning stands, counts by hour."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Double, Integer, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.store.tables.metadata import metadata, moment

outcome_points = Table(
    "outcome_points",
    metadata,
    Column("model", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("share_pct_sm", Integer, primary_key=True, autoincrement=False),
    Column("clock_mhz_sm", Integer, primary_key=True, autoincrement=False),
    Column("batch_step", Integer, primary_key=True, autoincrement=False),
    Column("neighbours", ARRAY(Text), primary_key=True),
    Column("batch", Double, nullable=False),
    Column("latency_ms", Double),
    Column("outcomes", BigInteger, nullable=False),
    Column("values_kept", Integer, nullable=False),
    Column("state", JSONB, nullable=False),
    moment("first_seen_at", default_now=True),
    moment("seen_at"),
)
belief_monitors = Table(
    "belief_monitors",
    metadata,
    Column("model", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("state", JSONB, nullable=False),
    moment("updated_at", default_now=True),
)
learning_marks = Table(
    "learning_marks",
    metadata,
    Column("name", Text, primary_key=True),
    moment("seen_until"),
    Column("fencing_token", BigInteger, nullable=False),
    Column("admitted", BigInteger, nullable=False, server_default="0"),
    Column("rejected", BigInteger, nullable=False, server_default="0"),
    Column("rebuilt", BigInteger, nullable=False, server_default="0"),
    Column("rejections", JSONB, nullable=False, server_default="{}"),
    moment("told_at", default_now=True),
)
outcome_hours = Table(
    "outcome_hours",
    metadata,
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("verdict", Text, primary_key=True),
    Column("outcomes", BigInteger, nullable=False),
    Column("executions", Double, nullable=False),
    Column("predicted", BigInteger, nullable=False),
    Column("error_sum", Double, nullable=False),
    Column("error_abs_sum", Double, nullable=False),
    Column("error_square_sum", Double, nullable=False),
    Column("error_abs_max", Double, nullable=False),
    Column("inside_80", BigInteger, nullable=False),
    Column("inside_95", BigInteger, nullable=False),
)
