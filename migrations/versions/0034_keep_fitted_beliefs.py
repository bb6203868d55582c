"""Keep fitted beliefs, so that whoever starts answers with what was learned before.

Revision ID: 0034
Revises: 0033
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE belief_fits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    evidence text NOT NULL,
    as_of timestamptz NOT NULL,
    measurements bigint NOT NULL,
    state jsonb CHECK (pg_column_size(state) <= 67108864),
    fitted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


def upgrade() -> None:
    """Nothing is kept yet; the first planner that leads learns what is stored."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Everything is learned again from what is stored."""
    op.execute("DROP TABLE belief_fits")
