"""Create the telemetry tables, partitioned by day of arrival, the heads that refuse repeats, and the read-only role.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

from app.store.migrate import definition

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# `received_at` is the server's time and decides the partition; `observed_at` is the sender's. All rows of one ingest
# share `received_at`.
TABLES = """
CREATE TABLE device_samples (
    received_at timestamptz NOT NULL DEFAULT now(),
    observed_at timestamptz NOT NULL,
    node_id text NOT NULL,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    interval_s double precision NOT NULL,
    uuid text NOT NULL,
    power_w double precision NOT NULL,
    energy_j double precision NOT NULL,
    utilisation_pct double precision NOT NULL,
    memory_mib_used double precision NOT NULL,
    clock_mhz_sm integer NOT NULL,
    temperature_c double precision,
    share_pct_sm_total integer NOT NULL,
    throttle text NOT NULL,
    healthy boolean NOT NULL
) PARTITION BY RANGE (received_at);
CREATE INDEX device_samples_received_at ON device_samples (received_at);
CREATE INDEX device_samples_uuid ON device_samples (uuid, received_at);

CREATE TABLE replica_samples (
    received_at timestamptz NOT NULL DEFAULT now(),
    observed_at timestamptz NOT NULL,
    node_id text NOT NULL,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    interval_s double precision NOT NULL,
    replica text NOT NULL,
    kind text NOT NULL,
    workload text NOT NULL,
    project text NOT NULL,
    model text NOT NULL,
    uuid text NOT NULL,
    state text NOT NULL,
    share_pct_sm integer NOT NULL,
    sm_count integer NOT NULL,
    memory_mib_limit integer NOT NULL,
    memory_mib_used double precision NOT NULL,
    batch integer NOT NULL,
    held_s double precision NOT NULL,
    arrived double precision NOT NULL,
    completed double precision NOT NULL,
    violated double precision NOT NULL,
    dropped double precision NOT NULL,
    queue_length double precision NOT NULL,
    batch_mean double precision NOT NULL,
    latency_ms_p50 double precision,
    latency_ms_p95 double precision,
    latency_ms_p99 double precision,
    energy_j double precision NOT NULL,
    iterations_done bigint
) PARTITION BY RANGE (received_at);
CREATE INDEX replica_samples_received_at ON replica_samples (received_at);
CREATE INDEX replica_samples_workload ON replica_samples (workload, received_at);

CREATE TABLE rate_samples (
    received_at timestamptz NOT NULL DEFAULT now(),
    observed_at timestamptz NOT NULL,
    gateway text NOT NULL,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    service text NOT NULL,
    project text NOT NULL,
    arrived double precision NOT NULL,
    interval_s double precision NOT NULL,
    unrouted double precision NOT NULL
) PARTITION BY RANGE (received_at);
CREATE INDEX rate_samples_received_at ON rate_samples (received_at);
CREATE INDEX rate_samples_service ON rate_samples (service, received_at);

CREATE TABLE report_log (
    received_at timestamptz NOT NULL DEFAULT now(),
    source text NOT NULL,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    observed_at timestamptz NOT NULL,
    interval_s double precision NOT NULL,
    rows integer NOT NULL
) PARTITION BY RANGE (received_at);
CREATE INDEX report_log_received_at ON report_log (received_at);
CREATE INDEX report_log_source ON report_log (source, boot_id, sequence);

CREATE TABLE report_heads (
    source text PRIMARY KEY,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    observed_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
"""

# A managed PostgreSQL may not let us make roles; everything but the read-only login works without it.
CREATE_READER = """
DO $body$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        CREATE ROLE headroom_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role headroom_reader was not created: insufficient privilege';
    WHEN duplicate_object OR unique_violation THEN
        NULL;
END
$body$;
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        GRANT USAGE ON SCHEMA public TO headroom_reader;
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'headroom_reader was not granted usage of schema public: insufficient privilege';
END
$body$;
"""

# The role belongs to the whole server: it stays when another database still grants it something.
DROP_READER = """
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        REVOKE USAGE ON SCHEMA public FROM headroom_reader;
        DROP ROLE headroom_reader;
    END IF;
EXCEPTION
    WHEN insufficient_privilege OR dependent_objects_still_exist OR undefined_object THEN
        RAISE NOTICE 'role headroom_reader stays: %', SQLERRM;
END
$body$;
"""


def upgrade() -> None:
    """Make tables, the partition function with partitions for a week, and the role."""
    op.execute(TABLES)
    op.execute(definition("0003_ensure_partitions"))
    op.execute("SELECT headroom_ensure_partitions(7)")
    op.execute(CREATE_READER)


def downgrade() -> None:
    """Drop them with all they hold."""
    op.execute(DROP_READER)
    op.execute("DROP FUNCTION headroom_ensure_partitions(integer)")
    op.execute("DROP TABLE report_heads, report_log, rate_samples, replica_samples, device_samples")
