"""Take the right to call Headroom's functions from PUBLIC: they write the ledger and drop telemetry, for their owner
alone.

Revision ID: 0015
Revises: 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# PostgreSQL lets everybody call a new function. A stranger's call failed at the tables behind it anyway, but that
# should not be all that stands between a reader and the books. No view calls one of these functions, so readers lose
# nothing, and the owner's own right stays. A later migration that makes a function has to revoke it too: a test looks
# for it.
EACH_FUNCTION = """
DO $body$
DECLARE
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT oid FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND starts_with(proname, 'headroom_')
    LOOP
        EXECUTE format('{change}', v_function);
    END LOOP;
END
$body$;
"""


def upgrade() -> None:
    """Only the owner may call them."""
    op.execute(EACH_FUNCTION.format(change="REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC"))


def downgrade() -> None:
    """Everybody may, as PostgreSQL has it from the start."""
    op.execute(EACH_FUNCTION.format(change="GRANT EXECUTE ON FUNCTION %s TO PUBLIC"))
