-- Rolls services' telemetry up by the minute. Served counts come from replicas, offered and unrouted from gateways; a
-- service seen by only one of the two still gets its row. Of what came since, nothing is read that came after the last
-- that was heard of these minutes.
CREATE OR REPLACE FUNCTION headroom_roll_service_minutes(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET enable_nestloop = off SET jit = off SET work_mem = '64MB' AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM service_minutes WHERE minute >= p_from AND minute < p_to;
    WITH pieces AS MATERIALIZED (
        SELECT p.*, split_part(p.source, '/', 1) AS kind, substr(p.source, strpos(p.source, '/') + 1) AS name
        FROM headroom_report_pieces(p_from, p_to) p
    ),
    last AS (SELECT max(received_at) AS at FROM pieces),
    weighted AS (
        SELECT p.minute, r.*, p.fraction, p.seconds, p.span_s,
            p.seconds * least(1, greatest(0, r.held_s) / r.interval_s) AS held,
            r.completed * p.fraction AS answers
        FROM pieces p
        JOIN replica_samples r ON r.received_at = p.received_at AND r.node_id = p.name AND r.boot_id = p.boot_id
            AND r.sequence = p.sequence
        WHERE p.kind = 'node' AND r.received_at >= p_from AND r.received_at <= (SELECT at FROM last) AND r.kind = 'service'
    ),
    served AS (
        SELECT minute, workload AS service, min(project) AS project,
            sum(arrived * fraction) AS arrived, sum(answers) AS completed, sum(violated * fraction) AS violated,
            sum(dropped * fraction) AS dropped, sum(held) / 60 AS replicas_mean,
            sum(held * share_pct_sm) / 60 AS share_pct_sm_mean,
            sum(held * memory_mib_used) / 60 AS memory_mib_used_mean,
            sum(seconds * queue_length) / 60 AS queue_length_mean,
            sum(latency_ms_p50 * answers) / nullif(sum(answers) FILTER (WHERE latency_ms_p50 IS NOT NULL), 0) AS p50,
            sum(latency_ms_p95 * answers) / nullif(sum(answers) FILTER (WHERE latency_ms_p95 IS NOT NULL), 0) AS p95,
            sum(latency_ms_p99 * answers) / nullif(sum(answers) FILTER (WHERE latency_ms_p99 IS NOT NULL), 0) AS p99,
            max(latency_ms_p99) AS p99_max, sum(energy_j * seconds / span_s) AS energy_j
        FROM weighted GROUP BY minute, workload
    ),
    edge AS (
        SELECT p.minute, e.service, min(e.project) AS project, sum(e.arrived * p.fraction) AS offered,
            sum(e.unrouted * p.fraction) AS unrouted
        FROM pieces p
        JOIN rate_samples e ON e.received_at = p.received_at AND e.gateway = p.name AND e.boot_id = p.boot_id
            AND e.sequence = p.sequence
        WHERE p.kind = 'gateway' AND e.received_at >= p_from AND e.received_at <= (SELECT at FROM last)
        GROUP BY p.minute, e.service
    )
    INSERT INTO service_minutes (minute, service, project, offered, unrouted, arrived, completed, violated, dropped,
        replicas_mean, share_pct_sm_mean, memory_mib_used_mean, queue_length_mean,
        latency_ms_p50, latency_ms_p95, latency_ms_p99, latency_ms_p99_max, energy_j)
    SELECT minute, service, coalesce(s.project, e.project), e.offered, coalesce(e.unrouted, 0), coalesce(s.arrived, 0),
        coalesce(s.completed, 0), coalesce(s.violated, 0), coalesce(s.dropped, 0), coalesce(s.replicas_mean, 0),
        coalesce(s.share_pct_sm_mean, 0), coalesce(s.memory_mib_used_mean, 0), coalesce(s.queue_length_mean, 0),
        s.p50, s.p95, s.p99, s.p99_max, coalesce(s.energy_j, 0)
    FROM served s FULL JOIN edge e USING (minute, service);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
