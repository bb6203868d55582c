-- Rolls whole minutes up, unless their telemetry has been dropped.
CREATE OR REPLACE FUNCTION headroom_roll_minutes(p_from timestamptz, p_to timestamptz) RETURNS integer
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
