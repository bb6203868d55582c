"""Keep which devices execute slower than others of their type.

Revision ID: 0055
Revises: 0054
"""

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

# `factor`: how many times as long as others of its type a device takes; `since`: when that was found; `seen_at`: when
# it was seen last. A device without a row is as fast as its type, as far as is known.
TABLE = """
CREATE TABLE slow_devices (
    uuid text PRIMARY KEY,
    gpu_type text NOT NULL,
    factor double precision NOT NULL CHECK (factor >= 1),
    since timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
)
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE slow_devices")
