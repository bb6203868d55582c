-- Splits the bill of each minute among those who held the device. The whole GPU of each instant is split among those
-- who hold any of it, by share. By memory everybody pays for what he uses, and for all of it who has all SMs; in time
-- slices nobody has SMs of his own. While replicas change over, more may be claimed than there is: each instant's
-- claims shrink to the device, so nothing that idles at another instant is hidden. Energy is paid at the price that the
-- bill notes. Every amount is cut down to twelve decimals, so no accounting can exceed the bill; the rest goes to the
-- idle row where something idled, else to the largest holder. `full_*` is what there was to hold, never less than what
-- is charged.
-- Of what came since, nothing is read that came after the last that was heard of these minutes. What instants weigh is
-- reckoned in floating point and rounded to nine decimals for each holder; from there on all is exact.
CREATE OR REPLACE FUNCTION headroom_write_ledger(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET enable_nestloop = off SET enable_mergejoin = off SET jit = off
SET work_mem = '64MB' AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM ledger WHERE minute >= p_from AND minute < p_to;

    WITH bills AS MATERIALIZED (
        -- Numbered, so that all that follows is sorted and joined by numbers and not by names.
        SELECT b.*, row_number() OVER () AS bill_no FROM device_bills b WHERE b.minute >= p_from AND b.minute < p_to
    ),
    readings AS MATERIALIZED (
        SELECT row_number() OVER () AS instant_no, b.bill_no, b.time_sliced, r.device_uuid, r.span_no,
            substr(r.source, 6) AS node_id, r.boot_id, r.sequence, r.received_at, r.seconds, r.energy_j,
            r.seconds::float8 AS lasts_s, (r.seconds / r.span_s)::float8 AS part, b.memory_mib::float8 AS device_mib
        FROM headroom_readings(p_from, p_to) r JOIN bills b USING (minute, device_uuid)
    ),
    reports AS MATERIALIZED (
        SELECT DISTINCT span_no, node_id, boot_id, sequence, received_at FROM readings
    ),
    samples AS (
        -- Unpacked once for each report, however many devices it has.
        SELECT p.span_no, s.interval_s, unnest(h.replica_name) AS replica, unnest(h.replica_kind) AS kind,
            unnest(h.replica_workload) AS workload, unnest(h.replica_project) AS project,
            unnest(h.replica_model) AS model, unnest(h.replica_uuid) AS uuid,
            unnest(h.replica_share_pct_sm) AS share_pct_sm, unnest(h.replica_memory_mib_limit) AS memory_mib_limit,
            unnest(s.replica_memory_mib_used) AS memory_mib_used, unnest(s.replica_held_s) AS held_s,
            unnest(s.replica_energy_j) AS energy_j
        FROM reports p
        JOIN node_samples s ON s.received_at = p.received_at AND s.node_id = p.node_id AND s.boot_id = p.boot_id
            AND s.sequence = p.sequence
        JOIN sample_shapes h ON h.received_at = s.shaped_at AND h.shape = s.shape
        WHERE s.received_at >= p_from AND s.received_at <= (SELECT max(received_at) FROM reports)
            AND h.received_at > p_from - INTERVAL '3 hours'
        UNION ALL
        SELECT p.span_no, r.interval_s, r.replica, r.kind, r.workload, r.project, r.model, r.uuid, r.share_pct_sm,
            r.memory_mib_limit, r.memory_mib_used, r.held_s, r.energy_j
        FROM reports p
        JOIN replica_sample_rows r ON r.received_at = p.received_at AND r.node_id = p.node_id
            AND r.boot_id = p.boot_id AND r.sequence = p.sequence
        WHERE r.received_at >= p_from AND r.received_at <= (SELECT max(received_at) FROM reports)
    ),
    claims AS (
        SELECT r.instant_no, r.bill_no, r.lasts_s AS seconds, s.replica, s.project, s.workload, s.model,
            CASE s.kind WHEN 'job' THEN 'job' WHEN 'task' THEN 'task' ELSE 'replica' END AS kind,
            least(100, greatest(0, s.share_pct_sm))::float8 AS share_pct, greatest(0, s.memory_mib_used) AS memory_mib,
            CASE WHEN s.share_pct_sm >= 100 AND NOT r.time_sliced THEN r.device_mib
                 ELSE greatest(0, s.memory_mib_used) END AS paid_mib,
            greatest(0, s.memory_mib_limit) AS reserved_mib,
            CASE WHEN s.held_s > 0 AND s.held_s > s.interval_s - 0.01 THEN 1
                 ELSE greatest(0, s.held_s) / s.interval_s END AS held,
            greatest(0, s.energy_j) * r.part AS energy_j, r.device_mib
        FROM readings r JOIN samples s ON s.span_no = r.span_no AND s.uuid = r.device_uuid
    ),
    weighed AS (
        -- A holder without a share (plain time slicing) still weighs a little, so that somebody pays for the GPU.
        SELECT c.*, greatest(share_pct, 0.001) * held AS weight,
            sum(greatest(share_pct, 0.001) * held) OVER instant AS weight_total, max(held) OVER instant AS held_any,
            seconds * held * 100 / greatest(100, sum(share_pct * held) OVER instant) AS share_held_s,
            seconds * held * device_mib / greatest(device_mib, sum(memory_mib * held) OVER instant) AS memory_held_s,
            seconds * held * device_mib / greatest(device_mib, sum(paid_mib * held) OVER instant) AS paid_held_s
        FROM claims c WINDOW instant AS (PARTITION BY instant_no)
    ),
    holders AS (
        SELECT bill_no, kind, replica AS subject, min(project) AS project, min(workload) AS workload,
            min(model) AS model, round(sum(seconds * held)::numeric, 9) AS held_s,
            round(sum(share_held_s * share_pct)::numeric, 9) AS share_s,
            round(sum(memory_held_s * memory_mib)::numeric, 9) AS memory_s,
            round(sum(paid_held_s * paid_mib)::numeric, 9) AS paid_s,
            round(sum(seconds * held * reserved_mib)::numeric, 9) AS reserved_s,
            round(sum(energy_j)::numeric, 9) AS energy_j,
            round(sum(CASE WHEN weight_total > 0 THEN seconds * held_any * weight / weight_total ELSE 0 END)::numeric, 9)
                AS whole_s
        FROM weighed GROUP BY bill_no, kind, replica
    ),
    held AS (
        SELECT bill_no, sum(share_s) AS share_s, sum(memory_s) AS memory_s, sum(paid_s) AS paid_s,
            sum(whole_s) AS whole_s, sum(energy_j) AS energy_j, sum(reserved_s) AS reserved_s
        FROM holders GROUP BY bill_no
    ),
    observed AS (
        SELECT bill_no, sum(seconds) AS seconds, sum(energy_j) AS energy_j FROM readings GROUP BY bill_no
    ),
    split AS (
        SELECT b.*, coalesce(o.seconds, 0) AS seen_s, coalesce(o.energy_j, 0) AS joules,
            trunc(b.usd * (b.seconds - coalesce(o.seconds, 0)) / b.seconds, 12) AS usd_unseen,
            round(coalesce(o.energy_j, 0) * coalesce(b.usd_per_kwh, 0) / 3600000, 12) AS usd_joules
        FROM bills b LEFT JOIN observed o USING (bill_no)
    ),
    devices AS MATERIALIZED (
        -- full_*: what there was to hold; never less than what is charged, whatever division rounded up.
        SELECT s.*, s.usd - s.usd_unseen AS usd_seen, h.bill_no IS NOT NULL AS is_held,
            greatest(100 * s.seen_s, coalesce(h.share_s, 0)) AS full_share,
            greatest(s.memory_mib * s.seen_s, coalesce(h.memory_s, 0)) AS full_memory,
            greatest(s.memory_mib * s.seen_s, coalesce(h.paid_s, 0)) AS full_paid,
            greatest(s.seen_s, coalesce(h.whole_s, 0)) AS full_whole,
            greatest(s.joules, coalesce(h.energy_j, 0)) AS full_energy,
            greatest(0, 100 * s.seen_s - coalesce(h.share_s, 0)) AS idle_share,
            greatest(0, s.memory_mib * s.seen_s - coalesce(h.memory_s, 0)) AS idle_memory,
            greatest(0, s.memory_mib * s.seen_s - coalesce(h.paid_s, 0)) AS idle_paid,
            greatest(0, s.memory_mib * s.seen_s - coalesce(h.reserved_s, 0)) AS idle_reserved,
            greatest(0, s.seen_s - coalesce(h.whole_s, 0)) AS idle_whole,
            greatest(0, s.joules - coalesce(h.energy_j, 0)) AS idle_energy
        FROM split s LEFT JOIN held h USING (bill_no)
    ),
    charged AS (
        SELECT h.*, d.full_share, d.full_memory, d.full_energy, d.memory_mib, d.seen_s, d.joules,
            trunc(d.usd_seen * h.share_s / d.full_share, 12) AS usd_share,
            trunc(d.usd_seen * h.paid_s / d.full_paid, 12) AS usd_memory,
            trunc(d.usd_seen * h.whole_s / d.full_whole, 12) AS usd_whole,
            coalesce(trunc(d.usd_joules * h.energy_j / nullif(d.full_energy, 0), 12), 0) AS usd_energy
        FROM holders h JOIN devices d USING (bill_no)
    ),
    ranked AS (
        SELECT c.*,
            row_number() OVER (PARTITION BY bill_no ORDER BY usd_share DESC, subject, kind) AS nth_share,
            row_number() OVER (PARTITION BY bill_no ORDER BY usd_memory DESC, subject, kind) AS nth_memory,
            row_number() OVER (PARTITION BY bill_no ORDER BY usd_whole DESC, subject, kind) AS nth_whole,
            row_number() OVER (PARTITION BY bill_no ORDER BY usd_energy DESC, subject, kind) AS nth_energy
        FROM charged c
    ),
    rests AS MATERIALIZED (
        -- What cutting left over, or what nobody held: to the idle row where something idled, else the largest holder.
        SELECT d.*, d.idle_share > 0.000001 OR NOT d.is_held AS idles_share,
            d.idle_paid > 0.000001 OR NOT d.is_held AS idles_memory,
            d.idle_whole > 0.000001 OR NOT d.is_held AS idles_whole,
            d.idle_energy > 0.01 OR NOT d.is_held AS idles_energy,
            d.usd_seen - coalesce(c.usd_share, 0) AS rest_share, d.usd_seen - coalesce(c.usd_memory, 0) AS rest_memory,
            d.usd_seen - coalesce(c.usd_whole, 0) AS rest_whole, d.usd_joules - coalesce(c.usd_energy, 0) AS rest_energy
        FROM devices d LEFT JOIN (
            SELECT bill_no, sum(usd_share) AS usd_share, sum(usd_memory) AS usd_memory, sum(usd_whole) AS usd_whole,
                sum(usd_energy) AS usd_energy
            FROM charged GROUP BY bill_no) c USING (bill_no)
    ),
    entries AS (
        SELECT c.bill_no, c.kind, c.subject, c.project, c.workload, c.model,
            least(c.held_s, c.seen_s) AS seconds,
            c.share_s * 100 * c.seen_s / c.full_share AS share_s,
            c.memory_s * c.memory_mib * c.seen_s / c.full_memory AS memory_s,
            c.reserved_s, coalesce(c.energy_j * c.joules / nullif(c.full_energy, 0), 0) AS energy_j,
            c.usd_memory
                + CASE WHEN c.nth_memory = 1 AND NOT d.idles_memory THEN d.rest_memory ELSE 0 END AS usd_memory,
            c.usd_share + CASE WHEN c.nth_share = 1 AND NOT d.idles_share THEN d.rest_share ELSE 0 END AS usd_share,
            c.usd_whole + CASE WHEN c.nth_whole = 1 AND NOT d.idles_whole THEN d.rest_whole ELSE 0 END AS usd_whole,
            c.usd_energy + CASE WHEN c.nth_energy = 1 AND NOT d.idles_energy THEN d.rest_energy ELSE 0 END AS usd_energy
        FROM ranked c JOIN rests d USING (bill_no)
        UNION ALL
        SELECT bill_no, 'idle', '', '', '', '',
            idle_whole, idle_share, idle_memory, idle_reserved, idle_energy,
            CASE WHEN idles_memory THEN rest_memory ELSE 0 END, CASE WHEN idles_share THEN rest_share ELSE 0 END,
            CASE WHEN idles_whole THEN rest_whole ELSE 0 END, CASE WHEN idles_energy THEN rest_energy ELSE 0 END
        FROM rests
        WHERE seen_s > 0
            AND (idles_share OR idle_memory > 0.000001 OR idles_memory OR idles_whole OR idles_energy)
        UNION ALL
        SELECT bill_no, 'unobserved', '', '', '', '', seconds - seen_s, 100 * (seconds - seen_s),
            memory_mib * (seconds - seen_s), 0, 0, usd_unseen, usd_unseen, usd_unseen, 0
        FROM rests WHERE seconds > seen_s
    ),
    noted AS (
        UPDATE device_bills b SET observed_s = r.seen_s, energy_j = round(r.joules, 6), usd_energy = r.usd_joules
        FROM rests r
        WHERE b.minute = r.minute AND b.device_uuid = r.device_uuid AND b.minute >= p_from AND b.minute < p_to
    )
    INSERT INTO ledger
    SELECT b.minute, b.device_uuid, e.kind, e.subject, b.node_id, b.gpu_type, b.region, b.price_kind,
        b.price_usd_per_h, e.project, e.workload, e.model,
        round(e.seconds, 6), round(e.share_s, 6), round(e.memory_s, 6), round(e.reserved_s, 6), round(e.energy_j, 6),
        e.usd_memory, e.usd_share, e.usd_whole, e.usd_energy
    FROM entries e JOIN rests b USING (bill_no);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
