"""Runs that measure a service's process on a device, ordered here and carried out by the device's node.

Revision ID: 0025
Revises: 0024
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE profile_runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id text NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    uuid text NOT NULL REFERENCES devices (uuid) ON DELETE CASCADE,
    service text NOT NULL,
    beside text,
    budget_s double precision NOT NULL CHECK (budget_s > 0),
    drain boolean NOT NULL,
    state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    measured integer NOT NULL DEFAULT 0,
    doubtful integer NOT NULL DEFAULT 0,
    detail text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    expires_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX profile_runs_one_a_device ON profile_runs (uuid) WHERE state IN ('queued', 'running');
CREATE INDEX profile_runs_of_node ON profile_runs (node_id) WHERE state IN ('queued', 'running');
"""


def upgrade() -> None:
    """A table that is empty until somebody orders a run."""
    op.execute(UP)


def downgrade() -> None:
    """Without; what runs measured is in the profiles."""
    op.execute("DROP TABLE profile_runs")
