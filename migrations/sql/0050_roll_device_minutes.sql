-- Rolls devices' telemetry up by the minute. Rolling a minute replaces it, so late rows are picked up by rolling again.
-- The planner cannot know how many rows a function returns; without nested loops it hashes, which is right for a minute
-- of a thousand devices and does no harm for ten. Of what came since, nothing is read that came after the last that was
-- heard of these minutes.
CREATE OR REPLACE FUNCTION headroom_roll_device_minutes(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET enable_nestloop = off SET jit = off SET work_mem = '64MB' AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM device_minutes WHERE minute >= p_from AND minute < p_to;
    WITH pieces AS MATERIALIZED (
        SELECT p.*, substr(p.source, 6) AS node_id FROM headroom_report_pieces(p_from, p_to) p
        WHERE p.seconds > 0 AND p.source LIKE 'node/%'
    )
    INSERT INTO device_minutes
    SELECT p.minute, d.uuid, min(d.node_id), least(60, sum(p.seconds)), count(*),
        sum(d.energy_j * p.seconds / p.span_s),
        sum(d.power_w * p.seconds) / sum(p.seconds), max(d.power_w),
        sum(d.utilisation_pct * p.seconds) / sum(p.seconds),
        sum(d.memory_mib_used * p.seconds) / sum(p.seconds), max(d.memory_mib_used),
        sum(d.clock_mhz_sm * p.seconds) / sum(p.seconds), sum(d.share_pct_sm_total * p.seconds) / sum(p.seconds),
        max(d.temperature_c),
        least(60, coalesce(sum(p.seconds) FILTER (WHERE d.throttle <> ''), 0)),
        least(60, coalesce(sum(p.seconds) FILTER (WHERE NOT d.healthy), 0))
    FROM pieces p
    JOIN device_samples d ON d.received_at = p.received_at AND d.node_id = p.node_id AND d.boot_id = p.boot_id
        AND d.sequence = p.sequence
    WHERE d.received_at >= p_from AND d.received_at <= (SELECT max(received_at) FROM pieces)
    GROUP BY p.minute, d.uuid;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
