-- name: spending_span
-- Of which time the rate of spending is: the last seven days, or since the ledger began (to the minute, where minutes are kept),
-- up to what was accounted for.
WITH kept AS (
    SELECT coalesce(min(minute), 'infinity') AS minute FROM ledger
), span AS (
    SELECT date_trunc('hour', CAST(:now AS timestamptz) - INTERVAL '7 days', 'UTC') AS start,
        least(:now, (SELECT at FROM accounting_marks WHERE name = 'accounted_until')) AS until,
        least(nullif(kept.minute, 'infinity'),
            (SELECT min(hour) FROM ledger_hours WHERE hour <= kept.minute - INTERVAL '1 hour')) AS begun
    FROM kept
)
SELECT start, until, greatest(1, extract(epoch FROM until - greatest(start, begun)) / 60)::float8 / 60 AS hours FROM span

-- name: budget_forecasts
-- Budgets with what this month (UTC) has cost them, and will have at its end at the rate of a span's hours. The hours of both
-- are read once, however many budgets there are.
WITH span AS (
    SELECT CAST(:start AS timestamptz) AS start, date_trunc('month', CAST(:now AS timestamptz), 'UTC') AS month,
        (date_trunc('month', CAST(:now AS timestamptz) AT TIME ZONE 'UTC') + INTERVAL '1 month') AT TIME ZONE 'UTC' AS next
), known AS (
    SELECT name AS budget, (spec ->> 'usd_per_month')::float8 AS usd_per_month, spec ->> 'project' AS project,
        spec #>> '{label,key}' AS label_key, spec #>> '{label,value}' AS label_value
    FROM budgets
), costs AS MATERIALIZED (
    SELECT kind, workload, project, sum(usd_share) FILTER (WHERE hour >= (SELECT month FROM span)) AS usd_month,
        sum(usd_share) FILTER (WHERE hour >= (SELECT start FROM span)) AS usd_lately
    FROM ledger_hourly
    WHERE hour < :now AND hour >= least(date_trunc('month', CAST(:now AS timestamptz), 'UTC'), :start)
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
        spent.usd_lately / CAST(:hours AS float8) AS usd_per_h,
        extract(epoch FROM span.next - CAST(:until AS timestamptz))::float8 / 3600 AS hours_left
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
