"""Keep the newest read-back of every node beside its reports: which processes are ready, and where they answer.

Revision ID: 0024
Revises: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE node_read_backs (
    node_id text PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    boot_id text NOT NULL,
    generation bigint NOT NULL,
    observed_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    replicas jsonb NOT NULL
) WITH (fillfactor = 50);
"""


def upgrade() -> None:
    """A table that fills with the next receipts."""
    op.execute(UP)


def downgrade() -> None:
    """Without; routes follow the reports alone."""
    op.execute("DROP TABLE node_read_backs")
