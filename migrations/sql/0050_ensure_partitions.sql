-- Makes the missing partitions of telemetry: of samples, which are many and are kept for hours, one for three hours of
-- the coming day and a half, of the rest one a day. Days are UTC days. Rows that arrived before their partition existed
-- wait in the default partition and are moved in. Rows of telemetry are neither changed nor deleted, they go with their
-- partition long before anything has to be frozen: autovacuum reads none of them, and counts them less often.
CREATE OR REPLACE FUNCTION headroom_ensure_partitions(days_ahead integer) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    parent text;
    is_sample boolean;
    step interval;
    part text;
    low timestamptz;
    high timestamptz;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_ensure_partitions'));
    FOREACH parent IN ARRAY ARRAY['device_samples', 'replica_samples', 'rate_samples', 'report_log'] LOOP
        is_sample := parent IN ('device_samples', 'replica_samples');
        step := CASE WHEN is_sample THEN INTERVAL '3 hours' ELSE INTERVAL '1 day' END;
        IF to_regclass(parent || '_default') IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', parent || '_default', parent);
        END IF;
        FOR low IN
            SELECT generate_series(date_bin(step, now(), TIMESTAMPTZ '2000-01-01'),
                now() + CASE WHEN is_sample THEN least(INTERVAL '36 hours', make_interval(days => days_ahead))
                             ELSE make_interval(days => days_ahead) END, step)
        LOOP
            high := low + step;
            part := parent || '_p' || to_char(low, CASE WHEN is_sample THEN 'YYYYMMDDHH24' ELSE 'YYYYMMDD' END);
            CONTINUE WHEN EXISTS (SELECT FROM headroom_partitions(parent) p WHERE p.start_at < high AND p.end_at > low);
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE) WITH ('
                           'autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.5)', part, parent);
            EXECUTE format('WITH waiting AS (DELETE FROM %I WHERE received_at >= %L AND received_at < %L RETURNING *)'
                           ' INSERT INTO %I SELECT * FROM waiting', parent || '_default', low, high, part);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, low, high);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END
$body$;
