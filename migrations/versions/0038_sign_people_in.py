"""Sign people in at the console: what their cookie stands for, and links that do so once.

Revision ID: 0038
Revises: 0037
"""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE sign_ins (
    id text PRIMARY KEY,
    token_id text NOT NULL REFERENCES tokens ON DELETE CASCADE,
    secret_hash bytea NOT NULL UNIQUE,
    browser text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    ended_at timestamptz
);
CREATE INDEX sign_ins_of_token ON sign_ins (token_id, created_at);
CREATE TABLE sign_in_links (
    secret_hash bytea PRIMARY KEY,
    token_id text NOT NULL REFERENCES tokens ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
"""


def upgrade() -> None:
    """Whoever was signed in with a token in the cookie signs in again."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Everybody is signed out."""
    op.execute("DROP TABLE sign_in_links, sign_ins")
