"""Say in the database what every view and every column of the reporting views means.

Revision ID: 0028
Revises: 0027
"""

from alembic import op

from app.store.migrate import definition

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

DOWNGRADE = """
DO $body$
DECLARE
    v_object record;
BEGIN
    FOR v_object IN
        SELECT c.relname, a.attname
        FROM pg_description d JOIN pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_class'::regclass
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'v'
    LOOP
        IF v_object.attname IS NULL THEN
            EXECUTE format('COMMENT ON VIEW %I IS NULL', v_object.relname);
        ELSE
            EXECUTE format('COMMENT ON COLUMN %I.%I IS NULL', v_object.relname, v_object.attname);
        END IF;
    END LOOP;
END
$body$;
"""


def upgrade() -> None:
    """Write the comments."""
    op.execute(definition("0028_comments"))


def downgrade() -> None:
    """Take them away."""
    op.execute(DOWNGRADE)
