"""Create the declarative documents, the live state beside them and the measured profile points.

Revision ID: 0001
Revises:
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Versions come from one sequence, so that a document deleted and made again never gets an ETag that somebody still
# holds.
UPGRADE = """
CREATE SEQUENCE document_versions AS bigint;

CREATE TABLE gpu_types (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE models (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE policies (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE projects (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE power_caps (
    scope text NOT NULL,
    subject text NOT NULL,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, subject)
);

CREATE TABLE nodes (
    id text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE devices (
    uuid text PRIMARY KEY,
    node_id text NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    gpu_type text NOT NULL REFERENCES gpu_types (name),
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    billed_from timestamptz NOT NULL DEFAULT now(),
    billed_until timestamptz,
    driver_version text NOT NULL DEFAULT '',
    capabilities jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX devices_node_id ON devices (node_id);
CREATE INDEX devices_gpu_type ON devices (gpu_type);

CREATE TABLE services (
    project text NOT NULL REFERENCES projects (name),
    name text NOT NULL,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project, name)
);

CREATE TABLE jobs (
    project text NOT NULL REFERENCES projects (name),
    name text NOT NULL,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project, name)
);

CREATE TABLE tasks (
    project text NOT NULL REFERENCES projects (name),
    name text NOT NULL,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project, name)
);

CREATE TABLE node_states (
    node_id text PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    boot_id text NOT NULL,
    endpoint text,
    agent_version text NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT now(),
    last_report_at timestamptz,
    generation_applied bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE job_progress (
    kind text NOT NULL CHECK (kind IN ('job', 'task')),
    project text NOT NULL,
    name text NOT NULL,
    done double precision NOT NULL DEFAULT 0,
    evictions integer NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, project, name)
) WITH (fillfactor = 50);

CREATE TABLE profile_points (
    model text NOT NULL,
    gpu_type text NOT NULL,
    neighbours text[] NOT NULL DEFAULT '{}',
    clock_mhz_sm integer NOT NULL,
    share_pct_sm integer NOT NULL,
    batch integer NOT NULL,
    latency_ms_mean double precision NOT NULL,
    latency_ms_p99 double precision,
    memory_mib double precision NOT NULL,
    power_w double precision,
    origin text NOT NULL,
    source text NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, gpu_type, neighbours, clock_mhz_sm, share_pct_sm, batch)
);
CREATE INDEX profile_points_gpu_type ON profile_points (gpu_type);
"""

DOWNGRADE = """
DROP TABLE profile_points, job_progress, node_states, tasks, jobs, services, devices, nodes, power_caps, projects,
    policies, models, gpu_types;
DROP SEQUENCE document_versions;
"""


def upgrade() -> None:
    """Make the tables."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Drop them with all they hold."""
    op.execute(DOWNGRADE)
