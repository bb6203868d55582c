"""Keep what was measured beside latency, pairs measured side by side, and what of the built-in library was offered.

Revision ID: 0020
Revises: 0015
"""

from alembic import op

revision = "0020"
down_revision = "0015"
branch_labels = None
depends_on = None

# Members of a pair stand in rising order, so that one pair has one row however it was written. A share may be a part of
# a MIG slice, hence no whole number. Names in library_documents were offered once; whoever deletes such a document
# does not get it back.
UPGRADE = """
ALTER TABLE profile_points
    ALTER COLUMN memory_mib DROP NOT NULL,
    ADD COLUMN throughput_rps double precision,
    ADD COLUMN l2_util_pct double precision,
    ADD COLUMN dram_util_pct double precision;

CREATE TABLE pair_points (
    gpu_type text NOT NULL,
    model_a text NOT NULL,
    batch_a integer NOT NULL,
    share_pct_a double precision NOT NULL,
    model_b text NOT NULL,
    batch_b integer NOT NULL,
    share_pct_b double precision NOT NULL,
    latency_ms_a double precision,
    latency_ms_b double precision,
    origin text NOT NULL,
    source text NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (gpu_type, model_a, batch_a, share_pct_a, model_b, batch_b, share_pct_b)
);
CREATE INDEX pair_points_models ON pair_points (model_a, gpu_type);
CREATE INDEX pair_points_others ON pair_points (model_b, gpu_type);

CREATE TABLE library_documents (
    kind text NOT NULL,
    name text NOT NULL,
    offered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
"""

# A point without memory cannot be told in the older schema; 1 MiB would be a lie, so such points go.
DOWNGRADE = """
DROP TABLE library_documents;
DROP TABLE pair_points;
DELETE FROM profile_points WHERE memory_mib IS NULL;
ALTER TABLE profile_points
    DROP COLUMN dram_util_pct,
    DROP COLUMN l2_util_pct,
    DROP COLUMN throughput_rps,
    ALTER COLUMN memory_mib SET NOT NULL;
"""


def upgrade() -> None:
    """Widen the points and add the two tables."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """Back to latency, memory and power of models alone."""
    op.execute(DOWNGRADE)
