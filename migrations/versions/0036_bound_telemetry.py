"""Keep samples by the three hours, and let retention bound bytes beside time.

Revision ID: 0036
Revises: 0035
"""

from alembic import op

from app.store.migrate import definition

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

SIGNATURES = "headroom_drop_raw(timestamptz, integer{raw}), headroom_drop_minutes(timestamptz, integer{minutes})"
OLD = SIGNATURES.format(raw="", minutes="")
NEW = SIGNATURES.format(raw=", integer, bigint", minutes=", bigint")
ADDED = "headroom_size_cut(text[], numeric, timestamptz), headroom_partitions(text)"

# Days that hold nothing yet, most of all the coming ones; one that holds something goes on to its end.
DROP_EMPTY_DAYS = """
DO $body$
DECLARE
    v_part regclass;
    v_is_used boolean;
BEGIN
    FOR v_part IN
        SELECT part FROM unnest(ARRAY['device_samples', 'replica_samples']) AS parent, headroom_partitions(parent)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', v_part) INTO v_is_used;
        IF NOT v_is_used THEN
            EXECUTE format('DROP TABLE %s', v_part);
        END IF;
    END LOOP;
END
$body$;
"""

# Rows go through the default partition into the days that are made next; those of earlier days stay there.
JOIN_HOURS = """
DO $body$
DECLARE
    v_parent text;
    v_part regclass;
BEGIN
    FOR v_parent, v_part IN
        SELECT parent, part FROM unnest(ARRAY['device_samples', 'replica_samples']) AS parent,
            headroom_partitions(parent) WHERE end_at - start_at < INTERVAL '1 day'
    LOOP
        EXECUTE format('ALTER TABLE %I DETACH PARTITION %s', v_parent, v_part);
        EXECUTE format('INSERT INTO %I SELECT * FROM %s', v_parent, v_part);
        EXECUTE format('DROP TABLE %s', v_part);
    END LOOP;
END
$body$;
"""


def upgrade() -> None:
    """Make the functions and the partitions of the coming hours."""
    op.execute(f"DROP FUNCTION {OLD}")
    op.execute(definition("0036_ensure_partitions"))
    op.execute(definition("0036_retention"))
    op.execute(f"REVOKE EXECUTE ON FUNCTION {NEW}, {ADDED} FROM PUBLIC")
    op.execute(DROP_EMPTY_DAYS)
    op.execute("SELECT headroom_ensure_partitions(7)")


def downgrade() -> None:
    """Go back to days; nothing that is stored goes."""
    op.execute(JOIN_HOURS)
    op.execute(f"DROP FUNCTION {NEW}, {ADDED}")
    op.execute(definition("0003_ensure_partitions"))
    op.execute(definition("0014_retention"))
    op.execute(f"REVOKE EXECUTE ON FUNCTION {OLD} FROM PUBLIC")
    op.execute("SELECT headroom_ensure_partitions(7)")
