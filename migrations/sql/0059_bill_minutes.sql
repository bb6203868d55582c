-- The bill: seconds billed in the minute times the price. The price row is the one that the planner reckons with: of
-- the price kind that the device's policy names, else its node's, in the node's region, else in `default`. A MIG slice
-- costs its share of the type's memory; its parent, when it is listed too, costs what no slice covers while both are
-- there, so a cut GPU costs no more than a whole one, and one that is cut within the minute all of itself until then.
-- No price row: the bill is 0 and list_usd_per_h stays NULL to say so. What a kWh costs is noted beside: the policy's
-- price of the hour (UTC) and of the carbon, times its PUE; where the policy does not say, what
-- `solvers.domain.policy` takes for granted. A minute billed before keeps its price, its energy's price and whether
-- the device was in time slices, unless told otherwise. Of a device that left and came back within a minute, or moved
-- in it, all seconds are billed as it is last.
CREATE OR REPLACE FUNCTION headroom_bill_minutes(p_from timestamptz, p_to timestamptz, p_reprice boolean)
RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    WITH known AS MATERIALIZED (
        SELECT d.uuid, d.node_id, d.gpu_type, d.live, d.billed_from,
            coalesce(d.billed_until, 'infinity') AS billed_until, p.policy, p.policy_spec,
            coalesce(d.node_spec ->> 'region', 'default') AS region,
            coalesce(p.policy_spec ->> 'price_kind', d.node_spec ->> 'price_kind', 'on_demand') AS price_kind,
            coalesce(d.type_spec -> 'prices', '[]') AS prices, (d.spec ->> 'memory_mib')::numeric AS memory_mib,
            d.spec #>> '{mig,parent}' AS parent,
            CASE WHEN d.spec #>> '{mig,parent}' IS NULL THEN 1
                 ELSE least(1, (d.spec ->> 'memory_mib')::numeric / (d.type_spec ->> 'memory_mib')::numeric)
                 END AS fraction,
            coalesce(told.mode, d.spec ->> 'mode', 'mps') = 'time_sliced' AS time_sliced
        FROM billable_devices d
        JOIN device_policies p ON p.uuid = d.uuid AND p.live = d.live AND p.billed_from = d.billed_from
        LEFT JOIN (
            SELECT device ->> 'uuid' AS uuid, min(device ->> 'mode') AS mode
            FROM node_targets CROSS JOIN LATERAL jsonb_array_elements(document -> 'devices') AS device
            GROUP BY 1) told ON told.uuid = d.uuid
        WHERE d.billed_from < p_to AND coalesce(d.billed_until, 'infinity') > greatest(p_from, d.billed_from)
    ),
    listed AS MATERIALIZED (
        SELECT k.*, (
            SELECT (price ->> 'usd_per_h')::numeric FROM jsonb_array_elements(k.prices) AS price
            WHERE price ->> 'kind' = k.price_kind AND coalesce(price ->> 'region', 'default') IN (k.region, 'default')
            ORDER BY coalesce(price ->> 'region', 'default') = k.region DESC LIMIT 1) AS list_usd_per_h,
            coalesce((k.policy_spec ->> 'energy_usd_per_kwh')::numeric, 0.12) AS usd_per_kwh_all_day,
            coalesce((k.policy_spec ->> 'carbon_g_per_kwh')::numeric, 0)
                * coalesce((k.policy_spec ->> 'carbon_usd_per_t')::numeric, 0) / 1000000 AS usd_per_kwh_carbon,
            coalesce((k.policy_spec ->> 'power_usage_effectiveness')::numeric, 1.3) AS usage_effectiveness
        FROM known k
    ),
    spans AS (
        SELECT m.minute, l.*, greatest(l.billed_from, m.minute) AS begun_at,
            least(l.billed_until, m.minute + INTERVAL '1 minute') AS until_at
        FROM generate_series(p_from, p_to - INTERVAL '1 minute', INTERVAL '1 minute') AS m (minute)
        JOIN listed l ON l.billed_from < m.minute + INTERVAL '1 minute' AND l.billed_until > m.minute
    ),
    joined AS (
        SELECT s.*, greatest(minute, until_at - sum(until_at - begun_at) OVER (PARTITION BY minute, uuid)) AS from_at
        FROM spans s
    ),
    billed AS MATERIALIZED (
        SELECT DISTINCT ON (minute, uuid) j.*, extract(epoch FROM until_at - from_at) AS seconds,
            round((coalesce((policy_spec -> 'energy_usd_per_kwh_by_hour'
                    ->> extract(hour FROM minute)::integer)::numeric, usd_per_kwh_all_day)
                + usd_per_kwh_carbon) * usage_effectiveness, 15) AS usd_per_kwh
        FROM joined j
        ORDER BY minute, uuid, live DESC, billed_from DESC
    ),
    sliced AS (
        SELECT whole.minute, whole.uuid AS parent, sum(part.fraction * extract(epoch FROM
            greatest(INTERVAL '0', least(whole.until_at, part.until_at) - greatest(whole.begun_at, part.begun_at))))
            AS seconds
        FROM spans whole JOIN spans part ON part.minute = whole.minute AND part.parent = whole.uuid
        GROUP BY whole.minute, whole.uuid
    ),
    rated AS (
        SELECT b.minute, b.from_at, b.until_at, b.uuid, b.node_id, b.gpu_type, b.memory_mib, b.seconds,
            CASE WHEN s.seconds IS NULL THEN b.fraction
                 ELSE greatest(0, b.seconds - s.seconds) / b.seconds END AS fraction,
            CASE WHEN kept THEN old.region ELSE b.region END AS region,
            CASE WHEN kept THEN old.price_kind ELSE b.price_kind END AS price_kind,
            CASE WHEN kept THEN old.list_usd_per_h ELSE b.list_usd_per_h END AS list_usd_per_h,
            -- Minutes that were first billed before energy had a price of its own have none to keep.
            CASE WHEN kept THEN coalesce(old.policy, b.policy) ELSE b.policy END AS policy,
            CASE WHEN kept THEN coalesce(old.usd_per_kwh, b.usd_per_kwh) ELSE b.usd_per_kwh END AS usd_per_kwh,
            CASE WHEN kept THEN coalesce(old.time_sliced, b.time_sliced) ELSE b.time_sliced END AS time_sliced
        FROM billed b
        LEFT JOIN sliced s ON s.minute = b.minute AND s.parent = b.uuid
        LEFT JOIN device_bills old ON old.minute = b.minute AND old.device_uuid = b.uuid
        CROSS JOIN LATERAL (SELECT old.minute IS NOT NULL AND NOT p_reprice AS kept) AS choice
    )
    INSERT INTO device_bills AS bill (minute, from_at, until_at, device_uuid, node_id, gpu_type, region, price_kind,
        list_usd_per_h, fraction, price_usd_per_h, memory_mib, seconds, usd, policy, usd_per_kwh, time_sliced)
    SELECT minute, from_at, until_at, uuid, node_id, gpu_type, region, price_kind, list_usd_per_h, round(fraction, 12),
        round(coalesce(list_usd_per_h, 0) * fraction, 12), memory_mib, seconds,
        round(round(coalesce(list_usd_per_h, 0) * fraction, 12) * seconds / 3600, 12),
        policy, usd_per_kwh, time_sliced
    FROM rated
    ON CONFLICT (minute, device_uuid) DO UPDATE SET from_at = excluded.from_at, until_at = excluded.until_at,
        node_id = excluded.node_id, gpu_type = excluded.gpu_type, region = excluded.region,
        price_kind = excluded.price_kind, list_usd_per_h = excluded.list_usd_per_h,
        fraction = excluded.fraction, price_usd_per_h = excluded.price_usd_per_h,
        memory_mib = excluded.memory_mib, seconds = excluded.seconds, usd = excluded.usd,
        policy = excluded.policy, usd_per_kwh = excluded.usd_per_kwh, time_sliced = excluded.time_sliced;
    GET DIAGNOSTICS v_rows = ROW_COUNT;

    DELETE FROM device_bills b USING billable_devices d
    WHERE b.minute >= p_from AND b.minute < p_to AND d.uuid = b.device_uuid AND NOT EXISTS (
        SELECT FROM billable_devices w WHERE w.uuid = b.device_uuid AND w.billed_from < b.minute + INTERVAL '1 minute'
            AND coalesce(w.billed_until, 'infinity') > greatest(b.minute, w.billed_from));
    RETURN v_rows;
END
$body$;
