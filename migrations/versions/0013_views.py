"""Create the views that people and BI tools read, and let the read-only role read them and nothing else.

Revision ID: 0013
Revises: 0012
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# Units in names; hours and days are UTC whatever the reader's time zone is. energy_kwh times a grid's gCO2/kWh gives
# carbon.
AMOUNTS = """sum(usd_memory) AS usd_memory, sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole,
        sum(usd_energy) AS usd_energy,
        round(sum(seconds) / 3600, 6) AS held_h, round(sum(share_pct_sm_seconds) / 360000, 6) AS share_gpu_h,
        round(sum(memory_mib_seconds) / 3686400, 6) AS memory_gib_h,
        round(sum(memory_mib_seconds_reserved) / 3686400, 6) AS memory_gib_h_reserved,
        round(sum(energy_j) / 3600000, 9) AS energy_kwh"""

COST = f"""
CREATE VIEW cost_by_service_hour AS
    SELECT l.*, s.offered AS requests_offered, s.completed AS requests_completed, s.slo_attainment
    FROM (
        SELECT hour, project, workload AS service, kind, {AMOUNTS}
        FROM ledger_hourly WHERE kind IN ('replica', 'job', 'task') GROUP BY hour, project, workload, kind) l
    LEFT JOIN service_hours s ON s.hour = l.hour AND s.service = l.service AND l.kind = 'replica';

CREATE VIEW cost_by_project_day AS
    SELECT (hour AT TIME ZONE 'UTC')::date AS day,
        CASE WHEN kind IN ('idle', 'unobserved') THEN '(' || kind || ')' ELSE project END AS project, {AMOUNTS}
    FROM ledger_hourly GROUP BY 1, 2;

CREATE VIEW idle_by_device_hour AS
    SELECT b.hour, b.device_uuid, b.node_id, b.gpu_type, b.region, b.price_kind, b.price_usd_per_h,
        b.list_usd_per_h IS NOT NULL AS priced, b.seconds AS billed_s, b.observed_s, b.usd,
        coalesce(i.usd_memory, 0) AS idle_usd_memory, coalesce(i.usd_share, 0) AS idle_usd_share,
        coalesce(i.usd_whole, 0) AS idle_usd_whole, coalesce(i.seconds, 0) AS idle_s,
        round(coalesce(i.share_pct_sm_seconds, 0) / nullif(b.observed_s, 0), 3) AS idle_share_pct_mean,
        coalesce(u.seconds, 0) AS unobserved_s, coalesce(u.usd_whole, 0) AS unobserved_usd,
        round(b.energy_j / 3600000, 9) AS energy_kwh, round(coalesce(i.energy_j, 0) / 3600000, 9) AS idle_energy_kwh
    FROM device_bills_hourly b
    LEFT JOIN ledger_hourly i ON i.hour = b.hour AND i.device_uuid = b.device_uuid AND i.kind = 'idle'
    LEFT JOIN ledger_hourly u ON u.hour = b.hour AND u.device_uuid = b.device_uuid AND u.kind = 'unobserved';

CREATE VIEW ledger_check AS
    SELECT hour, a.accounting, sum(a.bill_usd) AS bill_usd, sum(a.ledger_usd) AS ledger_usd,
        sum(a.bill_usd) - sum(a.ledger_usd) AS difference_usd
    FROM (
        SELECT hour, usd, usd_energy, 0 AS memory, 0 AS share, 0 AS whole, 0 AS energy FROM device_bills_hourly
        UNION ALL
        SELECT hour, 0, 0, usd_memory, usd_share, usd_whole, usd_energy FROM ledger_hourly) entry
    CROSS JOIN LATERAL (VALUES ('memory', usd, memory), ('share', usd, share), ('whole', usd, whole),
        ('energy', usd_energy, energy)) AS a (accounting, bill_usd, ledger_usd)
    GROUP BY hour, a.accounting;
"""

TELEMETRY = """
CREATE VIEW slo_by_service_hour AS SELECT * FROM service_hours;
CREATE VIEW slo_by_service_minute AS SELECT * FROM service_minutes;
CREATE VIEW energy_by_device_hour AS
    SELECT d.hour, d.device_uuid, d.node_id, b.gpu_type, b.region, d.observed_s,
        d.energy_j, d.energy_j / 3600000 AS energy_kwh, b.usd_energy,
        d.power_w_mean, d.power_w_max, d.utilisation_pct_mean, d.share_pct_sm_mean,
        d.memory_mib_used_mean, d.memory_mib_used_max, d.clock_mhz_sm_mean, d.temperature_c_max,
        d.throttled_s, d.unhealthy_s
    FROM device_hours d LEFT JOIN device_bills_hourly b ON b.hour = d.hour AND b.device_uuid = d.device_uuid;
"""

# Column ids of FOCUS 1.2. One row per hour, device and holder; the idle and unobserved parts are rows of no sub-
# account, so that the rows of a resource sum to its charge. Our own columns start with x_ as the specification asks.
FOCUS = """
CREATE VIEW cost_focus AS
    SELECT
        usd_share AS "BilledCost", usd_share AS "EffectiveCost", usd_share AS "ListCost", usd_share AS "ContractedCost",
        'USD'::text AS "BillingCurrency", 'Usage'::text AS "ChargeCategory", NULL::text AS "ChargeClass",
        'Usage-Based'::text AS "ChargeFrequency",
        CASE kind WHEN 'idle' THEN 'Idle remainder of ' || gpu_type
            WHEN 'unobserved' THEN 'Time without telemetry on ' || gpu_type
            ELSE workload || ' on ' || gpu_type END AS "ChargeDescription",
        hour AS "ChargePeriodStart", hour + INTERVAL '1 hour' AS "ChargePeriodEnd",
        date_trunc('month', hour, 'UTC') AS "BillingPeriodStart",
        (date_trunc('month', hour AT TIME ZONE 'UTC') + INTERVAL '1 month') AT TIME ZONE 'UTC' AS "BillingPeriodEnd",
        share_pct_sm_seconds / 360000 AS "ConsumedQuantity", 'GPU Hours'::text AS "ConsumedUnit",
        share_pct_sm_seconds / 360000 AS "PricingQuantity", 'GPU Hours'::text AS "PricingUnit",
        price_usd_per_h AS "ListUnitPrice", price_usd_per_h AS "ContractedUnitPrice",
        CASE price_kind WHEN 'spot' THEN 'Dynamic' WHEN 'reserved' THEN 'Committed' WHEN 'owned' THEN 'Other'
            ELSE 'Standard' END AS "PricingCategory",
        device_uuid AS "ResourceId", coalesce(nullif(subject, ''), device_uuid) AS "ResourceName",
        'GPU'::text AS "ResourceType",
        'Compute'::text AS "ServiceCategory", 'Other (Compute)'::text AS "ServiceSubcategory",
        'GPU capacity'::text AS "ServiceName",
        gpu_type AS "SkuId", 'GPU Hours'::text AS "SkuMeter",
        gpu_type || '/' || price_kind || '/' || region AS "SkuPriceId",
        jsonb_build_object('GpuType', gpu_type, 'x_PriceKind', price_kind) AS "SkuPriceDetails",
        region AS "RegionId", region AS "RegionName",
        nullif(project, '') AS "SubAccountId", nullif(project, '') AS "SubAccountName",
        CASE WHEN project <> '' THEN 'Project' END AS "SubAccountType", 'headroom'::text AS "BillingAccountId",
        'Headroom'::text AS "BillingAccountName", 'Cluster'::text AS "BillingAccountType",
        'Headroom'::text AS "ProviderName", 'Headroom'::text AS "PublisherName",
        'Headroom'::text AS "InvoiceIssuerName",
        jsonb_strip_nulls(jsonb_build_object('project', nullif(project, ''), 'workload', nullif(workload, ''),
            'model', nullif(model, ''), 'kind', kind)) AS "Tags",
        kind AS "x_LedgerKind", workload AS "x_Workload", node_id AS "x_NodeId", usd_memory AS "x_CostByMemory",
        usd_whole AS "x_CostByWholeGpu", usd_energy AS "x_EnergyCost", energy_j / 3600000 AS "x_EnergyKwh"
    FROM ledger_hourly;
"""

VIEWS = (
    "cost_by_service_hour", "cost_by_project_day", "idle_by_device_hour", "ledger_check", "slo_by_service_hour",
    "slo_by_service_minute", "energy_by_device_hour", "cost_focus",
)  # fmt: skip

# Views read with their owner's rights, so the reader needs none on the tables. Without the role (no right to make one)
# nothing is granted; `docs/sql.md` says how to do it by hand.
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
    for statement in (COST, TELEMETRY, FOCUS, GRANT):
        op.execute(statement)


def downgrade() -> None:
    """Drop the views; their grants go with them."""
    op.execute(f"DROP VIEW {', '.join(reversed(VIEWS))}")
