-- Samples, a row for each device and each process of a report: unpacked from the rows of reports, beside the rows that
-- earlier releases wrote. These still write rows, which go where they went. Conditions on times, nodes and boots are
-- applied before anything is unpacked, others after.
CREATE OR REPLACE VIEW unpacked_devices AS
    SELECT received_at, observed_at, node_id, boot_id, sequence, interval_s, uuid, power_w, energy_j, utilisation_pct,
        memory_mib_used, clock_mhz_sm, temperature_c, share_pct_sm_total, coalesce(throttle, '') AS throttle,
        coalesce(healthy, true) AS healthy
    FROM (
        SELECT s.received_at, s.observed_at, s.node_id, s.boot_id, s.sequence, s.interval_s,
            unnest(h.device_uuid) AS uuid, unnest(s.device_power_w) AS power_w, unnest(s.device_energy_j) AS energy_j,
            unnest(s.device_utilisation_pct) AS utilisation_pct, unnest(s.device_memory_mib_used) AS memory_mib_used,
            unnest(s.device_clock_mhz_sm) AS clock_mhz_sm, unnest(s.device_temperature_c) AS temperature_c,
            unnest(s.device_share_pct_sm_total) AS share_pct_sm_total, unnest(s.device_throttle) AS throttle,
            unnest(s.device_healthy) AS healthy
        FROM sample_shapes h JOIN node_samples s ON s.shaped_at = h.received_at AND s.shape = h.shape
    ) AS report;

CREATE OR REPLACE VIEW unpacked_replicas AS
    SELECT received_at, observed_at, node_id, boot_id, sequence, interval_s, replica, kind, workload, project, model, uuid,
        coalesce(state, 'ready') AS state, share_pct_sm, sm_count, memory_mib_limit, memory_mib_used, batch, held_s, arrived,
        completed, violated, dropped, queue_length, batch_mean, latency_ms_p50, latency_ms_p95, latency_ms_p99, energy_j,
        iterations_done, executions, execution_ms_mean
    FROM (
        SELECT s.received_at, s.observed_at, s.node_id, s.boot_id, s.sequence, s.interval_s,
            unnest(h.replica_name) AS replica, unnest(h.replica_kind) AS kind, unnest(h.replica_workload) AS workload,
            unnest(h.replica_project) AS project, unnest(h.replica_model) AS model, unnest(h.replica_uuid) AS uuid,
            unnest(s.replica_state) AS state, unnest(h.replica_share_pct_sm) AS share_pct_sm,
            unnest(h.replica_sm_count) AS sm_count, unnest(h.replica_memory_mib_limit) AS memory_mib_limit,
            unnest(s.replica_memory_mib_used) AS memory_mib_used, unnest(h.replica_batch) AS batch,
            unnest(s.replica_held_s) AS held_s, unnest(s.replica_arrived) AS arrived,
            unnest(s.replica_completed) AS completed, unnest(s.replica_violated) AS violated,
            unnest(s.replica_dropped) AS dropped, unnest(s.replica_queue_length) AS queue_length,
            unnest(s.replica_batch_mean) AS batch_mean, unnest(s.replica_latency_ms_p50) AS latency_ms_p50,
            unnest(s.replica_latency_ms_p95) AS latency_ms_p95, unnest(s.replica_latency_ms_p99) AS latency_ms_p99,
            unnest(s.replica_energy_j) AS energy_j, unnest(s.replica_iterations_done) AS iterations_done,
            unnest(s.replica_executions) AS executions, unnest(s.replica_execution_ms_mean) AS execution_ms_mean
        FROM sample_shapes h JOIN node_samples s ON s.shaped_at = h.received_at AND s.shape = h.shape
    ) AS report;

CREATE OR REPLACE VIEW device_samples AS
    SELECT * FROM unpacked_devices UNION ALL SELECT * FROM device_sample_rows;
ALTER VIEW device_samples ALTER COLUMN received_at SET DEFAULT now();

CREATE OR REPLACE VIEW replica_samples AS
    SELECT * FROM unpacked_replicas UNION ALL SELECT * FROM replica_sample_rows;
ALTER VIEW replica_samples ALTER COLUMN received_at SET DEFAULT now();
ALTER VIEW replica_samples ALTER COLUMN executions SET DEFAULT 0;

-- Whoever looks at what services answered of late, over and over, unpacks no more than that.
CREATE OR REPLACE VIEW service_samples AS
    SELECT received_at, workload, completed, violated, dropped, latency_ms_p50, latency_ms_p99, energy_j
    FROM (
        SELECT s.received_at, unnest(h.replica_kind) AS kind, unnest(h.replica_workload) AS workload,
            unnest(s.replica_completed) AS completed, unnest(s.replica_violated) AS violated,
            unnest(s.replica_dropped) AS dropped, unnest(s.replica_latency_ms_p50) AS latency_ms_p50,
            unnest(s.replica_latency_ms_p99) AS latency_ms_p99, unnest(s.replica_energy_j) AS energy_j
        FROM sample_shapes h JOIN node_samples s ON s.shaped_at = h.received_at AND s.shape = h.shape
        UNION ALL
        SELECT received_at, kind, workload, completed, violated, dropped, latency_ms_p50, latency_ms_p99, energy_j
        FROM replica_sample_rows
    ) AS report
    WHERE kind = 'service';

COMMENT ON VIEW service_samples IS 'What processes of services answered, one row for each report; bound received_at.';
COMMENT ON VIEW unpacked_devices IS 'Samples of devices that stand in rows of reports.';
COMMENT ON VIEW unpacked_replicas IS 'Samples of processes that stand in rows of reports.';
COMMENT ON VIEW device_samples IS
    'Samples of devices, one for each report; bound received_at, and node_id where one node is meant.';
COMMENT ON VIEW replica_samples IS
    'Samples of processes of replicas, one for each report; bound received_at, and node_id where one node is meant.';

CREATE OR REPLACE FUNCTION headroom_keep_sample() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_TABLE_NAME = 'device_samples' THEN
        INSERT INTO device_sample_rows SELECT NEW.*;
    ELSE
        INSERT INTO replica_sample_rows SELECT NEW.*;
    END IF;
    RETURN NEW;
END
$body$;

CREATE OR REPLACE TRIGGER device_samples_keep INSTEAD OF INSERT ON device_samples
    FOR EACH ROW EXECUTE FUNCTION headroom_keep_sample();

CREATE OR REPLACE TRIGGER replica_samples_keep INSTEAD OF INSERT ON replica_samples
    FOR EACH ROW EXECUTE FUNCTION headroom_keep_sample();
