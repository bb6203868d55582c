-- Makes the missing partitions of telemetry, one a day. Days are UTC days. Rows that arrived before their partition
-- existed wait in the default partition and are moved in.
CREATE OR REPLACE FUNCTION headroom_ensure_partitions(days_ahead integer) RETURNS integer LANGUAGE plpgsql AS $body$
DECLARE
    parent text;
    day date;
    part text;
    low timestamptz;
    high timestamptz;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('headroom_ensure_partitions'));
    FOREACH parent IN ARRAY ARRAY['device_samples', 'replica_samples', 'rate_samples', 'report_log'] LOOP
        IF to_regclass(parent || '_default') IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', parent || '_default', parent);
        END IF;
        FOR ahead IN 0..days_ahead LOOP
            day := (now() AT TIME ZONE 'UTC')::date + ahead;
            part := parent || '_p' || to_char(day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass(part) IS NOT NULL;
            low := day::timestamp AT TIME ZONE 'UTC';
            high := (day + 1)::timestamp AT TIME ZONE 'UTC';
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
