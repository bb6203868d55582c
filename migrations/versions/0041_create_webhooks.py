"""Declare webhooks, remember which alarms stand, and keep what is to be delivered until it was.

Revision ID: 0041
Revises: 0040
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE webhooks (
    name text PRIMARY KEY,
    spec jsonb NOT NULL,
    version bigint NOT NULL DEFAULT nextval('document_versions'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE alarms (
    name text NOT NULL,
    subject text NOT NULL,
    project text,
    began_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, subject)
);

CREATE TABLE webhook_marks (
    name text PRIMARY KEY,
    seen_until timestamptz NOT NULL
);
INSERT INTO webhook_marks VALUES ('events', now());

CREATE TABLE webhook_deliveries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook text NOT NULL REFERENCES webhooks (name) ON DELETE CASCADE,
    event_id bigint NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up', 'dropped')),
    attempts integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    next_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    status integer,
    error text,
    UNIQUE (webhook, event_id)
);
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (webhook, id) WHERE state = 'waiting';
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    """What waits is lost."""
    op.execute("DROP TABLE webhook_deliveries, webhook_marks, alarms, webhooks")
