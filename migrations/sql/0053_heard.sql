-- Places reports on the time line. A report covers the interval that ends at its `observed_at`, read on the server's
-- clock. The sender's clock offset is the smallest `received_at - observed_at` of that boot in this minute so far and
-- the fifteen before it: a report resent after an outage still lands where it was measured, and a host whose clock is
-- wrong is not punished. Who was not heard for longer than that and sends what it kept, the oldest first, is judged by what
-- it said before, too. Of past minutes the smallest is enough, so the log is summed up before it is sorted. A report
-- that follows its predecessor begins where that one ended; the few milliseconds by which two timers disagree are
-- nobody's gap. Nothing may claim more than five minutes. Predecessors are placed the same whoever asks.
CREATE OR REPLACE FUNCTION headroom_heard(p_received_from timestamptz, p_received_to timestamptz)
RETURNS TABLE (source text, boot_id text, sequence bigint, received_at timestamptz, start_at timestamptz,
               end_at timestamptz)
LANGUAGE sql STABLE ROWS 5000 SET enable_nestloop = off SET enable_mergejoin = off SET jit = off
SET work_mem = '64MB' AS $body$
    WITH since AS (
        SELECT date_bin('1 minute', p_received_from - INTERVAL '5 minutes', '2000-01-01Z') AS placed
    ),
    minutes AS MATERIALIZED (
        SELECT l.source, l.boot_id, date_bin('1 minute', l.received_at, '2000-01-01Z') AS minute,
            min(l.received_at - l.observed_at) AS behind, max(l.received_at - l.observed_at) AS late
        FROM report_log l
        WHERE l.received_at >= (SELECT placed FROM since) - INTERVAL '15 minutes' AND l.received_at < p_received_to
            AND l.interval_s >= 0.001
        GROUP BY 1, 2, 3
    ),
    known AS MATERIALIZED (
        -- Whose clock is right sends nothing so late unless it was kept; of the others little is looked at.
        SELECT m.*, CASE WHEN m.late > INTERVAL '10 minutes' THEN (
            SELECT min(last.behind) FROM (
                SELECT l.received_at - l.observed_at AS behind FROM report_log l
                WHERE l.source = m.source AND l.boot_id = m.boot_id AND l.interval_s >= 0.001
                    AND l.received_at < m.minute - INTERVAL '15 minutes'
                ORDER BY l.sequence DESC LIMIT 12) AS last) END AS before
        FROM minutes m
    ),
    clocks AS (
        SELECT m.source, m.boot_id, m.minute, dense_rank() OVER (ORDER BY m.source, m.boot_id) AS boot_no,
            least(m.before, min(least(m.behind, m.before)) OVER (PARTITION BY m.source, m.boot_id ORDER BY m.minute
                RANGE BETWEEN INTERVAL '15 minutes' PRECEDING AND INTERVAL '1 minute' PRECEDING)) AS behind
        FROM known m
    ),
    clocked AS (
        SELECT l.source, l.boot_id, c.boot_no, l.sequence, l.received_at, least(l.interval_s, 300) AS interval_s,
            l.observed_at + least(c.behind, min(l.received_at - l.observed_at) OVER (
                PARTITION BY c.boot_no, c.minute ORDER BY l.received_at)) AS end_at
        FROM report_log l
        JOIN clocks c ON c.source = l.source AND c.boot_id = l.boot_id AND c.minute = date_bin('1 minute', l.received_at, '2000-01-01Z')
        WHERE l.received_at >= (SELECT placed FROM since) AND l.received_at < p_received_to AND l.interval_s >= 0.001
    ),
    ordered AS (
        SELECT c.*, c.end_at - make_interval(secs => c.interval_s) AS start_at,
            lag(c.sequence) OVER turn AS sequence_before, lag(c.end_at) OVER turn AS end_before,
            lag(c.received_at) OVER turn AS received_before
        FROM clocked c WINDOW turn AS (PARTITION BY c.boot_no ORDER BY c.sequence, c.received_at)
    )
    SELECT o.source, o.boot_id, o.sequence, o.received_at,
        CASE WHEN o.sequence = o.sequence_before + 1 AND o.received_before >= o.received_at - INTERVAL '5 minutes'
                AND abs(extract(epoch FROM o.start_at - o.end_before)) <= least(2, o.interval_s / 5)
             THEN o.end_before ELSE o.start_at END,
        o.end_at
    FROM ordered o
    WHERE o.received_at >= p_received_from
$body$;
