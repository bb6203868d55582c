"""Keep labels of projects and workloads for the ledger, and monthly budgets as documents.

Revision ID: 0042
Revises: 0041
"""

from alembic import op

from app.store.migrate import definition

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE workload_labels (
    kind text NOT NULL CHECK (kind IN ('project', 'service', 'job', 'task')),
    subject text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (kind, subject, key)
);
CREATE TABLE budgets (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
"""
GRANT = """
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        GRANT SELECT ON cost_by_label_day TO headroom_reader;
    END IF;
END
$body$;
"""
DOWNGRADE = """
DROP VIEW cost_by_label_day;
DROP TRIGGER projects_labels ON projects;
DROP TRIGGER services_labels ON services;
DROP TRIGGER jobs_labels ON jobs;
DROP TRIGGER tasks_labels ON tasks;
DROP FUNCTION headroom_keep_labels();
DROP TABLE workload_labels, budgets;
UPDATE projects SET spec = spec - 'labels' WHERE spec ? 'labels';
UPDATE services SET spec = spec - 'labels' WHERE spec ? 'labels';
UPDATE jobs SET spec = spec - 'labels' WHERE spec ? 'labels';
UPDATE tasks SET spec = spec - 'labels' WHERE spec ? 'labels';
"""


def upgrade() -> None:
    """No document has labels yet, but for nodes, which the ledger does not group by."""
    for statement in (TABLES, definition("0042_labels"), GRANT):
        op.execute(statement)
    op.execute("REVOKE EXECUTE ON FUNCTION headroom_keep_labels() FROM PUBLIC")


def downgrade() -> None:
    """The release before knows no such field."""
    op.execute(DOWNGRADE)
