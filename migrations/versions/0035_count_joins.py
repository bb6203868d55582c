"""Count who joined with a join token, so that one may be for a single node.

Revision ID: 0035
Revises: 0034
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE tokens ADD COLUMN uses_max integer CHECK (uses_max > 0), ADD COLUMN uses integer NOT NULL DEFAULT 0;
CREATE TABLE join_uses (
    token_id text NOT NULL REFERENCES tokens ON DELETE CASCADE,
    node_id text NOT NULL,
    bound text NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (token_id, node_id, bound)
);
"""


def upgrade() -> None:
    """Join tokens that stand are good for any number of nodes, as they were."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Join tokens for a single node would be for everybody: they end."""
    op.execute("UPDATE tokens SET revoked_at = now() WHERE uses_max IS NOT NULL AND revoked_at IS NULL")
    op.execute("DROP TABLE join_uses")
    op.execute("ALTER TABLE tokens DROP COLUMN uses_max, DROP COLUMN uses")
