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
    samples AS (
        SELECT p.minute, p.fraction, p.seconds, p.span_s, s.interval_s, unnest(h.replica_kind) AS kind,
            unnest(h.replica_workload) AS workload, unnest(h.replica_project) AS project,
            unnest(h.replica_share_pct_sm) AS share_pct_sm, unnest(s.replica_memory_mib_used) AS memory_mib_used,
            unnest(s.replica_held_s) AS held_s, unnest(s.replica_arrived) AS arrived,
            unnest(s.replica_completed) AS completed, unnest(s.replica_violated) AS violated,
            unnest(s.replica_dropped) AS dropped, unnest(s.replica_queue_length) AS queue_length,
            unnest(s.replica_latency_ms_p50) AS latency_ms_p50, unnest(s.replica_latency_ms_p95) AS latency_ms_p95,
            unnest(s.replica_latency_ms_p99) AS latency_ms_p99, unnest(s.replica_energy_j) AS energy_j
        FROM pieces p
        JOIN node_samples s ON s.received_at = p.received_at AND s.node_id = p.name AND s.boot_id = p.boot_id
            AND s.sequence = p.sequence
        JOIN sample_shapes h ON h.received_at = s.shaped_at AND h.shape = s.shape
        WHERE p.kind = 'node' AND s.received_at >= p_from AND s.received_at <= (SELECT at FROM last)
            AND h.received_at > p_from - INTERVAL '3 hours'
        UNION ALL
        SELECT p.minute, p.fraction, p.seconds, p.span_s, r.interval_s, r.kind, r.workload, r.project, r.share_pct_sm,
            r.memory_mib_used, r.held_s, r.arrived, r.completed, r.violated, r.dropped, r.queue_length,
            r.latency_ms_p50, r.latency_ms_p95, r.latency_ms_p99, r.energy_j
        FROM pieces p
        JOIN replica_sample_rows r ON r.received_at = p.received_at AND r.node_id = p.name AND r.boot_id = p.boot_id
            AND r.sequence = p.sequence
        WHERE p.kind = 'node' AND r.received_at >= p_from AND r.received_at <= (SELECT at FROM last)
    ),
    weighted AS (
        SELECT r.*, r.seconds * least(1, greatest(0, r.held_s) / r.interval_s) AS held,
            r.completed * r.fraction AS answers
        FROM samples r WHERE r.kind = 'service'
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
