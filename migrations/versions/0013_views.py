"""Create the views that people and BI tools read, and let the read-only role read them and nothing else.

Revision ID: 0013
Revises: 0012
"""

from alembic import op

from app.store.migrate import definition

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

VIEWS = (
    "cost_by_service_hour", "cost_by_project_day", "idle_by_device_hour", "ledger_check", "slo_by_service_hour",
    "slo_by_service_minute", "energy_by_device_hour", "cost_focus",
)  # fmt: skip

# Views read with their owner's rights, so the reader needs none on the tables. Without the role (no right to make one)
# nothing is granted; `docs/reference/sql.md` says how to do it by hand.
GRANT = f"""
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        GRANT USAGE ON SCHEMA public TO headroom_reader;
        GRANT SELECT ON {", ".join(VIEWS)} TO headroom_reader;
    ELSE
        RAISE NOTICE 'role headroom_reader does not exist; the reporting views were granted to nobody';
    END IF;
END
$body$;
"""


def upgrade() -> None:
    """Make the views and grant them."""
    for name in ("0013_cost_views", "0013_telemetry_views", "0013_cost_focus"):
        op.execute(definition(name))
    op.execute(GRANT)


def downgrade() -> None:
    """Drop the views; their grants go with them."""
    op.execute(f"DROP VIEW {', '.join(reversed(VIEWS))}")
