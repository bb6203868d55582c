-- name: server_facts
-- What a server is set to and has left, for whoever asks whether it is well.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS version_number,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes, pg_is_in_recovery() AS standby,
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS connections_max,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
    pg_database_size(current_database()) AS bytes, extract(epoch FROM clock_timestamp())::float8 AS now_s,
    (SELECT extract(day FROM now() - min(to_date(right(relname, 8), 'YYYYMMDD')))::integer FROM pg_class
     WHERE relname ~ '^report_log_p\d{8}$' AND pg_table_is_visible(oid)) AS raw_days

-- name: rights_missing
-- Tables of this schema which the user may not read or write.
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
    AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
ORDER BY relname

-- name: nodes_refusing
-- Nodes whose newest receipt refuses the target, each with its first reason.
SELECT node_id || ': ' || coalesce(problems[1], 'no reason') FROM (
    SELECT DISTINCT ON (node_id) node_id, outcome, problems FROM receipts ORDER BY node_id, id DESC
) AS newest WHERE outcome = 'refused' ORDER BY 1
