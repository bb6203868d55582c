"""Plans, the target and its history, cycles, receipts, planner states and the lease that guards the writes."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Identity, Integer, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.store.tables.metadata import metadata, moment

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text),
    Column("token", BigInteger, nullable=False, server_default="0"),
    moment("acquired_at", default_now=True),
    moment("expires_at"),
)
plans = Table(
    "plans",
    metadata,
    Column("id", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("parent_generation", BigInteger, nullable=False),
    Column("generation", BigInteger),
    Column("cycle_id", Text),
    Column("planner", Text, nullable=False),
    Column("policy", Text),
    Column("document", JSONB, nullable=False),
    Column("cost_usd_per_h", Double, nullable=False),
    Column("bound_usd_per_h", Double),
    Column("unplaced_count", Integer, nullable=False, server_default="0"),
    moment("created_at", default_now=True),
    Column("created_by", Text, nullable=False),
    moment("decided_at", nullable=True),
    Column("decided_by", Text),
    Column("insight", LargeBinary),
)
cluster_state = Table(
    "cluster_state",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("plan_id", Text),
    moment("promoted_at", default_now=True),
    Column("fencing_token", BigInteger, nullable=False, server_default="0"),
)
target_history = Table(
    "target_history",
    metadata,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("plan_id", Text, nullable=False),
    Column("parent_generation", BigInteger, nullable=False),
    moment("promoted_at", default_now=True),
    Column("promoted_by", Text, nullable=False),
    Column("fencing_token", BigInteger),
)
node_targets = Table(
    "node_targets",
    metadata,
    Column("node_id", Text, primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("document", JSONB, nullable=False),
    moment("updated_at", default_now=True),
)
cycles = Table(
    "cycles",
    metadata,
    Column("id", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("step", Text, nullable=False, server_default=""),
    Column("holder", Text, nullable=False, server_default=""),
    Column("fencing_token", BigInteger, nullable=False, server_default="0"),
    moment("started_at", default_now=True),
    moment("ended_at", nullable=True),
    Column("elapsed_ms", Double),
    Column("policy", Text),
    Column("planner", Text),
    Column("snapshot_digest", Text),
    Column("plan_digest", Text),
    Column("generation", BigInteger),
    Column("decision", JSONB(none_as_null=True)),
    Column("findings_count", Integer, nullable=False, server_default="0"),
    Column("software_version", Text, nullable=False, server_default=""),
    Column("record", LargeBinary),
)
planner_states = Table(
    "planner_states",
    metadata,
    Column("planner", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("state", LargeBinary, nullable=False),
    Column("digest", Text, primary_key=True),
    moment("updated_at", default_now=True),
)
receipts = Table(
    "receipts",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("node_id", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("plan_id", Text),
    Column("outcome", Text, nullable=False),
    moment("observed_at"),
    moment("received_at", default_now=True),
    Column("elapsed_ms", Double, nullable=False),
    Column("problems", ARRAY(Text), nullable=False, server_default="{}"),
    Column("document", JSONB, nullable=False),
)
node_read_backs = Table(
    "node_read_backs",
    metadata,
    Column("node_id", Text, primary_key=True),
    Column("boot_id", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    moment("observed_at"),
    moment("received_at", default_now=True),
    Column("replicas", JSONB, nullable=False),
    Column("wishes", JSONB, nullable=False, server_default="[]"),
)
