"""Remember when work began and ended and how long it executed, and show what became of offline tasks.

Revision ID: 0027
Revises: 0026
"""

from alembic import op

from app.store.migrate import definition

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

TABLES = """
ALTER TABLE job_progress
    ADD COLUMN begun_at timestamptz,
    ADD COLUMN finished_at timestamptz,
    ADD COLUMN executions double precision NOT NULL DEFAULT 0,
    ADD COLUMN executed_ms double precision NOT NULL DEFAULT 0;
"""

GRANT = """
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        GRANT SELECT ON task_outcomes, task_error_by_model TO headroom_reader;
    ELSE
        RAISE NOTICE 'role headroom_reader does not exist; the views of tasks were granted to nobody';
    END IF;
END
$body$;
"""

DOWNGRADE = """
DROP VIEW task_error_by_model, task_outcomes;
ALTER TABLE job_progress DROP COLUMN executed_ms, DROP COLUMN executions, DROP COLUMN finished_at, DROP COLUMN begun_at;
"""


def upgrade() -> None:
    """Make columns and views."""
    for statement in (TABLES, definition("0027_task_views"), GRANT):
        op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    op.execute(DOWNGRADE)
