-- What was spent and by whom. Units in names; hours and days are UTC whatever the reader's time zone is. energy_kwh
-- times a grid's gCO2/kWh gives carbon.
CREATE OR REPLACE VIEW cost_by_service_hour AS
    SELECT l.*, s.offered AS requests_offered, s.completed AS requests_completed, s.slo_attainment
    FROM (
        SELECT hour, project, workload AS service, kind, sum(usd_memory) AS usd_memory, sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole,
        sum(usd_energy) AS usd_energy,
        round(sum(seconds) / 3600, 6) AS held_h, round(sum(share_pct_sm_seconds) / 360000, 6) AS share_gpu_h,
        round(sum(memory_mib_seconds) / 3686400, 6) AS memory_gib_h,
        round(sum(memory_mib_seconds_reserved) / 3686400, 6) AS memory_gib_h_reserved,
        round(sum(energy_j) / 3600000, 9) AS energy_kwh
        FROM ledger_hourly WHERE kind IN ('replica', 'job', 'task') GROUP BY hour, project, workload, kind) l
    LEFT JOIN service_hours s ON s.hour = l.hour AND s.service = l.service AND l.kind = 'replica';

CREATE OR REPLACE VIEW cost_by_project_day AS
    SELECT (hour AT TIME ZONE 'UTC')::date AS day,
        CASE WHEN kind IN ('idle', 'unobserved') THEN '(' || kind || ')' ELSE project END AS project, sum(usd_memory) AS usd_memory, sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole,
        sum(usd_energy) AS usd_energy,
        round(sum(seconds) / 3600, 6) AS held_h, round(sum(share_pct_sm_seconds) / 360000, 6) AS share_gpu_h,
        round(sum(memory_mib_seconds) / 3686400, 6) AS memory_gib_h,
        round(sum(memory_mib_seconds_reserved) / 3686400, 6) AS memory_gib_h_reserved,
        round(sum(energy_j) / 3600000, 9) AS energy_kwh
    FROM ledger_hourly GROUP BY 1, 2;

CREATE OR REPLACE VIEW idle_by_device_hour AS
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

CREATE OR REPLACE VIEW ledger_check AS
    SELECT hour, a.accounting, sum(a.bill_usd) AS bill_usd, sum(a.ledger_usd) AS ledger_usd,
        sum(a.bill_usd) - sum(a.ledger_usd) AS difference_usd
    FROM (
        SELECT hour, usd, usd_energy, 0 AS memory, 0 AS share, 0 AS whole, 0 AS energy FROM device_bills_hourly
        UNION ALL
        SELECT hour, 0, 0, usd_memory, usd_share, usd_whole, usd_energy FROM ledger_hourly) entry
    CROSS JOIN LATERAL (VALUES ('memory', usd, memory), ('share', usd, share), ('whole', usd, whole),
        ('energy', usd_energy, energy)) AS a (accounting, bill_usd, ledger_usd)
    GROUP BY hour, a.accounting;
