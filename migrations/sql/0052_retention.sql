-- Retention, by time and by size. Nothing is dropped that a closed hour does not hold already. The last quarter of an
-- hour before the cut is what placing the first reports after it looks back on; losing it moves them by the clock noise
-- of one report.
CREATE OR REPLACE FUNCTION headroom_drop_partitions(p_parent text, p_before timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_part regclass;
    v_dropped integer = 0;
BEGIN
    FOR v_part IN SELECT part FROM headroom_partitions(p_parent) WHERE end_at <= p_before LOOP
        EXECUTE format('DROP TABLE %s', v_part);
        v_dropped = v_dropped + 1;
    END LOOP;
    RETURN v_dropped;
END
$body$;

CREATE OR REPLACE FUNCTION headroom_retention_cut(p_now timestamptz, p_days integer) RETURNS timestamptz
LANGUAGE sql STABLE SET timezone = 'UTC' AS $body$
    SELECT least(date_trunc('day', p_now) - make_interval(days => greatest(1, p_days)), date_trunc('day', at))
    FROM accounting_marks WHERE name = 'closed_until'
$body$;

CREATE OR REPLACE FUNCTION headroom_note_kept(p_name text, p_cut timestamptz) RETURNS void LANGUAGE sql AS $body$
    INSERT INTO accounting_marks VALUES (p_name, p_cut)
    ON CONFLICT (name) DO UPDATE SET at = greatest(accounting_marks.at, excluded.at)
$body$;

-- Where the partitions that end by `p_latest` have to be cut, the oldest first, so that all together are no larger than
-- `p_bytes`; NULL: nowhere.
CREATE OR REPLACE FUNCTION headroom_size_cut(p_parents text[], p_bytes numeric, p_latest timestamptz)
RETURNS timestamptz LANGUAGE sql STABLE SET timezone = 'UTC' AS $body$
    SELECT max(end_at) FROM (
        SELECT max(end_at) AS end_at, sum(sum(pg_total_relation_size(part))) OVER (ORDER BY start_at DESC) AS total
        FROM unnest(p_parents) AS parent, headroom_partitions(parent)
        GROUP BY start_at
    ) AS parts WHERE total > p_bytes AND end_at <= p_latest
$body$;

-- Offered load and the log of reports are kept for `p_days`, samples of devices and replicas for `p_hours` (none given:
-- as many). No more than `p_bytes` (0: any) are kept of all, as far as samples of closed hours can make room.
CREATE OR REPLACE FUNCTION headroom_drop_raw(
    p_now timestamptz, p_days integer, p_hours integer DEFAULT NULL, p_bytes bigint DEFAULT 0
) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_cut timestamptz = headroom_retention_cut(p_now, p_days);
    v_samples timestamptz = v_cut;
    v_latest timestamptz;
    v_parents text[] = ARRAY['sample_shapes', 'node_samples', 'device_sample_rows', 'replica_sample_rows'];
    v_parent text;
    v_before timestamptz;
    v_dropped integer = 0;
BEGIN
    IF v_cut IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    SELECT date_bin(INTERVAL '3 hours', at - INTERVAL '20 minutes', TIMESTAMPTZ '2000-01-01') INTO v_latest
    FROM accounting_marks WHERE name = 'closed_until';
    IF p_hours IS NOT NULL THEN
        v_samples = greatest(v_cut, least(v_latest,
            date_bin(INTERVAL '3 hours', p_now - make_interval(hours => greatest(1, p_hours)), TIMESTAMPTZ '2000-01-01')));
    END IF;
    IF p_bytes > 0 THEN
        v_samples = greatest(v_samples, headroom_size_cut(v_parents,
            p_bytes - (SELECT sum(pg_total_relation_size(part)) FROM unnest(ARRAY['rate_samples', 'report_log']) AS parent,
                headroom_partitions(parent)), v_latest));
    END IF;
    PERFORM headroom_note_kept('raw_kept_from', v_samples);
    FOREACH v_parent IN ARRAY v_parents || ARRAY['rate_samples', 'report_log'] LOOP
        v_before = CASE WHEN v_parent = ANY(v_parents) THEN v_samples ELSE v_cut END;
        v_dropped = v_dropped + headroom_drop_partitions(v_parent, v_before);
        -- Rows that arrived before their partition was made may still wait in the default one.
        EXECUTE format('DELETE FROM %I WHERE received_at < %L', v_parent || '_default', v_before);
    END LOOP;
    RETURN v_dropped;
END
$body$;

-- Minutes are kept for `p_days`, of ledger and bills no more than `p_bytes` (0: any), as far as closed days can go.
CREATE OR REPLACE FUNCTION headroom_drop_minutes(p_now timestamptz, p_days integer, p_bytes bigint DEFAULT 0)
RETURNS integer LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_cut timestamptz = headroom_retention_cut(p_now, p_days);
    v_dropped integer;
BEGIN
    IF v_cut IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    IF p_bytes > 0 THEN
        v_cut = greatest(v_cut, headroom_size_cut(ARRAY['ledger', 'device_bills'], p_bytes,
            (SELECT date_trunc('day', at) FROM accounting_marks WHERE name = 'closed_until')));
    END IF;
    PERFORM headroom_note_kept('minutes_kept_from', v_cut);
    v_dropped = headroom_drop_partitions('ledger', v_cut) + headroom_drop_partitions('device_bills', v_cut);
    DELETE FROM device_minutes WHERE minute < v_cut;
    DELETE FROM service_minutes WHERE minute < v_cut;
    DELETE FROM retired_devices WHERE billed_until < v_cut;
    RETURN v_dropped;
END
$body$;
