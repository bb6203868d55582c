-- Makes the missing partitions of one table of telemetry: of samples, which are many and are kept for hours, one for three
-- hours of the coming day and a half, of the rest one a day. Days are UTC days. Rows that arrived before their partition
-- existed wait in the default partition and are moved in. Rows go with their partition long before anything has to be frozen,
-- so autovacuum reads none of them. While rows are moved in nobody else has that default partition:
-- whoever makes the partitions of several tables in one transaction keeps the first while waiting for the next, and those
-- who read or write both in another order wait for each other. Where rows are moved, nobody has the table: who began to plan
-- a query before a partition is attached, and waits for the default partition, does not look into the new one, and would
-- find these rows nowhere. Releases that write a row for each sample ask for
-- partitions of those rows, by the names that are views now.
CREATE OR REPLACE FUNCTION headroom_ensure_partitions(days_ahead integer, p_parent text) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    parent text := CASE p_parent WHEN 'device_samples' THEN 'device_sample_rows'
        WHEN 'replica_samples' THEN 'replica_sample_rows' ELSE p_parent END;
    is_sample boolean := parent IN ('sample_shapes', 'node_samples', 'device_sample_rows', 'replica_sample_rows');
    step interval := CASE WHEN is_sample THEN INTERVAL '3 hours' ELSE INTERVAL '1 day' END;
    part text;
    low timestamptz;
    high timestamptz;
    waits boolean;
    are_there text := 'SELECT EXISTS (SELECT FROM %I WHERE received_at >= %L AND received_at < %L)';
    made integer := 0;
    unsorted text := (
        SELECT string_agg(format('ALTER COLUMN %I SET STATISTICS 0', attname), ', ')
        FROM pg_attribute WHERE attrelid = to_regclass(parent) AND attnum > 0 AND attndims > 0);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_ensure_partitions'));
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
        EXECUTE format(are_there, parent || '_default', low, high) INTO waits;
        IF waits THEN
            EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', parent);
        END IF;
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', parent || '_default');
        IF NOT waits THEN
            EXECUTE format(are_there, parent || '_default', low, high) INTO waits;
            -- They came meanwhile. To ask for the table after a part of it is to wait for those who do it the right way
            -- round; the next time they are seen first.
            CONTINUE WHEN waits;
        END IF;
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE) WITH ('
                       'autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.5)', part, parent);
        -- How often which number stands in arrays is dear to count, and nobody asks.
        IF unsorted IS NOT NULL THEN
            EXECUTE format('ALTER TABLE %I %s', part, unsorted);
        END IF;
        EXECUTE format('WITH waiting AS (DELETE FROM %I WHERE received_at >= %L AND received_at < %L RETURNING *)'
                       ' INSERT INTO %I SELECT * FROM waiting', parent || '_default', low, high, part);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$body$;
