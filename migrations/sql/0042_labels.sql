-- Labels of projects and workloads as the ledger groups by them: those that the document has now, or had when it was
-- deleted. So a month's costs keep their team when a service goes; a label that changes takes its past along.
CREATE OR REPLACE FUNCTION headroom_keep_labels() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    v_row jsonb := to_jsonb(NEW);
    v_subject text := coalesce((v_row ->> 'project') || '/', '') || (v_row ->> 'name');
BEGIN
    IF TG_OP = 'UPDATE' AND to_jsonb(OLD) #> '{spec,labels}' IS NOT DISTINCT FROM v_row #> '{spec,labels}' THEN
        RETURN NULL;
    END IF;
    DELETE FROM workload_labels WHERE kind = TG_ARGV[0] AND subject = v_subject;
    INSERT INTO workload_labels (kind, subject, key, value)
    SELECT TG_ARGV[0], v_subject, label ->> 'key', label ->> 'value'
    FROM jsonb_array_elements(coalesce(v_row #> '{spec,labels}', '[]')) AS label
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$body$;

CREATE OR REPLACE TRIGGER projects_labels AFTER INSERT OR UPDATE ON projects
    FOR EACH ROW EXECUTE FUNCTION headroom_keep_labels('project');
CREATE OR REPLACE TRIGGER services_labels AFTER INSERT OR UPDATE ON services
    FOR EACH ROW EXECUTE FUNCTION headroom_keep_labels('service');
CREATE OR REPLACE TRIGGER jobs_labels AFTER INSERT OR UPDATE ON jobs
    FOR EACH ROW EXECUTE FUNCTION headroom_keep_labels('job');
CREATE OR REPLACE TRIGGER tasks_labels AFTER INSERT OR UPDATE ON tasks
    FOR EACH ROW EXECUTE FUNCTION headroom_keep_labels('task');

-- What every label key's values cost by day: of a workload its own value, else its project's, else (none). The rows of a
-- day and a key sum to the day's bill.
CREATE OR REPLACE VIEW cost_by_label_day AS
    SELECT (entry.hour AT TIME ZONE 'UTC')::date AS day, known.key AS label_key,
        CASE WHEN entry.kind IN ('idle', 'unobserved') THEN '(' || entry.kind || ')'
            ELSE coalesce(own.value, shared.value, '(none)') END AS label_value,
        sum(entry.usd_memory) AS usd_memory, sum(entry.usd_share) AS usd_share, sum(entry.usd_whole) AS usd_whole,
        sum(entry.usd_energy) AS usd_energy
    FROM ledger_hourly AS entry
    CROSS JOIN (SELECT DISTINCT key FROM workload_labels) AS known
    LEFT JOIN workload_labels AS own ON own.subject = entry.workload AND own.key = known.key
        AND own.kind = CASE entry.kind WHEN 'replica' THEN 'service' ELSE entry.kind END
    LEFT JOIN workload_labels AS shared
        ON shared.kind = 'project' AND shared.subject = entry.project AND shared.key = known.key
    GROUP BY 1, 2, 3;

COMMENT ON VIEW cost_by_label_day IS
    'What each value of each label cost on each day (UTC), by three accountings; the rows of a day and a key sum to the '
    'day''s bill.';
COMMENT ON COLUMN cost_by_label_day.day IS 'The day, UTC.';
COMMENT ON COLUMN cost_by_label_day.label_key IS 'The key of a label that any workload or project has or had.';
COMMENT ON COLUMN cost_by_label_day.label_value IS
    'Its value: of the workload, else of its project; (none), (idle) and (unobserved) stand for nobody.';
COMMENT ON COLUMN cost_by_label_day.usd_memory IS
    'Cost by memory used, and of the whole device for a whole share outside time slices, US dollars.';
COMMENT ON COLUMN cost_by_label_day.usd_share IS 'Cost by SM share held, US dollars.';
COMMENT ON COLUMN cost_by_label_day.usd_whole IS
    'Cost of the whole GPU of each instant, split by share among those who hold any of it, US dollars.';
COMMENT ON COLUMN cost_by_label_day.usd_energy IS
    'Cost of the energy, beside the price of the GPU and in none of the three accountings, US dollars.';
