"""Store a report of a node as one row of arrays; what it names stands once for all reports that name the same.

Revision ID: 0052
Revises: 0051
"""

from alembic import op

from app.store.migrate import definition

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

BEFORE = {
    "0052_ensure_partitions": "0051_ensure_partitions",
    "0052_retention": "0036_retention",
    "0052_roll_device_minutes": "0050_roll_device_minutes",
    "0052_roll_service_minutes": "0050_roll_service_minutes",
    "0052_readings": "0050_readings",
    "0052_write_ledger": "0050_write_ledger",
}

# What devices and processes are called, and what plans alone change of them, stands in `sample_shapes`: once in the
# three hours that begin at `received_at`, and dropped with the samples of these hours. `shape` is a digest of all of
# it. Arrays of `node_samples` have an element for each device or process of their shape, in its order; those that say
# nothing are NULL: no throttling, all healthy, all ready, nothing measured. They are compressed in their row, never
# moved out of it unless a row would not fit into a page.
TABLES = """
CREATE TABLE sample_shapes (
    received_at timestamptz NOT NULL DEFAULT date_bin(INTERVAL '3 hours', now(), TIMESTAMPTZ '2000-01-01 00:00:00+00'),
    shape uuid NOT NULL,
    node_id text NOT NULL,
    device_uuid text[] NOT NULL,
    replica_name text[] NOT NULL,
    replica_kind text[] NOT NULL,
    replica_workload text[] NOT NULL,
    replica_project text[] NOT NULL,
    replica_model text[] NOT NULL,
    replica_uuid text[] NOT NULL,
    replica_share_pct_sm integer[] NOT NULL,
    replica_sm_count integer[] NOT NULL,
    replica_memory_mib_limit integer[] NOT NULL,
    replica_batch integer[] NOT NULL,
    PRIMARY KEY (received_at, shape)
) PARTITION BY RANGE (received_at);
CREATE INDEX sample_shapes_device ON sample_shapes USING gin (device_uuid);
CREATE INDEX sample_shapes_workload ON sample_shapes USING gin (replica_workload);

CREATE TABLE node_samples (
    received_at timestamptz NOT NULL DEFAULT now(),
    shaped_at timestamptz NOT NULL DEFAULT date_bin(INTERVAL '3 hours', now(), TIMESTAMPTZ '2000-01-01 00:00:00+00'),
    shape uuid NOT NULL,
    observed_at timestamptz NOT NULL,
    node_id text NOT NULL,
    boot_id text NOT NULL,
    sequence bigint NOT NULL,
    interval_s double precision NOT NULL,
    device_power_w double precision[] NOT NULL,
    device_energy_j double precision[] NOT NULL,
    device_utilisation_pct double precision[] NOT NULL,
    device_memory_mib_used double precision[] NOT NULL,
    device_clock_mhz_sm integer[] NOT NULL,
    device_share_pct_sm_total integer[] NOT NULL,
    device_temperature_c double precision[],
    device_throttle text[],
    device_healthy boolean[],
    replica_state text[],
    replica_memory_mib_used double precision[] NOT NULL,
    replica_held_s double precision[] NOT NULL,
    replica_arrived double precision[] NOT NULL,
    replica_completed double precision[] NOT NULL,
    replica_violated double precision[] NOT NULL,
    replica_dropped double precision[] NOT NULL,
    replica_queue_length double precision[] NOT NULL,
    replica_batch_mean double precision[] NOT NULL,
    replica_energy_j double precision[] NOT NULL,
    replica_executions double precision[] NOT NULL,
    replica_latency_ms_p50 double precision[],
    replica_latency_ms_p95 double precision[],
    replica_latency_ms_p99 double precision[],
    replica_execution_ms_mean double precision[],
    replica_iterations_done bigint[]
) PARTITION BY RANGE (received_at);
CREATE INDEX node_samples_received_at ON node_samples (received_at);
CREATE INDEX node_samples_node ON node_samples (node_id, received_at);
"""

IN_THEIR_ROW = """
DO $body$
DECLARE
    v_table text;
    v_column text;
BEGIN
    FOR v_table, v_column IN
        SELECT attrelid::regclass, attname FROM pg_attribute
        WHERE attrelid IN ('sample_shapes'::regclass, 'node_samples'::regclass) AND attnum > 0 AND attndims > 0
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STORAGE MAIN, ALTER COLUMN %I SET STATISTICS 0', v_table,
            v_column, v_column);
    END LOOP;
END
$body$;
"""

# Rows that stand stay as they are, in the tables they are in, until retention drops them. The hours to come are empty.
SET_ASIDE = """
ALTER TABLE device_samples RENAME TO device_sample_rows;
ALTER TABLE device_samples_default RENAME TO device_sample_rows_default;
ALTER TABLE replica_samples RENAME TO replica_sample_rows;
ALTER TABLE replica_samples_default RENAME TO replica_sample_rows_default;
DO $body$
DECLARE
    v_part regclass;
    v_is_used boolean;
BEGIN
    FOR v_part IN
        SELECT part FROM unnest(ARRAY['device_sample_rows', 'replica_sample_rows']) AS parent,
            headroom_partitions(parent)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', v_part) INTO v_is_used;
        IF NOT v_is_used THEN
            EXECUTE format('DROP TABLE %s', v_part);
        END IF;
    END LOOP;
END
$body$;
"""

# Rows of reports become rows of samples again, in partitions of their own hours.
UNPACK = """
ALTER TABLE device_sample_rows RENAME TO device_samples;
ALTER TABLE device_sample_rows_default RENAME TO device_samples_default;
ALTER TABLE replica_sample_rows RENAME TO replica_samples;
ALTER TABLE replica_sample_rows_default RENAME TO replica_samples_default;
INSERT INTO device_samples SELECT * FROM unpacked_devices;
INSERT INTO replica_samples SELECT * FROM unpacked_replicas;
DROP VIEW unpacked_devices, unpacked_replicas;
DROP TABLE node_samples, sample_shapes;
"""


def upgrade() -> None:
    """Rows that stand keep their place; views of their names show them and what is unpacked."""
    op.execute(TABLES)
    op.execute(IN_THEIR_ROW)
    op.execute(SET_ASIDE)
    op.execute(definition("0052_samples"))
    op.execute("REVOKE EXECUTE ON FUNCTION headroom_keep_sample() FROM PUBLIC")
    for name in BEFORE:
        op.execute(definition(name))
    for parent in ("sample_shapes", "node_samples"):
        op.execute(f"SELECT headroom_ensure_partitions(7, '{parent}')")


def downgrade() -> None:
    """A row for each sample again; nothing that is stored goes."""
    op.execute("DROP VIEW device_samples, replica_samples, service_samples")
    op.execute("DROP FUNCTION headroom_keep_sample()")
    op.execute(UNPACK)
    for name in BEFORE.values():
        op.execute(definition(name))
    op.execute("SELECT headroom_ensure_partitions(7)")
