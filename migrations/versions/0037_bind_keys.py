"""Bind keys to nodes, and remember which nodes were turned out.

Revision ID: 0037
Revises: 0036
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE node_keys (
    node_id text NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    key text NOT NULL,
    authority text,
    issued_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    PRIMARY KEY (node_id, key)
);
ALTER TABLE node_states ADD COLUMN revoked_at timestamptz;
"""


def upgrade() -> None:
    """No node has a key yet: their tokens do."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Tokens of nodes with keys would be good for everybody: they end."""
    op.execute(
        "UPDATE tokens SET revoked_at = now() WHERE purpose = 'node' AND revoked_at IS NULL"
        " AND subject IN (SELECT node_id FROM node_keys)"
    )
    op.execute("DROP TABLE node_keys")
    op.execute("ALTER TABLE node_states DROP COLUMN revoked_at")
