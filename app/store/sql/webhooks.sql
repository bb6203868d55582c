-- name: alarms_standing
-- What should worry somebody now: nodes that went silent, services below their objective over the last minutes, a plan
-- of somebody else than who was asked, plans that wait for approval.
WITH served AS (
    SELECT workload, sum(completed) AS completed, sum(violated) AS violated, sum(dropped) AS dropped
    FROM service_samples
    WHERE received_at > now() - make_interval(secs => :window_s)
    GROUP BY workload
), offered AS (
    SELECT service, sum(unrouted) AS unrouted FROM rate_samples
    WHERE received_at > now() - make_interval(secs => :window_s) GROUP BY service
), kept AS (
    SELECT project, name, coalesce((spec #>> '{slo,percentile}')::float8, 99) / 100 AS objective,
           coalesce(completed, 0) + coalesce(dropped, 0) + coalesce(unrouted, 0) AS requests,
           coalesce(completed, 0) - coalesce(violated, 0) AS good
    FROM services
    LEFT JOIN served ON served.workload = project || '/' || name
    LEFT JOIN offered ON offered.service = project || '/' || name
    WHERE spec ->> 'mode' <> 'off'
), newest AS (
    SELECT id, answered FROM cycles WHERE state = 'closed' AND answered IS NOT NULL AND lane <> 'shadow'
    ORDER BY started_at DESC LIMIT 1
)
SELECT 'node.lost' AS name, 'nodes/' || node_id AS subject, NULL AS project,
       jsonb_build_object('silent_s', round(extract(epoch FROM now() - last_report_at))) AS facts
FROM node_states WHERE revoked_at IS NULL AND last_report_at < now() - make_interval(secs => :lost_s)
    AND (NOT :returning OR EXISTS (SELECT FROM alarms WHERE name = 'node.lost' AND subject = 'nodes/' || node_id))
UNION ALL
SELECT 'slo.at_risk', 'services/' || project || '/' || name, project,
       jsonb_build_object('attainment', round((good / requests)::numeric, 4), 'objective', objective, 'window_s', :window_s)
FROM kept WHERE requests > 0 AND good < objective * requests
UNION ALL
SELECT 'planner.stood_in', 'planners/' || (answered ->> 'asked'), NULL,
       jsonb_build_object('cycle', id, 'planner', answered -> 'planner', 'failures', answered -> 'failures')
FROM newest WHERE answered -> 'failures' <> '[]' OR answered ->> 'planner' IS DISTINCT FROM answered ->> 'asked'
UNION ALL
SELECT 'plan.awaits_approval', 'plans/' || id, NULL,
       jsonb_build_object('lane', lane, 'cost_usd_per_h', cost_usd_per_h, 'added_usd_per_h', added_usd_per_h, 'created_at', created_at)
FROM plans WHERE state = 'awaiting_approval' AND (expires_at IS NULL OR expires_at > now())

-- name: alarms_end
-- Forgets alarms that have not stood for a while, and tells which; `gone` where what they were about is there no more.
DELETE FROM alarms WHERE seen_at < now() - make_interval(secs => :calm_s)
RETURNING name, subject, project,
    CASE name WHEN 'slo.at_risk' THEN NOT EXISTS (
        SELECT FROM services WHERE 'services/' || services.project || '/' || services.name = subject AND spec ->> 'mode' <> 'off')
    WHEN 'node.lost' THEN NOT EXISTS (
        SELECT FROM node_states WHERE 'nodes/' || node_id = subject AND revoked_at IS NULL)
    ELSE false END AS gone

-- name: alarms_keep
-- Notes that an alarm stands; answers whether it is new.
INSERT INTO alarms (name, subject, project) VALUES (:name, :subject, :project)
ON CONFLICT (name, subject) DO UPDATE SET seen_at = now() RETURNING began_at = now()

-- name: deliveries_enqueue
-- Every new event for every webhook that wants it, once. Transactions commit in another order than they begin: a
-- minute is looked at twice. Events from before a webhook was made are not for it.
WITH mark AS (SELECT seen_until FROM webhook_marks WHERE name = 'events' FOR UPDATE)
INSERT INTO webhook_deliveries (webhook, event_id)
SELECT hook.name, event.id FROM webhooks AS hook JOIN events AS event
    ON event.at > greatest(hook.created_at, (SELECT seen_until FROM mark) - INTERVAL '1 minute')
WHERE (hook.spec ->> 'enabled')::boolean
  AND (hook.spec ->> 'project' IS NULL OR event.project = hook.spec ->> 'project')
  AND EXISTS (SELECT FROM jsonb_array_elements_text(hook.spec -> 'events') AS wanted
              WHERE event.name = wanted OR (right(wanted, 2) = '.*' AND starts_with(event.name, left(wanted, -1))))
  AND NOT EXISTS (SELECT FROM webhook_deliveries AS known WHERE known.webhook = hook.name AND known.event_id = event.id)
ORDER BY event.id
ON CONFLICT (webhook, event_id) DO NOTHING

-- name: deliveries_mark
-- Remembers up to where events were looked at.
UPDATE webhook_marks SET seen_until = now() WHERE name = 'events'

-- name: deliveries_bound
-- Lets the oldest go where a webhook has too many waiting.
UPDATE webhook_deliveries SET state = 'dropped', ended_at = now() WHERE id IN (
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY webhook ORDER BY id DESC) AS place
                    FROM webhook_deliveries WHERE state = 'waiting') AS line
    WHERE place > :most)

-- name: deliveries_due
-- Webhooks whose oldest waiting delivery may be tried now, those first that were tried the least.
SELECT webhook FROM (SELECT DISTINCT ON (webhook) webhook, next_at, attempts FROM webhook_deliveries
                     WHERE state = 'waiting' ORDER BY webhook, id) AS line
JOIN webhooks ON webhooks.name = webhook
WHERE next_at <= now() AND (spec ->> 'enabled')::boolean
ORDER BY attempts, next_at

-- name: deliveries_claim
-- Takes the oldest waiting delivery of a webhook: nobody else tries it for a while, also if this process dies.
WITH line AS (
    SELECT id FROM webhook_deliveries WHERE webhook = :webhook AND state = 'waiting' ORDER BY id LIMIT 1
), taken AS (
    UPDATE webhook_deliveries SET attempts = attempts + 1, next_at = now() + make_interval(secs => :hold_s)
    WHERE id = (SELECT delivery.id FROM webhook_deliveries AS delivery JOIN line USING (id)
                WHERE next_at <= now() FOR UPDATE OF delivery SKIP LOCKED) AND state = 'waiting'
    RETURNING *
)
SELECT taken.id, taken.attempts, hook.spec, event.id AS event_id, event.at, event.name, event.actor, event.subject,
       event.project, event.facts
FROM taken JOIN webhooks AS hook ON hook.name = taken.webhook JOIN events AS event ON event.id = taken.event_id

-- name: deliveries_settle
-- What came of an attempt, unless another one was made meanwhile.
UPDATE webhook_deliveries
SET state = :state, status = :status, error = :error, next_at = now() + make_interval(secs => :pause_s),
    ended_at = CASE WHEN :state <> 'waiting' THEN now() END
WHERE id = :id AND attempts = :attempts AND state = 'waiting'

-- name: deliveries_forget
-- Deletes what ended long ago.
DELETE FROM webhook_deliveries WHERE ended_at < now() - make_interval(days => :days) RETURNING id
