"""Take out of stored documents what no longer is a field: nothing was ever planned by it.

Revision ID: 0030
Revises: 0029
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

UPGRADE = """
UPDATE gpu_types SET spec = spec - '{architecture,clocks_mhz_memory,l2_mib}'::text[];
UPDATE services SET spec = jsonb_set(spec, '{slo,scope}', '"end_to_end"') WHERE spec #>> '{slo,scope}' = 'window';
UPDATE tasks SET spec = jsonb_set(spec, '{slo,scope}', '"end_to_end"') WHERE spec #>> '{slo,scope}' = 'window';
"""

DOWNGRADE = """
UPDATE gpu_types SET spec = spec || '{"architecture": "unknown", "clocks_mhz_memory": [], "l2_mib": 1}';
"""


def upgrade() -> None:
    """A promise by windows was planned end to end before, too."""
    op.execute(UPGRADE)


def downgrade() -> None:
    """What has to be there is made up; it had no effect."""
    op.execute(DOWNGRADE)
