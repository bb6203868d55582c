-- One row per hour whether it is closed (from the hourly tables) or still open (summed from its minutes).
CREATE OR REPLACE VIEW device_bills_hourly AS
    SELECT * FROM device_bill_hours WHERE hour < (SELECT at FROM accounting_marks WHERE name = 'closed_until')
    UNION ALL
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, min(node_id) AS node_id, min(gpu_type) AS gpu_type,
        min(region) AS region, min(price_kind) AS price_kind,
        max(list_usd_per_h) AS list_usd_per_h, max(fraction) AS fraction,
        round(sum(price_usd_per_h * seconds) / sum(seconds), 12) AS price_usd_per_h, max(memory_mib) AS memory_mib,
        sum(seconds) AS seconds, sum(observed_s) AS observed_s, sum(energy_j) AS energy_j, sum(usd) AS usd,
        sum(usd_energy) AS usd_energy, min(policy) AS policy,
        round(sum(usd_per_kwh * seconds) / sum(seconds), 15) AS usd_per_kwh, bool_or(time_sliced) AS time_sliced
    FROM device_bills
    WHERE minute >= coalesce((SELECT at FROM accounting_marks WHERE name = 'closed_until'), '-infinity')
    GROUP BY 1, device_uuid;

CREATE OR REPLACE VIEW ledger_hourly AS
    SELECT * FROM ledger_hours WHERE hour < (SELECT at FROM accounting_marks WHERE name = 'closed_until')
    UNION ALL
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, kind, subject, min(node_id) AS node_id,
        min(gpu_type) AS gpu_type, min(region) AS region, min(price_kind) AS price_kind,
        max(price_usd_per_h) AS price_usd_per_h,
        min(project) AS project, min(workload) AS workload, min(model) AS model, sum(seconds) AS seconds,
        sum(share_pct_sm_seconds) AS share_pct_sm_seconds, sum(memory_mib_seconds) AS memory_mib_seconds,
        sum(memory_mib_seconds_reserved) AS memory_mib_seconds_reserved,
        sum(energy_j) AS energy_j, sum(usd_memory) AS usd_memory,
        sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole, sum(usd_energy) AS usd_energy
    FROM ledger
    WHERE minute >= coalesce((SELECT at FROM accounting_marks WHERE name = 'closed_until'), '-infinity')
    GROUP BY 1, device_uuid, kind, subject;
