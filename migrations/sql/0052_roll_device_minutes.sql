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
    SELECT minute, uuid, min(node_id), least(60, sum(seconds)), count(*), sum(energy_j * seconds / span_s),
        sum(power_w * seconds) / sum(seconds), max(power_w), sum(utilisation_pct * seconds) / sum(seconds),
        sum(memory_mib_used * seconds) / sum(seconds), max(memory_mib_used),
        sum(clock_mhz_sm * seconds) / sum(seconds), sum(share_pct_sm_total * seconds) / sum(seconds),
        max(temperature_c),
        least(60, coalesce(sum(seconds) FILTER (WHERE throttle <> ''), 0)),
        least(60, coalesce(sum(seconds) FILTER (WHERE NOT healthy), 0))
    FROM (
        SELECT p.minute, p.seconds, p.span_s, p.node_id, unnest(h.device_uuid) AS uuid,
            unnest(s.device_power_w) AS power_w, unnest(s.device_energy_j) AS energy_j,
            unnest(s.device_utilisation_pct) AS utilisation_pct, unnest(s.device_memory_mib_used) AS memory_mib_used,
            unnest(s.device_clock_mhz_sm) AS clock_mhz_sm, unnest(s.device_temperature_c) AS temperature_c,
            unnest(s.device_share_pct_sm_total) AS share_pct_sm_total, unnest(s.device_throttle) AS throttle,
            unnest(s.device_healthy) AS healthy
        FROM pieces p
        JOIN node_samples s ON s.received_at = p.received_at AND s.node_id = p.node_id AND s.boot_id = p.boot_id
            AND s.sequence = p.sequence
        JOIN sample_shapes h ON h.received_at = s.shaped_at AND h.shape = s.shape
        WHERE s.received_at >= p_from AND s.received_at <= (SELECT max(received_at) FROM pieces)
            AND h.received_at > p_from - INTERVAL '3 hours'
        UNION ALL
        SELECT p.minute, p.seconds, p.span_s, p.node_id, d.uuid, d.power_w, d.energy_j, d.utilisation_pct,
            d.memory_mib_used, d.clock_mhz_sm, d.temperature_c, d.share_pct_sm_total, d.throttle, d.healthy
        FROM pieces p
        JOIN device_sample_rows d ON d.received_at = p.received_at AND d.node_id = p.node_id AND d.boot_id = p.boot_id
            AND d.sequence = p.sequence
        WHERE d.received_at >= p_from AND d.received_at <= (SELECT max(received_at) FROM pieces)
    ) AS samples
    GROUP BY minute, uuid;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
