-- name: written_up_to
-- Where the primary's log ends.
SELECT pg_current_wal_lsn()::text

-- name: is_standby
-- Whether this server replays what another one writes, and takes no writes itself.
SELECT pg_is_in_recovery()

-- name: replica_lag
-- How old a replica's picture is: nothing, once it has replayed what was written before it was asked. Null: it is none.
SELECT CASE WHEN pg_is_in_recovery() THEN
    CASE WHEN pg_last_wal_replay_lsn() >= CAST(:written AS pg_lsn) THEN 0.0
    ELSE coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8, 'Infinity') END
END
