"""Count no admitted, rejected or predicted outcome as 0, so that both parts add up to all.

Revision ID: 0061
Revises: 0060
"""

from alembic import op

from app.store.migrate import definition

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(definition("0061_prediction_errors"))


def downgrade() -> None:
    op.execute(definition("0021_outcome_views"))
