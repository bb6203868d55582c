"""Create the roll-ups of telemetry by minute and hour, and the rule that places a report on the time line.

Revision ID: 0010
Revises: 0003
"""

from alembic import op

from app.store.migrate import definition

revision = "0010"
down_revision = "0003"
branch_labels = None
depends_on = None

# Attainment counts requests whose fate is known: answered, dropped, or refused at the edge. Defined once, as a
# generated column.
ATTAINMENT = """double precision GENERATED ALWAYS AS (
        CASE WHEN completed + dropped + unrouted > 0
             THEN greatest(0, completed - violated) / (completed + dropped + unrouted) END) STORED"""

DEVICE_COLUMNS = """
    device_uuid text NOT NULL,
    node_id text NOT NULL,
    observed_s double precision NOT NULL,
    reports integer NOT NULL,
    energy_j double precision NOT NULL,
    power_w_mean double precision NOT NULL,
    power_w_max double precision NOT NULL,
    utilisation_pct_mean double precision NOT NULL,
    memory_mib_used_mean double precision NOT NULL,
    memory_mib_used_max double precision NOT NULL,
    clock_mhz_sm_mean double precision NOT NULL,
    share_pct_sm_mean double precision NOT NULL,
    temperature_c_max double precision,
    throttled_s double precision NOT NULL,
    unhealthy_s double precision NOT NULL"""

SERVICE_COLUMNS = f"""
    service text NOT NULL,
    project text NOT NULL,
    offered double precision,
    unrouted double precision NOT NULL,
    arrived double precision NOT NULL,
    completed double precision NOT NULL,
    violated double precision NOT NULL,
    dropped double precision NOT NULL,
    replicas_mean double precision NOT NULL,
    share_pct_sm_mean double precision NOT NULL,
    memory_mib_used_mean double precision NOT NULL,
    queue_length_mean double precision NOT NULL,
    latency_ms_p50 double precision,
    latency_ms_p95 double precision,
    latency_ms_p99 double precision,
    latency_ms_p99_max double precision,
    energy_j double precision NOT NULL,
    slo_attainment {ATTAINMENT}"""

TABLES = f"""
CREATE TABLE device_minutes (minute timestamptz NOT NULL, {DEVICE_COLUMNS}, PRIMARY KEY (device_uuid, minute));
CREATE INDEX device_minutes_minute ON device_minutes (minute);
CREATE TABLE service_minutes (minute timestamptz NOT NULL, {SERVICE_COLUMNS}, PRIMARY KEY (service, minute));
CREATE INDEX service_minutes_minute ON service_minutes (minute);
CREATE TABLE device_hours (hour timestamptz NOT NULL, {DEVICE_COLUMNS}, PRIMARY KEY (device_uuid, hour));
CREATE INDEX device_hours_hour ON device_hours (hour);
CREATE TABLE service_hours (hour timestamptz NOT NULL, {SERVICE_COLUMNS}, PRIMARY KEY (service, hour));
CREATE INDEX service_hours_hour ON service_hours (hour);
CREATE TABLE accounting_marks (name text PRIMARY KEY, at timestamptz NOT NULL);
"""

DEFINITIONS = (
    "0010_heard", "0010_report_spans", "0010_report_pieces", "0010_roll_device_minutes", "0010_roll_service_minutes",
    "0010_roll_minutes", "0010_roll_hours",
)  # fmt: skip

DOWNGRADE = """
DROP FUNCTION headroom_roll_hours(timestamptz, timestamptz), headroom_roll_minutes(timestamptz, timestamptz),
    headroom_roll_service_minutes(timestamptz, timestamptz), headroom_roll_device_minutes(timestamptz, timestamptz),
    headroom_report_pieces(timestamptz, timestamptz), headroom_report_spans(timestamptz, timestamptz),
    headroom_heard(timestamptz, timestamptz);
DROP TABLE accounting_marks, service_hours, device_hours, service_minutes, device_minutes;
"""


def upgrade() -> None:
    """Make the tables, then the functions that fill them."""
    op.execute(TABLES)
    for name in DEFINITIONS:
        op.execute(definition(name))


def downgrade() -> None:
    """Drop them with all they hold; the telemetry they came from stays."""
    op.execute(DOWNGRADE)
