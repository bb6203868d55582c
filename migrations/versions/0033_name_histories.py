"""Give every cluster an id and its history an epoch, so that agents tell a restored history from an old one, and their
own control plane from another.

Revision ID: 0033
Revises: 0032
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE cluster_state
    ADD COLUMN cluster_id uuid NOT NULL DEFAULT gen_random_uuid(), ADD COLUMN epoch bigint NOT NULL DEFAULT 1;
"""


def upgrade() -> None:
    """A cluster that stands is in its first epoch; one without a row gets its id at its first start."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Agents that know the id go on without it, by generations."""
    op.execute("ALTER TABLE cluster_state DROP COLUMN cluster_id, DROP COLUMN epoch")
