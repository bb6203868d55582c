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
    "ensure_partitions": "0036", "heard": "0010", "roll_device_minutes": "0010", "roll_service_minutes": "0010",
    "readings": "0012", "write_ledger": "0049",
}  # fmt: skip


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
        op.execute(definition(f"0050_{name}"))
    op.execute(OPTIONS.replace("{change}", SET))


def downgrade() -> None:
    """The functions as they were."""
    for name, number in BEFORE.items():
        op.execute(definition(f"{number}_{name}"))
    op.execute(OPTIONS.replace("{change}", RESET))
