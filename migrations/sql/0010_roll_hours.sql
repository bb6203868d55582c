-- Makes every hour that any minute of [from, to) belongs to again from its minutes; an hour still running is partial.
-- An hour whose minutes are gone (retention) keeps what it has.
CREATE OR REPLACE FUNCTION headroom_roll_hours(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_from timestamptz = date_trunc('hour', p_from);
    v_to timestamptz = date_trunc('hour', p_to - INTERVAL '1 microsecond') + INTERVAL '1 hour';
    v_devices integer;
    v_services integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    DELETE FROM device_hours h USING (
        SELECT DISTINCT date_trunc('hour', minute) AS hour
        FROM device_minutes WHERE minute >= v_from AND minute < v_to) m
    WHERE h.hour = m.hour;
    INSERT INTO device_hours
    SELECT date_trunc('hour', minute), device_uuid, min(node_id), sum(observed_s), sum(reports), sum(energy_j),
        sum(power_w_mean * observed_s) / sum(observed_s), max(power_w_max),
        sum(utilisation_pct_mean * observed_s) / sum(observed_s),
        sum(memory_mib_used_mean * observed_s) / sum(observed_s), max(memory_mib_used_max),
        sum(clock_mhz_sm_mean * observed_s) / sum(observed_s), sum(share_pct_sm_mean * observed_s) / sum(observed_s),
        max(temperature_c_max), sum(throttled_s), sum(unhealthy_s)
    FROM device_minutes WHERE minute >= v_from AND minute < v_to
    GROUP BY 1, 2;
    GET DIAGNOSTICS v_devices = ROW_COUNT;

    DELETE FROM service_hours h USING (
        SELECT DISTINCT date_trunc('hour', minute) AS hour
        FROM service_minutes WHERE minute >= v_from AND minute < v_to) m
    WHERE h.hour = m.hour;
    INSERT INTO service_hours (hour, service, project, offered, unrouted, arrived, completed, violated, dropped,
        replicas_mean, share_pct_sm_mean, memory_mib_used_mean, queue_length_mean,
        latency_ms_p50, latency_ms_p95, latency_ms_p99, latency_ms_p99_max, energy_j)
    SELECT date_trunc('hour', minute), service, min(project), sum(offered), sum(unrouted), sum(arrived), sum(completed),
        sum(violated), sum(dropped),
        avg(replicas_mean), avg(share_pct_sm_mean), avg(memory_mib_used_mean), avg(queue_length_mean),
        sum(latency_ms_p50 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p50 IS NOT NULL), 0),
        sum(latency_ms_p95 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p95 IS NOT NULL), 0),
        sum(latency_ms_p99 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p99 IS NOT NULL), 0),
        max(latency_ms_p99_max), sum(energy_j)
    FROM service_minutes WHERE minute >= v_from AND minute < v_to
    GROUP BY 1, 2;
    GET DIAGNOSTICS v_services = ROW_COUNT;
    RETURN v_devices + v_services;
END
$body$;
