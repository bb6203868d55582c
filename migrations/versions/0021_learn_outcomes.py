"""Take execution times in, keep what outcomes taught, and show how far predictions were off.

Revision ID: 0021
Revises: 0020
"""

from alembic import op

from app.store.migrate import definition

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

# Agents that do not measure executions report none. One row of outcome_points is one configuration with a short window
# of values (state), whatever the number of its outcomes; outcome_hours counts every outcome once, by what became of it.
TABLES = """
ALTER TABLE replica_samples
    ADD COLUMN executions double precision NOT NULL DEFAULT 0,
    ADD COLUMN execution_ms_mean double precision;

CREATE TABLE outcome_points (
    model text NOT NULL,
    gpu_type text NOT NULL,
    share_pct_sm integer NOT NULL,
    clock_mhz_sm integer NOT NULL,
    batch_step integer NOT NULL,
    neighbours text[] NOT NULL,
    batch double precision NOT NULL,
    latency_ms double precision,
    outcomes bigint NOT NULL,
    values_kept integer NOT NULL,
    state jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (model, gpu_type, share_pct_sm, clock_mhz_sm, batch_step, neighbours)
);

CREATE TABLE belief_monitors (
    model text NOT NULL,
    gpu_type text NOT NULL,
    state jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, gpu_type)
);

CREATE TABLE learning_marks (
    name text PRIMARY KEY,
    seen_until timestamptz NOT NULL,
    fencing_token bigint NOT NULL,
    admitted bigint NOT NULL DEFAULT 0,
    rejected bigint NOT NULL DEFAULT 0,
    rebuilt bigint NOT NULL DEFAULT 0,
    rejections jsonb NOT NULL DEFAULT '{}',
    told_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE outcome_hours (
    hour timestamptz NOT NULL,
    model text NOT NULL,
    gpu_type text NOT NULL,
    verdict text NOT NULL,
    outcomes bigint NOT NULL,
    executions double precision NOT NULL,
    predicted bigint NOT NULL,
    error_sum double precision NOT NULL,
    error_abs_sum double precision NOT NULL,
    error_square_sum double precision NOT NULL,
    error_abs_max double precision NOT NULL,
    inside_80 bigint NOT NULL,
    inside_95 bigint NOT NULL,
    PRIMARY KEY (hour, model, gpu_type, verdict)
);
"""

GRANT = """
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        GRANT SELECT ON prediction_error_by_model_hour, outcome_by_verdict_hour TO headroom_reader;
    ELSE
        RAISE NOTICE 'role headroom_reader does not exist; the views of outcomes were granted to nobody';
    END IF;
END
$body$;
"""

DOWNGRADE = """
DROP VIEW outcome_by_verdict_hour, prediction_error_by_model_hour;
DROP TABLE outcome_hours, learning_marks, belief_monitors, outcome_points;
ALTER TABLE replica_samples DROP COLUMN execution_ms_mean, DROP COLUMN executions;
"""


def upgrade() -> None:
    """Make columns, tables and views."""
    for statement in (TABLES, definition("0021_outcome_views"), GRANT):
        op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    op.execute(DOWNGRADE)
