"""Every table that a statement built as an expression names; a test holds them against the migrated database.

Only what such statements need stands here: names, types, keys, what may be null. Defaults, constraints and indexes live
in the migrations alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

from app import kinds
from app.kinds import Kind

metadata = MetaData()
Columns = list[Column[Any]]
MOMENT = DateTime(timezone=True)
TEXTS = ARRAY(Text)
NULLABLE_JSON = JSONB(none_as_null=True)


def _table(name: str, *groups: Columns) -> Table:
    return Table(name, metadata, *(column for group in groups for column in group))


def _key(kind: Any, *names: str) -> Columns:
    return [Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def _given(kind: Any, *names: str) -> Columns:
    return [Column(name, kind, nullable=False) for name in names]


def _maybe(kind: Any, *names: str) -> Columns:
    return [Column(name, kind, nullable=True) for name in names]


def _numbered() -> Columns:
    """A key that the database counts up."""
    return [Column("id", BigInteger, Identity(always=True), primary_key=True)]


# --- Declarative documents, one table for each kind, and the live state beside nodes, jobs and tasks


_BESIDE: Mapping[Kind, Columns] = {
    kinds.DEVICE: [
        *_given(MOMENT, "billed_from"),
        *_maybe(MOMENT, "billed_until"),
        *_given(Text, "driver_version"),
        *_given(JSONB, "capabilities"),
    ]
}
"""Columns that documents of a kind have beside their own."""


def _documents(kind: Kind) -> Table:
    return _table(
        kind.table,
        _key(Text, *kind.column_key),
        _given(Text, *kind.copied),
        _given(NULLABLE_JSON, "spec"),
        _given(BigInteger, "version"),
        _given(MOMENT, "created_at", "updated_at"),
        _BESIDE.get(kind, []),
    )


TABLES: Mapping[Kind, Table] = {kind: _documents(kind) for kind in kinds.KINDS}
devices = TABLES[kinds.DEVICE]
library_documents = _table("library_documents", _key(Text, "kind", "name"), _given(MOMENT, "offered_at"))
node_states = _table(
    "node_states",
    _key(Text, "node_id"),
    _given(Text, "boot_id", "agent_version"),
    _maybe(Text, "endpoint", "worker_host"),
    _given(TEXTS, "boots"),
    _given(MOMENT, "joined_at"),
    _maybe(MOMENT, "last_report_at"),
    _given(BigInteger, "generation_applied"),
    _maybe(MOMENT, "revoked_at"),
)
node_keys = _table(
    "node_keys",
    _key(Text, "node_id", "key"),
    _maybe(Text, "authority"),
    _given(MOMENT, "issued_at", "expires_at"),
    _maybe(MOMENT, "revoked_at"),
)
workload_labels = _table("workload_labels", _key(Text, "kind", "subject", "key"), _given(Text, "value"))
job_progress = _table(
    "job_progress",
    _key(Text, "kind", "project", "name"),
    _given(Double, "done", "executions", "executed_ms"),
    _given(Integer, "evictions"),
    _given(MOMENT, "updated_at"),
    _maybe(MOMENT, "begun_at", "finished_at"),
)

# --- Plans, the target and its history, cycles, receipts, planner states and the lease that guards the writes


leases = _table(
    "leases",
    _key(Text, "name"),
    _maybe(Text, "holder"),
    _given(BigInteger, "token"),
    _given(MOMENT, "acquired_at", "expires_at"),
)
plans = _table(
    "plans",
    _key(Text, "id"),
    _given(Text, "lane", "state", "planner", "created_by"),
    _maybe(Text, "cycle_id", "policy", "decided_by"),
    _given(BigInteger, "parent_generation"),
    _maybe(BigInteger, "generation"),
    _given(JSONB, "document"),
    _given(Double, "cost_usd_per_h"),
    _maybe(Double, "bound_usd_per_h", "added_usd_per_h"),
    _given(Integer, "unplaced_count"),
    _given(MOMENT, "created_at"),
    _maybe(MOMENT, "decided_at", "expires_at", "looked_at"),
    _maybe(Text, "matter", "comment"),
    _given(TEXTS, "blocked"),
    _maybe(LargeBinary, "insight"),
    _maybe(JSONB, "terms"),
)
cluster_state = _table(
    "cluster_state",
    _key(Text, "cluster"),
    _maybe(Text, "plan_id"),
    _given(BigInteger, "generation", "fencing_token", "epoch"),
    _given(MOMENT, "promoted_at"),
    _given(UUID(as_uuid=False), "cluster_id"),
    _maybe(MOMENT, "held_until"),
    _maybe(Text, "held_by", "held_for"),
    _maybe(NULLABLE_JSON, "short"),
    _maybe(Double, "seen_usd_per_h", "seen_bound_usd_per_h"),
    _maybe(MOMENT, "seen_at"),
)
target_history = _table(
    "target_history",
    _key(BigInteger, "generation"),
    _given(Text, "plan_id", "promoted_by"),
    _given(BigInteger, "parent_generation"),
    _maybe(BigInteger, "fencing_token"),
    _given(MOMENT, "promoted_at"),
)
node_targets = _table(
    "node_targets",
    _key(Text, "node_id"),
    _given(BigInteger, "generation"),
    _given(JSONB, "document"),
    _given(MOMENT, "updated_at"),
)
told_replicas = _table(
    "told_replicas",
    _key(Text, "node_id", "uuid", "replica", "kind", "workload", "model"),
    _key(Integer, "share_pct_sm", "memory_mib_limit"),
    _maybe(MOMENT, "told_until"),
)
oidc_attempts = _table(
    "oidc_attempts",
    _key(LargeBinary, "secret_hash"),
    _given(Text, "nonce", "verifier", "back"),
    _given(MOMENT, "expires_at"),
)
log_requests = _table(
    "log_requests",
    _key(BigInteger, "id"),
    _given(Text, "reader", "node_id", "replica"),
    _given(Integer, "lines"),
    _given(JSONB, "pieces"),
    _maybe(MOMENT, "asked_at", "answered_at"),
    _given(MOMENT, "made_at", "expires_at"),
)
cycles = _table(
    "cycles",
    _key(Text, "id"),
    _given(Text, "lane", "state", "step", "holder", "software_version"),
    _maybe(Text, "policy", "planner", "snapshot_digest", "plan_digest"),
    _given(BigInteger, "fencing_token"),
    _maybe(BigInteger, "generation"),
    _given(MOMENT, "started_at"),
    _maybe(MOMENT, "ended_at"),
    _maybe(Double, "elapsed_ms"),
    _maybe(NULLABLE_JSON, "decision", "answered", "attempts"),
    _given(Integer, "findings_count"),
    _maybe(LargeBinary, "record"),
)
planner_states = _table(
    "planner_states",
    _key(Text, "planner", "version", "digest"),
    _given(LargeBinary, "state"),
    _given(MOMENT, "updated_at"),
)
receipts = _table(
    "receipts",
    _numbered(),
    _given(Text, "node_id", "boot_id", "outcome"),
    _maybe(Text, "plan_id"),
    _given(BigInteger, "generation"),
    _given(MOMENT, "observed_at", "received_at"),
    _given(Double, "elapsed_ms"),
    _given(TEXTS, "problems"),
    _given(JSONB, "document"),
)
node_read_backs = _table(
    "node_read_backs",
    _key(Text, "node_id"),
    _given(Text, "boot_id"),
    _given(BigInteger, "generation"),
    _given(MOMENT, "observed_at", "received_at"),
    _given(JSONB, "replicas", "wishes"),
)

# --- Profile points, pairs measured side by side, runs that measure


profile_points = _table(
    "profile_points",
    _key(Text, "model", "gpu_type"),
    _key(TEXTS, "neighbours"),
    _key(Integer, "clock_mhz_sm", "share_pct_sm", "batch"),
    _given(Double, "latency_ms_mean"),
    _maybe(Double, "latency_ms_p99", "memory_mib", "power_w", "throughput_rps", "l2_util_pct", "dram_util_pct"),
    _given(Text, "origin", "source"),
    _given(MOMENT, "imported_at"),
)
pair_points = _table(
    "pair_points",
    _key(Text, "gpu_type", "model_a", "model_b"),
    _key(Integer, "batch_a", "batch_b"),
    _key(Double, "share_pct_a", "share_pct_b"),
    _maybe(Double, "latency_ms_a", "latency_ms_b"),
    _given(Text, "origin", "source"),
    _given(MOMENT, "imported_at"),
)
profile_runs = _table(
    "profile_runs",
    _numbered(),
    _given(Text, "node_id", "uuid", "service", "state", "detail", "created_by"),
    _maybe(Text, "beside"),
    _given(Double, "budget_s"),
    _given(Boolean, "drain"),
    _given(Integer, "measured", "doubtful"),
    _given(MOMENT, "created_at", "expires_at"),
    _maybe(MOMENT, "started_at", "ended_at"),
)

# --- What outcomes taught: points by configuration, what is watched, where learning stands, counts by hour


outcome_points = _table(
    "outcome_points",
    _key(Text, "model", "gpu_type"),
    _key(Integer, "share_pct_sm", "clock_mhz_sm", "batch_step"),
    _key(TEXTS, "neighbours"),
    _given(Double, "batch"),
    _maybe(Double, "latency_ms"),
    _given(BigInteger, "outcomes"),
    _given(Integer, "values_kept"),
    _given(JSONB, "state"),
    _given(MOMENT, "first_seen_at", "seen_at"),
)
belief_monitors = _table(
    "belief_monitors", _key(Text, "model", "gpu_type"), _given(JSONB, "state"), _given(MOMENT, "updated_at")
)
learning_marks = _table(
    "learning_marks",
    _key(Text, "name"),
    _given(MOMENT, "seen_until", "told_at"),
    _given(BigInteger, "fencing_token", "admitted", "rejected", "rebuilt"),
    _given(JSONB, "rejections"),
)
slow_devices = _table(
    "slow_devices",
    _key(Text, "uuid"),
    _given(Text, "gpu_type"),
    _given(Double, "factor"),
    _given(MOMENT, "since", "seen_at"),
)
demand_memories = _table(
    "demand_memories", _key(Text, "service"), _given(Double, "memory_s"), _given(MOMENT, "learned_at")
)
outcome_hours = _table(
    "outcome_hours",
    _key(MOMENT, "hour"),
    _key(Text, "model", "gpu_type", "verdict"),
    _given(BigInteger, "outcomes", "predicted", "inside_80", "inside_95"),
    _given(Double, "executions", "error_sum", "error_abs_sum", "error_square_sum", "error_abs_max"),
)

# --- What the edge keeps: access tokens, answers to repeated requests, audit events


tokens = _table(
    "tokens",
    _key(Text, "id"),
    _given(Text, "name", "role", "created_by"),
    _maybe(Text, "purpose", "project", "subject"),
    _given(LargeBinary, "secret_hash"),
    _given(MOMENT, "created_at"),
    _maybe(MOMENT, "expires_at", "revoked_at", "last_used_at"),
    _maybe(Integer, "uses_max"),
    _given(Integer, "uses"),
)
join_uses = _table("join_uses", _key(Text, "token_id", "node_id", "bound"), _given(MOMENT, "used_at"))
idempotency_keys = _table(
    "idempotency_keys",
    _key(Text, "token_id", "key"),
    _given(Text, "method", "path"),
    _given(LargeBinary, "body_hash"),
    _given(MOMENT, "reserved_at"),
    _maybe(MOMENT, "finished_at"),
    _maybe(Integer, "status"),
    _maybe(NULLABLE_JSON, "headers"),
    _maybe(LargeBinary, "body"),
)
events = _table(
    "events",
    _numbered(),
    _given(MOMENT, "at"),
    _given(Text, "name", "actor", "subject"),
    _maybe(Text, "project", "request_id"),
    _given(JSONB, "facts"),
)

# --- What webhooks are told, and the alarms that stand


alarms = _table("alarms", _key(Text, "name", "subject"), _maybe(Text, "project"), _given(MOMENT, "began_at", "seen_at"))
webhook_marks = _table("webhook_marks", _key(Text, "name"), _given(MOMENT, "seen_until"))
webhook_deliveries = _table(
    "webhook_deliveries",
    _numbered(),
    _given(Text, "webhook", "state"),
    _given(BigInteger, "event_id"),
    _given(Integer, "attempts"),
    _given(MOMENT, "created_at", "next_at"),
    _maybe(MOMENT, "ended_at"),
    _maybe(Integer, "status"),
    _maybe(Text, "error"),
)

# --- Raw telemetry, partitioned by moment of arrival, and the newest report of every source. `ingest` copies rows in
# the order of these columns, all but those that the database knows itself. What devices and processes are called and
# what seldom changes of them stands in shapes, what was read in samples: arrays along the devices and the processes


def _of_each(prefix: str, kind: Any, names: str) -> Columns:
    return _given(ARRAY(kind), *(f"{prefix}_{name}" for name in names.split()))


def _of_each_or_none(prefix: str, kind: Any, names: str) -> Columns:
    """NULL: of none there is anything to say."""
    return _maybe(ARRAY(kind), *(f"{prefix}_{name}" for name in names.split()))


sample_shapes = _table(
    "sample_shapes",
    _key(MOMENT, "received_at"),
    _key(UUID, "shape"),
    _given(Text, "node_id"),
    _of_each("device", Text, "uuid"),
    _of_each("replica", Text, "name kind workload project model uuid"),
    _of_each("replica", Integer, "share_pct_sm sm_count memory_mib_limit batch"),
)
node_samples = _table(
    "node_samples",
    _given(MOMENT, "received_at", "shaped_at"),
    _given(UUID, "shape"),
    _given(MOMENT, "observed_at"),
    _given(Text, "node_id", "boot_id"),
    _given(BigInteger, "sequence"),
    _given(Double, "interval_s"),
    _of_each("device", Double, "power_w energy_j utilisation_pct memory_mib_used"),
    _of_each("device", Integer, "clock_mhz_sm share_pct_sm_total"),
    _of_each_or_none("device", Double, "temperature_c"),
    _of_each_or_none("device", Text, "throttle"),
    _of_each_or_none("device", Boolean, "healthy"),
    _of_each_or_none("replica", Text, "state"),
    _of_each("replica", Double, "memory_mib_used held_s arrived completed violated dropped queue_length"),
    _of_each("replica", Double, "batch_mean energy_j executions"),
    _of_each_or_none("replica", Double, "latency_ms_p50 latency_ms_p95 latency_ms_p99 execution_ms_mean"),
    _of_each_or_none("replica", BigInteger, "iterations_done"),
)
rate_samples = _table(
    "rate_samples",
    _given(MOMENT, "received_at", "observed_at"),
    _given(Text, "gateway", "boot_id"),
    _given(BigInteger, "sequence"),
    _given(Text, "service", "project"),
    _given(Double, "arrived", "interval_s", "unrouted"),
)
report_log = _table(
    "report_log",
    _given(MOMENT, "received_at"),
    _given(Text, "source", "boot_id"),
    _given(BigInteger, "sequence"),
    _given(MOMENT, "observed_at"),
    _given(Double, "interval_s"),
    _given(Integer, "rows"),
)
report_heads = _table(
    "report_heads",
    _key(Text, "source"),
    _given(Text, "boot_id"),
    _given(BigInteger, "sequence"),
    _given(MOMENT, "observed_at", "received_at"),
    _maybe(Double, "behind_s"),
)
