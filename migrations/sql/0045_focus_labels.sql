-- The ledger in the column ids of FOCUS 1.2, as before, with labels among its tags: a workload's own, else its project's.
-- What the ledger itself knows (project, workload, model, kind) stands whatever a label of that key says.
CREATE OR REPLACE VIEW cost_focus AS
    WITH labelled AS (
        SELECT kind AS of_kind, subject AS of_subject, jsonb_object_agg(key, value) AS labels
        FROM workload_labels GROUP BY 1, 2
    )
    SELECT
        usd_share AS "BilledCost", usd_share AS "EffectiveCost", usd_share AS "ListCost", usd_share AS "ContractedCost",
        'USD'::text AS "BillingCurrency", 'Usage'::text AS "ChargeCategory", NULL::text AS "ChargeClass",
        'Usage-Based'::text AS "ChargeFrequency",
        CASE kind WHEN 'idle' THEN 'Idle remainder of ' || gpu_type
            WHEN 'unobserved' THEN 'Time without telemetry on ' || gpu_type
            ELSE workload || ' on ' || gpu_type END AS "ChargeDescription",
        hour AS "ChargePeriodStart", hour + INTERVAL '1 hour' AS "ChargePeriodEnd",
        date_trunc('month', hour, 'UTC') AS "BillingPeriodStart",
        (date_trunc('month', hour AT TIME ZONE 'UTC') + INTERVAL '1 month') AT TIME ZONE 'UTC' AS "BillingPeriodEnd",
        share_pct_sm_seconds / 360000 AS "ConsumedQuantity", 'GPU Hours'::text AS "ConsumedUnit",
        share_pct_sm_seconds / 360000 AS "PricingQuantity", 'GPU Hours'::text AS "PricingUnit",
        price_usd_per_h AS "ListUnitPrice", price_usd_per_h AS "ContractedUnitPrice",
        CASE price_kind WHEN 'spot' THEN 'Dynamic' WHEN 'reserved' THEN 'Committed' WHEN 'owned' THEN 'Other'
            ELSE 'Standard' END AS "PricingCategory",
        device_uuid AS "ResourceId", coalesce(nullif(subject, ''), device_uuid) AS "ResourceName",
        'GPU'::text AS "ResourceType",
        'Compute'::text AS "ServiceCategory", 'Other (Compute)'::text AS "ServiceSubcategory",
        'GPU capacity'::text AS "ServiceName",
        gpu_type AS "SkuId", 'GPU Hours'::text AS "SkuMeter",
        gpu_type || '/' || price_kind || '/' || region AS "SkuPriceId",
        jsonb_build_object('GpuType', gpu_type, 'x_PriceKind', price_kind) AS "SkuPriceDetails",
        region AS "RegionId", region AS "RegionName",
        nullif(project, '') AS "SubAccountId", nullif(project, '') AS "SubAccountName",
        CASE WHEN project <> '' THEN 'Project' END AS "SubAccountType", 'headroom'::text AS "BillingAccountId",
        'Headroom'::text AS "BillingAccountName", 'Cluster'::text AS "BillingAccountType",
        'Headroom'::text AS "ProviderName", 'Headroom'::text AS "PublisherName",
        'Headroom'::text AS "InvoiceIssuerName",
        coalesce(shared.labels, '{}') || coalesce(own.labels, '{}')
            || jsonb_strip_nulls(jsonb_build_object('project', nullif(project, ''), 'workload', nullif(workload, ''),
                'model', nullif(model, ''), 'kind', kind)) AS "Tags",
        kind AS "x_LedgerKind", workload AS "x_Workload", node_id AS "x_NodeId", usd_memory AS "x_CostByMemory",
        usd_whole AS "x_CostByWholeGpu", usd_energy AS "x_EnergyCost", energy_j / 3600000 AS "x_EnergyKwh"
    FROM ledger_hourly
    LEFT JOIN labelled AS own ON own.of_subject = workload
        AND own.of_kind = CASE kind WHEN 'replica' THEN 'service' ELSE kind END
    LEFT JOIN labelled AS shared ON shared.of_kind = 'project' AND shared.of_subject = project;

COMMENT ON COLUMN cost_focus."Tags" IS
    'Labels of the workload, else of its project; and project, workload, model and kind, which no label replaces.';
