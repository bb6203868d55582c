"""Account minutes for less: the log is summed up before it is sorted, and nothing is read that came later. Autovacuum
leaves telemetry alone.

Revision ID: 0050
Revises: 0049
"""

from alembic import op

from app.store.migrate import definition

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

BEFORE = {
    "0050_ensure_partitions": "0036_ensure_partitions",
    "0050_heard": "0010_heard",
    "0050_roll_device_minutes": "0010_roll_device_minutes",
    "0050_roll_service_minutes": "0010_roll_service_minutes",
    "0050_readings": "0012_readings",
    "0050_write_ledger": "0049_write_ledger",
}


OPTIONS = """
DO $body$
DECLARE
    v_part regclass;
BEGIN
    FOR v_part IN
        SELECT part FROM unnest(ARRAY['device_samples', 'replica_samples', 'rate_samples', 'report_log']) AS parent,
            headroom_partitions(parent)
    LOOP
        EXECUTE format('ALTER TABLE %s {change}', v_part);
    END LOOP;
END
$body$;
"""
SET = "SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.5)"
RESET = "RESET (autovacuum_vacuum_insert_threshold, autovacuum_analyze_scale_factor)"


def upgrade() -> None:
    """The same rows for less."""
    for name in BEFORE:
        op.execute(definition(name))
    op.execute(OPTIONS.replace("{change}", SET))


def downgrade() -> None:
    """The functions as they were."""
    for name in BEFORE.values():
        op.execute(definition(name))
    op.execute(OPTIONS.replace("{change}", RESET))
