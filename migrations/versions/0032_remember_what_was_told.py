"""Remember for a while which replicas each node was told to hold: nobody may speak for others. Tell the boots of a node
apart by the order in which they joined.

Revision ID: 0032
Revises: 0031
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE TABLE told_replicas (
    node_id text NOT NULL,
    uuid text NOT NULL,
    replica text NOT NULL,
    kind text NOT NULL,
    workload text NOT NULL,
    model text NOT NULL,
    share_pct_sm integer NOT NULL,
    memory_mib_limit integer NOT NULL,
    told_until timestamptz,
    PRIMARY KEY (node_id, uuid, replica, kind, workload, model, share_pct_sm, memory_mib_limit)
);
INSERT INTO told_replicas
SELECT DISTINCT node_id, device ->> 'uuid', told ->> 'replica', told ->> 'kind', told ->> 'workload', told ->> 'model',
    (told ->> 'share_pct_sm')::integer, (told ->> 'memory_mib_limit')::integer, NULL::timestamptz
FROM node_targets, jsonb_array_elements(document -> 'devices') AS device,
    jsonb_array_elements(device -> 'replicas') AS told;
ALTER TABLE node_states ADD COLUMN worker_host text, ADD COLUMN boots text[] NOT NULL DEFAULT '{}';
UPDATE node_states SET boots = ARRAY[boot_id];
"""

DOWNGRADE = """
ALTER TABLE node_states DROP COLUMN worker_host, DROP COLUMN boots;
DROP TABLE told_replicas;
"""


def upgrade() -> None:
    """What nodes hold now was told to them."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """What nodes hold now is in their targets."""
    op.execute(DOWNGRADE)
