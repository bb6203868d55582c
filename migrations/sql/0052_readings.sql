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
        SELECT DISTINCT ON (span_no, uuid, minute) found.*, greatest(0, energy_j) AS joules
        FROM (
            SELECT p.*, unnest(h.device_uuid) AS uuid, unnest(s.device_energy_j) AS energy_j
            FROM pieces p
            JOIN node_samples s ON s.received_at = p.received_at AND s.node_id = p.node_id AND s.boot_id = p.boot_id
                AND s.sequence = p.sequence
            JOIN sample_shapes h ON h.received_at = s.shaped_at AND h.shape = s.shape
            WHERE s.received_at >= p_from AND s.received_at <= (SELECT max(received_at) FROM pieces)
                AND h.received_at > p_from - INTERVAL '3 hours'
            UNION ALL
            SELECT p.*, d.uuid, d.energy_j
            FROM pieces p
            JOIN device_sample_rows d ON d.received_at = p.received_at AND d.node_id = p.node_id
                AND d.boot_id = p.boot_id AND d.sequence = p.sequence
            WHERE d.received_at >= p_from AND d.received_at <= (SELECT max(received_at) FROM pieces)
        ) AS found
        ORDER BY span_no, uuid, minute, energy_j
    )
    SELECT s.minute, s.uuid, s.span_no, s.source, s.boot_id, s.sequence, s.received_at, s.span_s, x.seconds,
        (s.joules * x.seconds::double precision / s.span_s::double precision)::numeric
    FROM samples s
    JOIN device_bills b ON b.minute = s.minute AND b.device_uuid = s.uuid AND b.node_id = s.node_id
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM least(s.end_at, b.until_at) - greatest(s.free_at, b.from_at)) AS seconds) AS x
    WHERE b.minute >= p_from AND b.minute < p_to AND x.seconds > 0
$body$;
