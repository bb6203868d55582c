-- Makes the missing partitions of ledger and bills, one a day. Attaching takes a lock that readers do not notice,
-- unlike CREATE TABLE … PARTITION OF.
CREATE OR REPLACE FUNCTION headroom_ensure_ledger_partitions(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_parent text;
    v_day timestamptz;
    v_part text;
    v_made integer = 0;
BEGIN
    FOREACH v_parent IN ARRAY ARRAY['ledger', 'device_bills'] LOOP
        FOR v_day IN
            SELECT generate_series(date_trunc('day', p_from), p_to - INTERVAL '1 microsecond', INTERVAL '1 day')
        LOOP
            v_part = v_parent || '_p' || to_char(v_day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass(v_part) IS NOT NULL;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', v_part, v_parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_parent, v_part, v_day,
                           v_day + INTERVAL '1 day');
            v_made = v_made + 1;
        END LOOP;
    END LOOP;
    RETURN v_made;
END
$body$;
