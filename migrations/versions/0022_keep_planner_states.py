"""Keep several states of a planner, by digest, so that cycles of some time ago can be repeated exactly.

Revision ID: 0022
Revises: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE planner_states DROP CONSTRAINT planner_states_pkey;
ALTER TABLE planner_states ADD PRIMARY KEY (planner, version, digest);
"""
DOWN = """
DELETE FROM planner_states AS old USING planner_states AS new
    WHERE (old.planner, old.version) = (new.planner, new.version)
        AND (old.updated_at, old.digest) < (new.updated_at, new.digest);
ALTER TABLE planner_states DROP CONSTRAINT planner_states_pkey;
ALTER TABLE planner_states ADD PRIMARY KEY (planner, version);
"""


def upgrade() -> None:
    """Several states."""
    op.execute(UP)


def downgrade() -> None:
    """The newest alone."""
    op.execute(DOWN)
