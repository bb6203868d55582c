"""Create the telemetry tables, partitioned by day of arrival, the heads that refuse repeats, and the read-only role.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

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

# Days are UTC days. Rows that arrived before their partition existed wait in the default partition and are moved in.
ENSURE_PARTITIONS = """
CREATE FUNCTION headroom_ensure_partitions(days_ahead integer) RETURNS integer LANGUAGE plpgsql AS $body$
DECLARE
    parent text;
    day date;
    part text;
    low timestamptz;
    high timestamptz;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_ensure_partitions'));
    FOREACH parent IN ARRAY ARRAY['device_samples', 'replica_samples', 'rate_samples', 'report_log'] LOOP
        IF to_regclass(parent || '_default') IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', parent || '_default', parent);
        END IF;
        FOR ahead IN 0..days_ahead LOOP
            day := (now() AT TIME ZONE 'UTC')::date + ahead;
            part := parent || '_p' || to_char(day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass(part) IS NOT NULL;
            low := day::timestamp AT TIME ZONE 'UTC';
            high := (day + 1)::timestamp AT TIME ZONE 'UTC';
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE)', part, parent);
            EXECUTE format('WITH waiting AS (DELETE FROM %I WHERE received_at >= %L AND received_at < %L RETURNING *)'
                           ' INSERT INTO %I SELECT * FROM waiting', parent || '_default', low, high, part);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, low, high);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END
$body$;
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
    op.execute(ENSURE_PARTITIONS)
    op.execute("SELECT headroom_ensure_partitions(7)")
    op.execute(CREATE_READER)


def downgrade() -> None:
    """Drop them with all they hold."""
    op.execute(DROP_READER)
    op.execute("DROP FUNCTION headroom_ensure_partitions(integer)")
    op.execute("DROP TABLE report_heads, report_log, rate_samples, replica_samples, device_samples")
