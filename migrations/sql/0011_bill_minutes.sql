-- The bill: seconds billed in the minute times the price. A MIG slice costs its share of the type's memory; its parent,
-- when it is listed too, costs what no slice covers, so a cut GPU costs no more than a whole one. No price row: the
-- bill is 0 and list_usd_per_h stays NULL to say so. A minute billed before keeps its price unless told otherwise.
CREATE OR REPLACE FUNCTION headroom_bill_minutes(p_from timestamptz, p_to timestamptz, p_reprice boolean) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    WITH known AS MATERIALIZED (
        SELECT uuid, node_id, gpu_type, live, billed_from, coalesce(billed_until, 'infinity') AS billed_until,
            coalesce(node_spec ->> 'region', 'default') AS region,
            coalesce(node_spec ->> 'price_kind', 'on_demand') AS price_kind,
            coalesce(type_spec -> 'prices', '[]') AS prices, (spec ->> 'memory_mib')::numeric AS memory_mib,
            spec #>> '{mig,parent}' AS parent,
            CASE WHEN spec #>> '{mig,parent}' IS NULL THEN 1
                 ELSE least(1, (spec ->> 'memory_mib')::numeric / (type_spec ->> 'memory_mib')::numeric) END AS fraction
        FROM billable_devices
        WHERE billed_from < p_to AND coalesce(billed_until, 'infinity') > greatest(p_from, billed_from)
    ),
    listed AS MATERIALIZED (
        SELECT k.*, (
            SELECT (price ->> 'usd_per_h')::numeric FROM jsonb_array_elements(k.prices) AS price
            WHERE price ->> 'kind' = k.price_kind AND coalesce(price ->> 'region', 'default') IN (k.region, 'default')
            ORDER BY coalesce(price ->> 'region', 'default') = k.region DESC LIMIT 1) AS list_usd_per_h
        FROM known k
    ),
    billed AS MATERIALIZED (
        SELECT DISTINCT ON (m.minute, l.uuid) m.minute, l.*, greatest(l.billed_from, m.minute) AS from_at,
            least(l.billed_until, m.minute + INTERVAL '1 minute') AS until_at,
            extract(epoch FROM least(l.billed_until, m.minute + INTERVAL '1 minute')
                - greatest(l.billed_from, m.minute)) AS seconds
        FROM generate_series(p_from, p_to - INTERVAL '1 minute', INTERVAL '1 minute') AS m (minute)
        JOIN listed l ON l.billed_from < m.minute + INTERVAL '1 minute' AND l.billed_until > m.minute
        ORDER BY m.minute, l.uuid, l.live DESC, l.billed_from DESC
    ),
    sliced AS (
        SELECT minute, parent, sum(fraction * seconds) AS seconds
        FROM billed WHERE parent IS NOT NULL GROUP BY minute, parent
    ),
    rated AS (
        SELECT b.minute, b.from_at, b.until_at, b.uuid, b.node_id, b.gpu_type, b.memory_mib, b.seconds,
            CASE WHEN s.seconds IS NULL THEN b.fraction
                 ELSE greatest(0, b.seconds - s.seconds) / b.seconds END AS fraction,
            CASE WHEN kept THEN old.region ELSE b.region END AS region,
            CASE WHEN kept THEN old.price_kind ELSE b.price_kind END AS price_kind,
            CASE WHEN kept THEN old.list_usd_per_h ELSE b.list_usd_per_h END AS list_usd_per_h
        FROM billed b
        LEFT JOIN sliced s ON s.minute = b.minute AND s.parent = b.uuid
        LEFT JOIN device_bills old ON old.minute = b.minute AND old.device_uuid = b.uuid
        CROSS JOIN LATERAL (SELECT old.minute IS NOT NULL AND NOT p_reprice AS kept) AS choice
    )
    INSERT INTO device_bills AS bill (minute, from_at, until_at, device_uuid, node_id, gpu_type, region, price_kind,
        list_usd_per_h, fraction, price_usd_per_h, memory_mib, seconds, usd)
    SELECT minute, from_at, until_at, uuid, node_id, gpu_type, region, price_kind, list_usd_per_h, round(fraction, 12),
        round(coalesce(list_usd_per_h, 0) * fraction, 12), memory_mib, seconds,
        round(round(coalesce(list_usd_per_h, 0) * fraction, 12) * seconds / 3600, 12)
    FROM rated
    ON CONFLICT (minute, device_uuid) DO UPDATE SET from_at = excluded.from_at, until_at = excluded.until_at,
        node_id = excluded.node_id, gpu_type = excluded.gpu_type, region = excluded.region,
        price_kind = excluded.price_kind, list_usd_per_h = excluded.list_usd_per_h,
        fraction = excluded.fraction, price_usd_per_h = excluded.price_usd_per_h,
        memory_mib = excluded.memory_mib, seconds = excluded.seconds, usd = excluded.usd;
    GET DIAGNOSTICS v_rows = ROW_COUNT;

    DELETE FROM device_bills b USING billable_devices d
    WHERE b.minute >= p_from AND b.minute < p_to AND d.uuid = b.device_uuid AND NOT EXISTS (
        SELECT FROM billable_devices w WHERE w.uuid = b.device_uuid AND w.billed_from < b.minute + INTERVAL '1 minute'
            AND coalesce(w.billed_until, 'infinity') > greatest(b.minute, w.billed_from));
    RETURN v_rows;
END
$body$;
