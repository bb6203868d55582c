"""Create what planning needs and leaves behind, and the edge: tokens, idempotency keys, audit events.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text,
    token bigint NOT NULL DEFAULT 0,
    acquired_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE plans (
    id text PRIMARY KEY,
    lane text NOT NULL CHECK (lane IN ('act', 'approve', 'shadow')),
    state text NOT NULL
        CHECK (state IN ('proposed', 'awaiting_approval', 'promoted', 'superseded', 'rejected', 'shadow')),
    parent_generation bigint NOT NULL,
    generation bigint,
    cycle_id text,
    planner text NOT NULL,
    policy text,
    document jsonb NOT NULL,
    cost_usd_per_h double precision NOT NULL,
    bound_usd_per_h double precision,
    unplaced_count integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    decided_at timestamptz,
    decided_by text
);
CREATE INDEX plans_created_at ON plans (created_at, id);
CREATE INDEX plans_awaiting ON plans (created_at) WHERE state = 'awaiting_approval';
CREATE INDEX plans_promoted ON plans (state) WHERE state = 'promoted';

CREATE TABLE cluster_state (
    cluster text PRIMARY KEY,
    generation bigint NOT NULL DEFAULT 0,
    plan_id text REFERENCES plans (id),
    promoted_at timestamptz NOT NULL DEFAULT now(),
    fencing_token bigint NOT NULL DEFAULT 0
);

CREATE TABLE target_history (
    generation bigint PRIMARY KEY,
    plan_id text NOT NULL REFERENCES plans (id),
    parent_generation bigint NOT NULL,
    promoted_at timestamptz NOT NULL DEFAULT now(),
    promoted_by text NOT NULL,
    fencing_token bigint,
    CHECK (generation = parent_generation + 1)
);
CREATE INDEX target_history_plan_id ON target_history (plan_id);

-- No reference to nodes: a node may be deleted while its last target still stands.
CREATE TABLE node_targets (
    node_id text PRIMARY KEY,
    generation bigint NOT NULL,
    document jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE cycles (
    id text PRIMARY KEY,
    lane text NOT NULL CHECK (lane IN ('act', 'approve', 'shadow')),
    state text NOT NULL CHECK (state IN ('running', 'closed', 'aborted')),
    step text NOT NULL DEFAULT '',
    holder text NOT NULL DEFAULT '',
    fencing_token bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    elapsed_ms double precision,
    policy text,
    planner text,
    snapshot_digest text,
    plan_digest text,
    generation bigint,
    decision jsonb,
    findings_count integer NOT NULL DEFAULT 0,
    software_version text NOT NULL DEFAULT '',
    record bytea
);
CREATE INDEX cycles_started_at ON cycles (started_at, id);
CREATE INDEX cycles_running ON cycles (fencing_token) WHERE state = 'running';

CREATE TABLE planner_states (
    planner text NOT NULL,
    version text NOT NULL,
    state bytea NOT NULL,
    digest text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (planner, version)
);

CREATE TABLE receipts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id text NOT NULL,
    boot_id text NOT NULL,
    generation bigint NOT NULL,
    plan_id text,
    outcome text NOT NULL CHECK (outcome IN ('applied', 'partial', 'refused')),
    observed_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    elapsed_ms double precision NOT NULL,
    problems text[] NOT NULL DEFAULT '{}',
    document jsonb NOT NULL,
    UNIQUE (node_id, boot_id, generation, observed_at)
);
CREATE INDEX receipts_generation ON receipts (generation);
CREATE INDEX receipts_received_at ON receipts (received_at);

CREATE TABLE tokens (
    id text PRIMARY KEY,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('admin', 'operator', 'viewer', 'reporter', 'agent')),
    purpose text CHECK (purpose IN ('join', 'node', 'gateway')),
    project text,
    subject text,
    secret_hash bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
CREATE INDEX tokens_created_at ON tokens (created_at, id);
CREATE INDEX tokens_subject ON tokens (purpose, subject) WHERE subject IS NOT NULL;

CREATE TABLE idempotency_keys (
    token_id text NOT NULL,
    key text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    body_hash bytea NOT NULL,
    reserved_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    status integer,
    headers jsonb,
    body bytea,
    PRIMARY KEY (token_id, key)
);
CREATE INDEX idempotency_keys_reserved_at ON idempotency_keys (reserved_at);

CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    name text NOT NULL,
    actor text NOT NULL,
    subject text NOT NULL,
    project text,
    request_id text,
    facts jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX events_at ON events (at);
CREATE INDEX events_subject ON events (subject, id);
CREATE INDEX events_project ON events (project, id) WHERE project IS NOT NULL;
"""

DOWNGRADE = """
DROP TABLE events, idempotency_keys, tokens, receipts, planner_states, cycles, node_targets, target_history,
    cluster_state, plans, leases;
"""


def upgrade() -> None:
    """Make the tables."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Drop them with all they hold."""
    op.execute(DOWNGRADE)
