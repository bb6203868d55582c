"""Sign people in by an identity provider: attempts that are under way.

Revision ID: 0044
Revises: 0043
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE oidc_attempts (
    secret_hash bytea PRIMARY KEY,
    nonce text NOT NULL,
    verifier text NOT NULL,
    back text NOT NULL,
    expires_at timestamptz NOT NULL
);
"""


def upgrade() -> None:
    """Nobody is on the way."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Whoever is on the way begins again; who is signed in stays so."""
    op.execute("DROP TABLE oidc_attempts")
