"""Keep what cycles prove of the target while they leave it standing, for its plan may have been made in haste.

Revision ID: 0060
Revises: 0059
"""

from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Null while what the plan says is the newest that is known.
    op.execute(
        "ALTER TABLE cluster_state ADD COLUMN seen_usd_per_h float8, ADD COLUMN seen_bound_usd_per_h float8,"
        " ADD COLUMN seen_at timestamptz"
    )


def downgrade() -> None:
    op.execute(
        "ALTER TABLE cluster_state DROP COLUMN seen_usd_per_h, DROP COLUMN seen_bound_usd_per_h, DROP COLUMN seen_at"
    )
