-- Retention. Nothing is dropped that a closed hour does not hold already. The last quarter of an hour before the cut is
-- what placing the first reports after it looks back on; losing it moves them by the clock noise of one report.
CREATE OR REPLACE FUNCTION headroom_drop_partitions(p_parent text, p_before timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_part text;
    v_dropped integer = 0;
BEGIN
    FOR v_part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass(p_parent) AND c.relname ~ ('^' || p_parent || '_p[0-9]{8}$')
            AND to_date(right(c.relname, 8), 'YYYYMMDD') < (p_before AT TIME ZONE 'UTC')::date
        ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE %I', v_part);
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

CREATE OR REPLACE FUNCTION headroom_drop_raw(p_now timestamptz, p_days integer) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_cut timestamptz = headroom_retention_cut(p_now, p_days);
    v_parent text;
    v_dropped integer = 0;
BEGIN
    IF v_cut IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    PERFORM headroom_note_kept('raw_kept_from', v_cut);
    FOREACH v_parent IN ARRAY ARRAY['device_samples', 'replica_samples', 'rate_samples', 'report_log'] LOOP
        v_dropped = v_dropped + headroom_drop_partitions(v_parent, v_cut);
        -- Rows that arrived before their day's partition was made may still wait in the default one.
        EXECUTE format('DELETE FROM %I WHERE received_at < %L', v_parent || '_default', v_cut);
    END LOOP;
    RETURN v_dropped;
END
$body$;

CREATE OR REPLACE FUNCTION headroom_drop_minutes(p_now timestamptz, p_days integer) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_cut timestamptz = headroom_retention_cut(p_now, p_days);
    v_dropped integer;
BEGIN
    IF v_cut IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    PERFORM headroom_note_kept('minutes_kept_from', v_cut);
    v_dropped = headroom_drop_partitions('ledger', v_cut) + headroom_drop_partitions('device_bills', v_cut);
    DELETE FROM device_minutes WHERE minute < v_cut;
    DELETE FROM service_minutes WHERE minute < v_cut;
    DELETE FROM retired_devices WHERE billed_until < v_cut;
    RETURN v_dropped;
END
$body$;
