"""Keep plans that wait for approval until somebody decides, and let a rollback hold planning.

Revision ID: 0040
Revises: 0039
"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

UPGRADE = """
ALTER TABLE plans
    ADD COLUMN matter text,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN comment text,
    ADD COLUMN blocked text[] NOT NULL DEFAULT '{}';
ALTER TABLE cluster_state
    ADD COLUMN held_until timestamptz,
    ADD COLUMN held_by text,
    ADD COLUMN held_for text;
CREATE INDEX plans_waiting ON plans (lane, created_at) WHERE state = 'awaiting_approval';
"""
DOWNGRADE = """
DROP INDEX plans_waiting;
ALTER TABLE cluster_state DROP COLUMN held_until, DROP COLUMN held_by, DROP COLUMN held_for;
ALTER TABLE plans DROP COLUMN matter, DROP COLUMN expires_at, DROP COLUMN comment, DROP COLUMN blocked;
"""


def upgrade() -> None:
    """What waits already waits without an end, until somebody decides."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """One waiting plan at most is what the release before knows."""
    op.execute(
        "UPDATE plans SET state = 'superseded' WHERE state = 'awaiting_approval' AND (expires_at <= now() OR"
        " created_at < (SELECT max(created_at) FROM plans WHERE state = 'awaiting_approval'))"
    )
    op.execute(DOWNGRADE)
