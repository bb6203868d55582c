-- Accounts [from, to): bills, then splits them; a closed hour is accounted again only when forced to.
CREATE OR REPLACE FUNCTION headroom_account_minutes(
    p_from timestamptz, p_to timestamptz, p_force boolean DEFAULT false, p_reprice boolean DEFAULT false
) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_from timestamptz = date_trunc('minute', p_from);
    v_to timestamptz = date_trunc('minute', p_to);
    v_closed timestamptz;
    v_rows integer;
BEGIN
    IF v_from >= v_to THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    IF EXISTS (SELECT FROM accounting_marks WHERE name IN ('raw_kept_from', 'minutes_kept_from') AND at > v_from) THEN
        RAISE EXCEPTION 'the telemetry of % has been dropped; its ledger stays as it is', v_from
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT at INTO v_closed FROM accounting_marks WHERE name = 'closed_until';
    IF v_from < v_closed AND NOT p_force THEN
        RAISE EXCEPTION 'the hour of % is closed; account it again explicitly with p_force => true', v_from
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM headroom_ensure_ledger_partitions(v_from, v_to);
    PERFORM headroom_bill_minutes(v_from, v_to, p_reprice);
    v_rows = headroom_write_ledger(v_from, v_to);
    IF v_from < v_closed THEN
        PERFORM headroom_close_hours(
            date_trunc('hour', v_from), least(v_closed, date_trunc('hour', v_to + INTERVAL '59 minutes')));
    END IF;
    RETURN v_rows;
END
$body$;
