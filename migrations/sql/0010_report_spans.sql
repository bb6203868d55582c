-- Takes from each report what an earlier-starting one of the same source covers already: `free_at` is where the rest
-- begins. The parts [free_at, end_at) of a source never overlap, so seconds can be summed; each instant belongs to the
-- same report whatever window is asked for. Reports that come more than 75 minutes late are not looked for: their hour
-- is closed by then.
CREATE OR REPLACE FUNCTION headroom_report_spans(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (span_no bigint, source text, boot_id text, sequence bigint, received_at timestamptz,
               start_at timestamptz, free_at timestamptz, end_at timestamptz)
LANGUAGE sql STABLE ROWS 5000 SET timezone = 'UTC' AS $body$
    SELECT row_number() OVER (), h.source, h.boot_id, h.sequence, h.received_at, h.start_at,
        least(h.end_at, greatest(h.start_at, max(h.end_at) OVER (
            PARTITION BY h.source ORDER BY h.start_at, h.end_at DESC, h.boot_id, h.sequence
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))),
        h.end_at
    FROM headroom_heard(p_from, p_to + INTERVAL '75 minutes') h
    WHERE h.end_at > p_from AND h.start_at < p_to
$body$;
