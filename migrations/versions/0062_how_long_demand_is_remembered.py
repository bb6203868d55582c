"""Keep how long each service's busiest moment is remembered.

Revision ID: 0062
Revises: 0061
"""

from alembic import op

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None

# A service without a row is looked back at for all the time that its policy says.
TABLE = """
CREATE TABLE demand_memories (
    service text PRIMARY KEY,
    memory_s double precision NOT NULL CHECK (memory_s > 0),
    learned_at timestamptz NOT NULL
)
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE demand_memories")
