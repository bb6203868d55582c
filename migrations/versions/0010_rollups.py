"""Create the roll-ups of telemetry by minute and hour, and the rule that places a report on the time line.

Revision ID: 0010
Revises: 0003
"""

from alembic import op

revision = "0010"
down_revision = "0003"
branch_labels = None
depends_on = None

# Attainment counts requests whose fate is known: answered, dropped, or refused at the edge. Defined once, as a
# generated column.
ATTAINMENT = """double precision GENERATED ALWAYS AS (
        CASE WHEN completed + dropped + unrouted > 0
             THEN greatest(0, completed - violated) / (completed + dropped + unrouted) END) STORED"""

DEVICE_COLUMNS = """
    device_uuid text NOT NULL,
    node_id text NOT NULL,
    observed_s double precision NOT NULL,
    reports integer NOT NULL,
    energy_j double precision NOT NULL,
    power_w_mean double precision NOT NULL,
    power_w_max double precision NOT NULL,
    utilisation_pct_mean double precision NOT NULL,
    memory_mib_used_mean double precision NOT NULL,
    memory_mib_used_max double precision NOT NULL,
    clock_mhz_sm_mean double precision NOT NULL,
    share_pct_sm_mean double precision NOT NULL,
    temperature_c_max double precision,
    throttled_s double precision NOT NULL,
    unhealthy_s double precision NOT NULL"""

SERVICE_COLUMNS = f"""
    service text NOT NULL,
    project text NOT NULL,
    offered double precision,
    unrouted double precision NOT NULL,
    arrived double precision NOT NULL,
    completed double precision NOT NULL,
    violated double precision NOT NULL,
    dropped double precision NOT NULL,
    replicas_mean double precision NOT NULL,
    share_pct_sm_mean double precision NOT NULL,
    memory_mib_used_mean double precision NOT NULL,
    queue_length_mean double precision NOT NULL,
    latency_ms_p50 double precision,
    latency_ms_p95 double precision,
    latency_ms_p99 double precision,
    latency_ms_p99_max double precision,
    energy_j double precision NOT NULL,
    slo_attainment {ATTAINMENT}"""

TABLES = f"""
CREATE TABLE device_minutes (minute timestamptz NOT NULL, {DEVICE_COLUMNS}, PRIMARY KEY (device_uuid, minute));
CREATE INDEX device_minutes_minute ON device_minutes (minute);
CREATE TABLE service_minutes (minute timestamptz NOT NULL, {SERVICE_COLUMNS}, PRIMARY KEY (service, minute));
CREATE INDEX service_minutes_minute ON service_minutes (minute);
CREATE TABLE device_hours (hour timestamptz NOT NULL, {DEVICE_COLUMNS}, PRIMARY KEY (device_uuid, hour));
CREATE INDEX device_hours_hour ON device_hours (hour);
CREATE TABLE service_hours (hour timestamptz NOT NULL, {SERVICE_COLUMNS}, PRIMARY KEY (service, hour));
CREATE INDEX service_hours_hour ON service_hours (hour);
CREATE TABLE accounting_marks (name text PRIMARY KEY, at timestamptz NOT NULL);
"""

# A report covers the interval that ends at its `observed_at`, read on the server's clock. The sender's clock offset is
# the smallest `received_at - observed_at` of that boot in the last quarter of an hour: a report resent after an outage
# still lands where it was measured, and a host whose clock is wrong is not punished. A report that follows its
# predecessor begins where that one ended; the few milliseconds by which two timers disagree are nobody's gap. Nothing
# may claim more than five minutes. The window looks back twenty minutes, so that predecessors are placed the same
# whoever asks.
HEARD = """
CREATE FUNCTION headroom_heard(p_received_from timestamptz, p_received_to timestamptz)
RETURNS TABLE (source text, boot_id text, sequence bigint, received_at timestamptz, start_at timestamptz,
               end_at timestamptz)
LANGUAGE sql STABLE ROWS 5000 SET timezone = 'UTC' AS $body$
    WITH clocked AS (
        SELECT l.source, l.boot_id, l.sequence, l.received_at, least(l.interval_s, 300) AS interval_s,
            l.observed_at + min(l.received_at - l.observed_at) OVER (
                PARTITION BY l.source, l.boot_id ORDER BY l.received_at
                RANGE BETWEEN INTERVAL '15 minutes' PRECEDING AND CURRENT ROW) AS end_at
        FROM report_log l
        WHERE l.received_at >= p_received_from - INTERVAL '20 minutes' AND l.received_at < p_received_to
            AND l.interval_s >= 0.001
    ),
    ordered AS (
        SELECT c.*, c.end_at - make_interval(secs => c.interval_s) AS start_at,
            lag(c.sequence) OVER turn AS sequence_before, lag(c.end_at) OVER turn AS end_before,
            lag(c.received_at) OVER turn AS received_before
        FROM clocked c WINDOW turn AS (PARTITION BY c.source, c.boot_id ORDER BY c.sequence, c.received_at)
    )
    SELECT o.source, o.boot_id, o.sequence, o.received_at,
        CASE WHEN o.sequence = o.sequence_before + 1 AND o.received_before >= o.received_at - INTERVAL '5 minutes'
                AND abs(extract(epoch FROM o.start_at - o.end_before)) <= least(2, o.interval_s / 5)
             THEN o.end_before ELSE o.start_at END,
        o.end_at
    FROM ordered o
    WHERE o.received_at >= p_received_from
$body$;
"""

# `free_at`: where the part of the report begins that no earlier-starting report of the same source covers. The parts
# [free_at, end_at) of a source never overlap, so seconds can be summed; each instant belongs to the same report
# whatever window is asked for. Reports that come more than 75 minutes late are not looked for: their hour is closed by
# then.
SPANS = """
CREATE FUNCTION headroom_report_spans(p_from timestamptz, p_to timestamptz)
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
"""

# `fraction` is the part of the whole report that falls into the minute (for counts: each event counts once, even in
# overlapping reports); `seconds` is the part of its own time that does (for states and energy).
PIECES = """
CREATE FUNCTION headroom_report_pieces(p_from timestamptz, p_to timestamptz)
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
"""

# Rolling a minute replaces it, so late rows are picked up by rolling again. The planner cannot know how many rows a
# function returns; without nested loops it hashes, which is right for a minute of a thousand devices and does no harm
# for ten.
ROLL_DEVICES = """
CREATE FUNCTION headroom_roll_device_minutes(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET enable_nestloop = off SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM device_minutes WHERE minute >= p_from AND minute < p_to;
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
    FROM headroom_report_pieces(p_from, p_to) p
    JOIN device_samples d ON d.received_at = p.received_at AND 'node/' || d.node_id = p.source AND d.boot_id = p.boot_id
        AND d.sequence = p.sequence
    WHERE d.received_at >= p_from AND d.received_at < p_to + INTERVAL '75 minutes' AND p.seconds > 0
    GROUP BY p.minute, d.uuid;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
"""

# Served counts come from replicas, offered and unrouted from gateways; a service seen by only one of the two still gets
# its row.
ROLL_SERVICES = """
CREATE FUNCTION headroom_roll_service_minutes(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET enable_nestloop = off SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM service_minutes WHERE minute >= p_from AND minute < p_to;
    WITH pieces AS MATERIALIZED (SELECT * FROM headroom_report_pieces(p_from, p_to)),
    weighted AS (
        SELECT p.minute, r.*, p.fraction, p.seconds, p.span_s,
            p.seconds * least(1, greatest(0, r.held_s) / r.interval_s) AS held,
            r.completed * p.fraction AS answers
        FROM pieces p
        JOIN replica_samples r ON r.received_at = p.received_at AND 'node/' || r.node_id = p.source
            AND r.boot_id = p.boot_id AND r.sequence = p.sequence
        WHERE r.received_at >= p_from AND r.received_at < p_to + INTERVAL '75 minutes' AND r.kind = 'service'
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
        JOIN rate_samples e ON e.received_at = p.received_at AND 'gateway/' || e.gateway = p.source
            AND e.boot_id = p.boot_id AND e.sequence = p.sequence
        WHERE e.received_at >= p_from AND e.received_at < p_to + INTERVAL '75 minutes'
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
"""

ROLL_MINUTES = """
CREATE FUNCTION headroom_roll_minutes(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_from timestamptz = date_trunc('minute', p_from);
    v_to timestamptz = date_trunc('minute', p_to);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    IF EXISTS (SELECT FROM accounting_marks WHERE name = 'raw_kept_from' AND at > v_from) THEN
        RAISE EXCEPTION 'the telemetry of % has been dropped; its roll-ups stay as they are', v_from
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN headroom_roll_device_minutes(v_from, v_to) + headroom_roll_service_minutes(v_from, v_to);
END
$body$;
"""

# Every hour that any minute of [from, to) belongs to is made again from its minutes; an hour still running is partial.
# An hour whose minutes are gone (retention) keeps what it has.
ROLL_HOURS = """
CREATE FUNCTION headroom_roll_hours(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_from timestamptz = date_trunc('hour', p_from);
    v_to timestamptz = date_trunc('hour', p_to - INTERVAL '1 microsecond') + INTERVAL '1 hour';
    v_devices integer;
    v_services integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    DELETE FROM device_hours h USING (
        SELECT DISTINCT date_trunc('hour', minute) AS hour
        FROM device_minutes WHERE minute >= v_from AND minute < v_to) m
    WHERE h.hour = m.hour;
    INSERT INTO device_hours
    SELECT date_trunc('hour', minute), device_uuid, min(node_id), sum(observed_s), sum(reports), sum(energy_j),
        sum(power_w_mean * observed_s) / sum(observed_s), max(power_w_max),
        sum(utilisation_pct_mean * observed_s) / sum(observed_s),
        sum(memory_mib_used_mean * observed_s) / sum(observed_s), max(memory_mib_used_max),
        sum(clock_mhz_sm_mean * observed_s) / sum(observed_s), sum(share_pct_sm_mean * observed_s) / sum(observed_s),
        max(temperature_c_max), sum(throttled_s), sum(unhealthy_s)
    FROM device_minutes WHERE minute >= v_from AND minute < v_to
    GROUP BY 1, 2;
    GET DIAGNOSTICS v_devices = ROW_COUNT;

    DELETE FROM service_hours h USING (
        SELECT DISTINCT date_trunc('hour', minute) AS hour
        FROM service_minutes WHERE minute >= v_from AND minute < v_to) m
    WHERE h.hour = m.hour;
    INSERT INTO service_hours (hour, service, project, offered, unrouted, arrived, completed, violated, dropped,
        replicas_mean, share_pct_sm_mean, memory_mib_used_mean, queue_length_mean,
        latency_ms_p50, latency_ms_p95, latency_ms_p99, latency_ms_p99_max, energy_j)
    SELECT date_trunc('hour', minute), service, min(project), sum(offered), sum(unrouted), sum(arrived), sum(completed),
        sum(violated), sum(dropped),
        avg(replicas_mean), avg(share_pct_sm_mean), avg(memory_mib_used_mean), avg(queue_length_mean),
        sum(latency_ms_p50 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p50 IS NOT NULL), 0),
        sum(latency_ms_p95 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p95 IS NOT NULL), 0),
        sum(latency_ms_p99 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p99 IS NOT NULL), 0),
        max(latency_ms_p99_max), sum(energy_j)
    FROM service_minutes WHERE minute >= v_from AND minute < v_to
    GROUP BY 1, 2;
    GET DIAGNOSTICS v_services = ROW_COUNT;
    RETURN v_devices + v_services;
END
$body$;
"""

DOWNGRADE = """
DROP FUNCTION headroom_roll_hours(timestamptz, timestamptz), headroom_roll_minutes(timestamptz, timestamptz),
    headroom_roll_service_minutes(timestamptz, timestamptz), headroom_roll_device_minutes(timestamptz, timestamptz),
    headroom_report_pieces(timestamptz, timestamptz), headroom_report_spans(timestamptz, timestamptz),
    headroom_heard(timestamptz, timestamptz);
DROP TABLE accounting_marks, service_hours, device_hours, service_minutes, device_minutes;
"""


def upgrade() -> None:
    """Make the tables, then the functions that fill them."""
    for statement in (TABLES, HEARD, SPANS, PIECES, ROLL_DEVICES, ROLL_SERVICES, ROLL_MINUTES, ROLL_HOURS):
        op.execute(statement)


def downgrade() -> None:
    """Drop them with all they hold; the telemetry they came from stays."""
    op.execute(DOWNGRADE)
