-- Partitions of telemetry and money by their names: a day (`_pYYYYMMDD`) or the three hours (`_pYYYYMMDDHH`) from there.
CREATE OR REPLACE FUNCTION headroom_partitions(p_parent text)
RETURNS TABLE (part regclass, start_at timestamptz, end_at timestamptz)
LANGUAGE sql STABLE SET timezone = 'UTC' AS $body$
    SELECT oid::regclass, start_at, start_at + CASE length(digits) WHEN 8 THEN INTERVAL '1 day' ELSE INTERVAL '3 hours' END
    FROM (
        SELECT c.oid, digits, to_timestamp(rpad(digits, 10, '0'), 'YYYYMMDDHH24') AS start_at
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid,
            substring(c.relname FROM '_p([0-9]{8}|[0-9]{10})$') AS digits
        WHERE i.inhparent = to_regclass(p_parent) AND digits IS NOT NULL
    ) AS found
    ORDER BY start_at
$body$;

-- Makes the missing partitions of telemetry: of samples, which are many and are kept for hours, one for three hours of
-- the coming day and a half, of the rest one a day. Days are UTC days. Rows that arrived before their partition existed
-- wait in the default partition and are moved in.
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
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE)', part, parent);
            EXECUTE format('WITH waiting AS (DELETE FROM %I WHERE received_at >= %L AND received_at < %L RETURNING *)'
                           ' INSERT INTO %I SELECT * FROM waiting', parent || '_default', low, high, part);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, low, high);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END
$body$;
