"""Let people read what workers write: who reads, and what nodes handed over for them.

Revision ID: 0043
Revises: 0042
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE UNLOGGED TABLE log_requests (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    reader text NOT NULL,
    node_id text NOT NULL,
    replica text NOT NULL,
    lines integer NOT NULL,
    pieces jsonb NOT NULL DEFAULT '[]',
    asked_at timestamptz,
    answered_at timestamptz,
    made_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    UNIQUE (reader, node_id, replica)
);
CREATE INDEX log_requests_of_node ON log_requests (node_id);
"""


def upgrade() -> None:
    """Lines lie here until their reader has them, for seconds: nothing is lost with them."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Logs are their nodes'."""
    op.execute("DROP TABLE log_requests")
