-- name: budget_forecasts
-- Budgets with what this month (UTC) has cost them, and will have at its end at the rate of the last seven days.
WITH span AS (
    SELECT CAST(:now AS timestamptz) AS now, date_trunc('month', CAST(:now AS timestamptz), 'UTC') AS month,
        (date_trunc('month', CAST(:now AS timestamptz) AT TIME ZONE 'UTC') + INTERVAL '1 month') AT TIME ZONE 'UTC' AS next
), known AS (
    SELECT name AS budget, (spec ->> 'usd_per_month')::float8 AS usd_per_month, spec ->> 'project' AS project,
        spec #>> '{label,key}' AS label_key, spec #>> '{label,value}' AS label_value
    FROM budgets
), spent AS (
    SELECT known.budget,
        coalesce(sum(entry.usd_share) FILTER (WHERE entry.hour >= span.month), 0)::float8 AS usd_spent,
        coalesce(sum(entry.usd_share) FILTER (WHERE entry.hour >= span.now - INTERVAL '7 days'), 0)::float8 AS usd_lately,
        greatest(1, extract(epoch FROM span.now - greatest(span.now - INTERVAL '7 days',
            (SELECT min(hour) FROM ledger_hourly))) / 3600)::float8 AS hours_lately
    FROM known CROSS JOIN span
    LEFT JOIN LATERAL (
        SELECT hour, usd_share FROM ledger_hourly AS entry
        LEFT JOIN workload_labels AS own ON own.subject = entry.workload AND own.key = known.label_key
            AND own.kind = CASE entry.kind WHEN 'replica' THEN 'service' ELSE entry.kind END
        LEFT JOIN workload_labels AS shared
            ON shared.kind = 'project' AND shared.subject = entry.project AND shared.key = known.label_key
        WHERE hour >= least(span.month, span.now - INTERVAL '7 days') AND hour < span.now
            AND (known.project IS NULL OR entry.project = known.project)
            AND (known.label_key IS NULL OR coalesce(own.value, shared.value) = known.label_value)
    ) AS entry ON true
    GROUP BY known.budget, span.now
), told AS (
    SELECT known.*, span.month, spent.usd_spent, coalesce(spent.usd_lately / spent.hours_lately, 0) AS usd_per_h,
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
