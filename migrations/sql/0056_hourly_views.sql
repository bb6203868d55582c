-- The same rows of every hour, whether it is closed (from the hourly tables) or still open (summed from its minutes).
CREATE OR REPLACE VIEW device_bills_hourly AS
    SELECT * FROM device_bill_hours WHERE hour < (SELECT at FROM accounting_marks WHERE name = 'closed_until')
    UNION ALL
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, node_id, gpu_type, region, price_kind,
        max(list_usd_per_h) AS list_usd_per_h, max(fraction) AS fraction,
        round(sum(price_usd_per_h * seconds) / sum(seconds), 12) AS price_usd_per_h, max(memory_mib) AS memory_mib,
        sum(seconds) AS seconds, sum(observed_s) AS observed_s, sum(energy_j) AS energy_j, sum(usd) AS usd,
        sum(usd_energy) AS usd_energy, min(policy) AS policy,
        round(sum(usd_per_kwh * seconds) / sum(seconds), 15) AS usd_per_kwh, bool_or(time_sliced) AS time_sliced
    FROM device_bills
    WHERE minute >= coalesce((SELECT at FROM accounting_marks WHERE name = 'closed_until'), '-infinity')
    GROUP BY 1, device_uuid, node_id, gpu_type, region, price_kind;

CREATE OR REPLACE VIEW ledger_hourly AS
    SELECT * FROM ledger_hours WHERE hour < (SELECT at FROM accounting_marks WHERE name = 'closed_until')
    UNION ALL
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, kind, subject, node_id, gpu_type, region, price_kind,
        coalesce(round(sum(price_usd_per_h * share_pct_sm_seconds) / nullif(sum(share_pct_sm_seconds), 0), 12),
            max(price_usd_per_h)) AS price_usd_per_h,
        min(project) AS project, min(workload) AS workload, model, sum(seconds) AS seconds,
        sum(share_pct_sm_seconds) AS share_pct_sm_seconds, sum(memory_mib_seconds) AS memory_mib_seconds,
        sum(memory_mib_seconds_reserved) AS memory_mib_seconds_reserved,
        sum(energy_j) AS energy_j, sum(usd_memory) AS usd_memory,
        sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole, sum(usd_energy) AS usd_energy
    FROM ledger
    WHERE minute >= coalesce((SELECT at FROM accounting_marks WHERE name = 'closed_until'), '-infinity')
    GROUP BY 1, device_uuid, kind, subject, node_id, gpu_type, region, price_kind, model;

CREATE OR REPLACE VIEW idle_by_device_hour AS
    SELECT b.hour, b.device_uuid, b.node_id, b.gpu_type, b.region, b.price_kind, b.price_usd_per_h,
        b.list_usd_per_h IS NOT NULL AS priced, b.seconds AS billed_s, b.observed_s, b.usd,
        coalesce(i.usd_memory, 0) AS idle_usd_memory, coalesce(i.usd_share, 0) AS idle_usd_share,
        coalesce(i.usd_whole, 0) AS idle_usd_whole, coalesce(i.seconds, 0) AS idle_s,
        round(coalesce(i.share_pct_sm_seconds, 0) / nullif(b.observed_s, 0), 3) AS idle_share_pct_mean,
        coalesce(u.seconds, 0) AS unobserved_s, coalesce(u.usd_whole, 0) AS unobserved_usd,
        round(b.energy_j / 3600000, 9) AS energy_kwh, round(coalesce(i.energy_j, 0) / 3600000, 9) AS idle_energy_kwh
    FROM device_bills_hourly b
    LEFT JOIN ledger_hourly i ON i.hour = b.hour AND i.device_uuid = b.device_uuid AND i.node_id = b.node_id
        AND i.gpu_type = b.gpu_type AND i.region = b.region AND i.price_kind = b.price_kind AND i.kind = 'idle'
    LEFT JOIN ledger_hourly u ON u.hour = b.hour AND u.device_uuid = b.device_uuid AND u.node_id = b.node_id
        AND u.gpu_type = b.gpu_type AND u.region = b.region AND u.price_kind = b.price_kind AND u.kind = 'unobserved';

-- Telemetry has one row of a device and hour, however many its bill has.
CREATE OR REPLACE VIEW energy_by_device_hour AS
    SELECT d.hour, d.device_uuid, d.node_id, b.gpu_type, b.region, d.observed_s,
        d.energy_j, d.energy_j / 3600000 AS energy_kwh, b.usd_energy,
        d.power_w_mean, d.power_w_max, d.utilisation_pct_mean, d.share_pct_sm_mean,
        d.memory_mib_used_mean, d.memory_mib_used_max, d.clock_mhz_sm_mean, d.temperature_c_max,
        d.throttled_s, d.unhealthy_s, b.policy, b.usd_per_kwh
    FROM device_hours d LEFT JOIN (
        SELECT hour, device_uuid, min(gpu_type) AS gpu_type, min(region) AS region, sum(usd_energy) AS usd_energy,
            min(policy) AS policy, round(sum(usd_per_kwh * seconds) / sum(seconds), 15) AS usd_per_kwh
        FROM device_bills_hourly GROUP BY hour, device_uuid
    ) b ON b.hour = d.hour AND b.device_uuid = d.device_uuid;
