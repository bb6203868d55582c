-- Cuts reports at minutes. `fraction` is the part of the whole report that falls into the minute (for counts: each
-- event counts once, even in overlapping reports); `seconds` is the part of its own time that does (for states and
-- energy).
CREATE OR REPLACE FUNCTION headroom_report_pieces(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (minute timestamptz, source text, boot_id text, sequence bigint, received_at timestamptz,
               span_s double precision, fraction double precision, seconds double precision)
LANGUAGE sql STABLE ROWS 8000 SET timezone = 'UTC' AS $body$
    SELECT m.minute, s.source, s.boot_id, s.sequence, s.received_at,
        extract(epoch FROM s.end_at - s.start_at)::double precision,
        (extract(epoch FROM least(s.end_at, m.minute + INTERVAL '1 minute') - greatest(s.start_at, m.minute))
            / extract(epoch FROM s.end_at - s.start_at))::double precision,
        greatest(0, extract(epoch FROM least(s.end_at, m.minute + INTERVAL '1 minute')
            - greatest(s.free_at, m.minute)))::double precision
    FROM headroom_report_spans(p_from, p_to) s
    CROSS JOIN LATERAL generate_series(date_trunc('minute', greatest(s.start_at, p_from)),
        least(s.end_at, p_to) - INTERVAL '1 microsecond', INTERVAL '1 minute') AS m (minute)
$body$;
