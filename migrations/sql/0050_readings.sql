-- Who held what in each minute, in seconds and joules only; money comes after. A device is observed while its own node
-- reports it; the parts of reports used here never overlap, so neither repeats nor restarts can claim a second twice.
CREATE OR REPLACE FUNCTION headroom_readings(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (minute timestamptz, device_uuid text, span_no bigint, source text, boot_id text, sequence bigint,
               received_at timestamptz, span_s numeric, seconds numeric, energy_j numeric)
LANGUAGE sql STABLE ROWS 20000 SET timezone = 'UTC' SET enable_nestloop = off SET jit = off SET work_mem = '64MB' AS $body$
    WITH pieces AS MATERIALIZED (
        SELECT s.*, substr(s.source, 6) AS node_id, m.minute, extract(epoch FROM s.end_at - s.start_at) AS span_s
        FROM headroom_report_spans(p_from, p_to) s
        CROSS JOIN LATERAL generate_series(date_trunc('minute', greatest(s.free_at, p_from)),
            least(s.end_at, p_to) - INTERVAL '1 microsecond', INTERVAL '1 minute') AS m (minute)
        WHERE s.free_at < s.end_at AND s.source LIKE 'node/%'
    ),
    samples AS MATERIALIZED (
        -- Kept apart, so that pieces meet their own samples before they meet the bills of their minute.
        SELECT DISTINCT ON (p.span_no, d.uuid, p.minute)
            p.*, d.uuid, greatest(0, d.energy_j) AS joules
        FROM pieces p
        JOIN device_samples d ON d.received_at = p.received_at AND d.node_id = p.node_id AND d.boot_id = p.boot_id
            AND d.sequence = p.sequence
        WHERE d.received_at >= p_from AND d.received_at <= (SELECT max(received_at) FROM pieces)
        ORDER BY p.span_no, d.uuid, p.minute, d.energy_j
    )
    SELECT s.minute, s.uuid, s.span_no, s.source, s.boot_id, s.sequence, s.received_at, s.span_s, x.seconds,
        (s.joules * x.seconds::double precision / s.span_s::double precision)::numeric
    FROM samples s
    JOIN device_bills b ON b.minute = s.minute AND b.device_uuid = s.uuid AND b.node_id = s.node_id
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM least(s.end_at, b.until_at) - greatest(s.free_at, b.from_at)) AS seconds) AS x
    WHERE b.minute >= p_from AND b.minute < p_to AND x.seconds > 0
$body$;
