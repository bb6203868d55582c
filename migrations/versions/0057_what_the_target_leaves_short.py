"""Keep what the target leaves short now, which its plan knew only of when it was made.

Revision ID: 0057
Revises: 0056
"""

from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # As a plan tells it; null while what the plan says is the newest that is known.
    op.execute("ALTER TABLE cluster_state ADD COLUMN short jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE cluster_state DROP COLUMN short")
