"""Write labels among the tags of the FOCUS view.

Revision ID: 0045
Revises: 0044
"""

from alembic import op

from app.store.migrate import definition

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

SAID_BEFORE = """COMMENT ON COLUMN cost_focus."Tags" IS 'Project, workload, model and kind as an object.'"""


def upgrade() -> None:
    """The same columns; grants and other comments stay."""
    op.execute(definition("0045_focus_labels"))


def downgrade() -> None:
    """Tags as they were."""
    op.execute(definition("0013_cost_focus"))
    op.execute(SAID_BEFORE)
