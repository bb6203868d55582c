-- Sums a closed hour once into the hourly tables, which are kept when its minutes are dropped. What was changed within
-- the hour has a row for before and one for after, on its node, at its kind of price and of its network; the price of
-- either is the mean of what was paid.
CREATE OR REPLACE FUNCTION headroom_close_hours(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM device_bill_hours WHERE hour >= p_from AND hour < p_to;
    DELETE FROM ledger_hours WHERE hour >= p_from AND hour < p_to;
    INSERT INTO device_bill_hours
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, node_id, gpu_type, region, price_kind,
        max(list_usd_per_h) AS list_usd_per_h, max(fraction) AS fraction,
        round(sum(price_usd_per_h * seconds) / sum(seconds), 12) AS price_usd_per_h, max(memory_mib) AS memory_mib,
        sum(seconds) AS seconds, sum(observed_s) AS observed_s, sum(energy_j) AS energy_j, sum(usd) AS usd,
        sum(usd_energy) AS usd_energy, min(policy) AS policy,
        round(sum(usd_per_kwh * seconds) / sum(seconds), 15) AS usd_per_kwh, bool_or(time_sliced) AS time_sliced
    FROM device_bills WHERE minute >= p_from AND minute < p_to
    GROUP BY 1, device_uuid, node_id, gpu_type, region, price_kind;
    INSERT INTO ledger_hours
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, kind, subject, node_id, gpu_type, region, price_kind,
        coalesce(round(sum(price_usd_per_h * share_pct_sm_seconds) / nullif(sum(share_pct_sm_seconds), 0), 12),
            max(price_usd_per_h)) AS price_usd_per_h,
        min(project) AS project, min(workload) AS workload, model, sum(seconds) AS seconds,
        sum(share_pct_sm_seconds) AS share_pct_sm_seconds, sum(memory_mib_seconds) AS memory_mib_seconds,
        sum(memory_mib_seconds_reserved) AS memory_mib_seconds_reserved,
        sum(energy_j) AS energy_j, sum(usd_memory) AS usd_memory,
        sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole, sum(usd_energy) AS usd_energy
    FROM ledger WHERE minute >= p_from AND minute < p_to
    GROUP BY 1, device_uuid, kind, subject, node_id, gpu_type, region, price_kind, model;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
