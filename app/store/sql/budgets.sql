-- name: budget_forecasts
-- Budgets with what this month (UTC) has cost them, and will have at its end at the rate of the last seven days. The hours
-- of both are read once, however many budgets there are.
WITH span AS (
    SELECT CAST(:now AS timestamptz) AS now, date_trunc('month', CAST(:now AS timestamptz), 'UTC') AS month,
        (date_trunc('month', CAST(:now AS timestamptz) AT TIME ZONE 'UTC') + INTERVAL '1 month') AT TIME ZONE 'UTC' AS next,
        greatest(date_trunc('hour', CAST(:now AS timestamptz) - INTERVAL '7 days', 'UTC'), least(
            (SELECT min(hour) FROM ledger_hours),
            (SELECT date_trunc('hour', min(minute), 'UTC') FROM ledger
                WHERE minute >= coalesce((SELECT at FROM accounting_marks WHERE name = 'closed_until'), '-infinity'))
        )) AS lately
), known AS (
    SELECT name AS budget, (spec ->> 'usd_per_month')::float8 AS usd_per_month, spec ->> 'project' AS project,
        spec #>> '{label,key}' AS label_key, spec #>> '{label,value}' AS label_value
    FROM budgets
), costs AS MATERIALIZED (
    SELECT kind, workload, project, sum(usd_share) FILTER (WHERE hour >= (SELECT month FROM span)) AS usd_month,
        sum(usd_share) FILTER (WHERE hour >= (SELECT lately FROM span)) AS usd_lately
    FROM ledger_hourly
    WHERE hour < :now AND hour >= least(date_trunc('month', CAST(:now AS timestamptz), 'UTC'),
        date_trunc('hour', CAST(:now AS timestamptz) - INTERVAL '7 days', 'UTC'))
    GROUP BY kind, workload, project
), spent AS (
    SELECT known.budget, coalesce(sum(cost.usd_month), 0)::float8 AS usd_spent,
        coalesce(sum(cost.usd_lately), 0)::float8 AS usd_lately
    FROM known
    LEFT JOIN LATERAL (
        SELECT usd_month, usd_lately FROM costs
        LEFT JOIN workload_labels AS own ON own.subject = costs.workload AND own.key = known.label_key
            AND own.kind = CASE costs.kind WHEN 'replica' THEN 'service' ELSE costs.kind END
        LEFT JOIN workload_labels AS shared
            ON shared.kind = 'project' AND shared.subject = costs.project AND shared.key = known.label_key
        WHERE (known.project IS NULL OR costs.project = known.project)
            AND (known.label_key IS NULL OR coalesce(own.value, shared.value) = known.label_value)
    ) AS cost ON true
    GROUP BY known.budget
), told AS (
    SELECT known.*, span.month, spent.usd_spent,
        coalesce(spent.usd_lately / greatest(1, extract(epoch FROM span.now - span.lately) / 3600)::float8, 0) AS usd_per_h,
        extract(epoch FROM span.next - span.now)::float8 / 3600 AS hours_left
    FROM known JOIN spent USING (budget) CROSS JOIN span
)
SELECT budget, project, label_key || '=' || label_value AS label, month, usd_per_month,
    usd_spent, usd_per_h, usd_spent + usd_per_h * hours_left AS usd_forecast,
    usd_spent + usd_per_h * hours_left > usd_per_month AS at_risk
FROM told ORDER BY budget

-- name: budgets_noted
-- Which budgets have such an event in this month (UTC) already.
SELECT DISTINCT subject FROM events
WHERE name = :event AND at >= date_trunc('month', CAST(:now AS timestamptz), 'UTC')
