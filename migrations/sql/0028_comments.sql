-- What every view and every column of a reporting view means, for whoever meets them in a tool instead of on a page.
-- A name means the same wherever it stands, so most sentences have no view of their own.
COMMENT ON VIEW cost_by_service_hour IS
    'What each service, job and task cost in each hour, by three accountings, beside what it was asked and answered.';
COMMENT ON VIEW cost_by_project_day IS
    'What each project cost on each day (UTC). What idled and what nobody saw are rows of their own, so that the '
    'rows of a day sum to its bill.';
COMMENT ON VIEW idle_by_device_hour IS
    'The bill of each device and hour, and what of it was held by nobody or seen by nobody.';
COMMENT ON VIEW slo_by_service_hour IS 'How each service was asked and answered in each hour.';
COMMENT ON VIEW slo_by_service_minute IS 'How each service was asked and answered in each minute.';
COMMENT ON VIEW energy_by_device_hour IS
    'Energy, power and state of each device in each hour, as far as it was observed.';
COMMENT ON VIEW ledger_check IS 'Whether each accounting of an hour sums to its bill; the difference is always 0.';
COMMENT ON VIEW cost_focus IS
    'The ledger by hour, device and holder in the columns of FOCUS 1.2, charged by share; columns with x_ are '
    'Headroom''s own.';
COMMENT ON VIEW prediction_error_by_model_hour IS
    'How far predictions were from what was measured afterwards. Errors are (predicted - measured) / measured.';
COMMENT ON VIEW outcome_by_verdict_hour IS 'Measurements by whether they were learned from, or why not.';
COMMENT ON VIEW task_outcomes IS
    'Offline tasks whose document is there: their state, where they stood, and how well their pace was foreseen.';
COMMENT ON VIEW task_error_by_model IS 'Tasks by model and GPU type: deadlines kept, and how far predictions were off.';
COMMENT ON VIEW billable_devices IS
    'Devices with what their price depends on, those that were deleted included; read by the ledger only.';
COMMENT ON VIEW device_bills_hourly IS 'Bills by device and hour, closed or still open; what reporting views read.';
COMMENT ON VIEW ledger_hourly IS
    'The ledger by device, hour and holder, closed or still open; what reporting views read.';

DO $body$
DECLARE
    v_meaning record;
BEGIN
    FOR v_meaning IN
        SELECT c.relname, a.attname, m.sentence
        FROM (VALUES
            ('', 'hour', 'Start of the hour, UTC.'),
            ('', 'minute', 'Start of the minute, UTC.'),
            ('', 'day', 'The day, UTC.'),
            ('', 'project', 'The project that pays.'),
            ('cost_by_project_day', 'project', 'The project that pays; (idle) and (unobserved) stand for nobody.'),
            ('', 'service', 'The service, as project/name.'),
            ('cost_by_service_hour', 'service', 'The service, job or task, as project/name.'),
            ('', 'kind', 'What held the GPU: replica (of a service), job or task.'),
            ('', 'usd_memory', 'Cost by memory used, in parts of the device''s memory, US dollars.'),
            ('', 'usd_share', 'Cost by SM share held, US dollars.'),
            ('', 'usd_whole',
                'Cost of the whole GPU of each instant, split by share among those who hold any of it, US dollars.'),
            ('', 'usd_energy',
                'Cost of the energy, beside the price of the GPU and in none of the three accountings, US dollars.'),
            ('', 'held_h', 'Hours that replicas held devices.'),
            ('', 'share_gpu_h', 'GPU-hours by SM share.'),
            ('', 'memory_gib_h', 'GiB-hours of memory used.'),
            ('', 'memory_gib_h_reserved', 'GiB-hours of memory limits.'),
            ('', 'energy_kwh', 'Energy, kWh.'),
            ('', 'requests_offered', 'Requests at the edge; NULL without a gateway and for jobs and tasks.'),
            ('', 'requests_completed', 'Requests answered; NULL for jobs and tasks.'),
            ('', 'slo_attainment',
                '(completed - violated) / (completed + dropped + unrouted), 0 to 1; NULL without traffic.'),
            ('', 'device_uuid', 'The device.'),
            ('', 'node_id', 'The node that the device is in.'),
            ('', 'gpu_type', 'The type of the GPU.'),
            ('', 'region', 'The region of the node, which chooses the price row.'),
            ('', 'price_kind', 'How the GPU is paid: on_demand, reserved, spot or owned.'),
            ('', 'price_usd_per_h',
                'Price billed for the device, its part of a cut GPU accounted for, US dollars per hour.'),
            ('', 'priced', 'Whether a price row was found; without one the bill is 0.'),
            ('', 'billed_s', 'Seconds billed.'),
            ('', 'observed_s', 'Seconds in which the device''s node reported it.'),
            ('', 'usd', 'The bill, US dollars.'),
            ('', 'idle_usd_memory', 'Part of the bill for memory that nobody used, US dollars.'),
            ('', 'idle_usd_share', 'Part of the bill for SM share that nobody held, US dollars.'),
            ('', 'idle_usd_whole', 'Part of the bill for instants when nobody held the GPU, US dollars.'),
            ('', 'idle_s', 'Seconds in which nobody held the GPU.'),
            ('', 'idle_share_pct_mean', 'Mean SM share that nobody held, percent of the device.'),
            ('', 'unobserved_s', 'Seconds billed without telemetry.'),
            ('', 'unobserved_usd', 'Part of the bill for seconds without telemetry, US dollars.'),
            ('', 'idle_energy_kwh', 'Energy that no replica accounts for, kWh.'),
            ('', 'offered', 'Requests at the edge; NULL without a gateway.'),
            ('', 'unrouted', 'Requests that found no replica at the edge.'),
            ('', 'arrived', 'Requests that reached replicas.'),
            ('', 'completed', 'Requests answered.'),
            ('', 'violated', 'Requests answered later than promised.'),
            ('', 'dropped', 'Requests that replicas gave up.'),
            ('', 'replicas_mean', 'Mean number of replicas.'),
            ('slo_by_service_hour', 'share_pct_sm_mean',
                'Mean SM share of all replicas together, percent of a device.'),
            ('slo_by_service_minute', 'share_pct_sm_mean',
                'Mean SM share of all replicas together, percent of a device.'),
            ('energy_by_device_hour', 'share_pct_sm_mean', 'Mean SM share held, percent of the device.'),
            ('', 'memory_mib_used_mean', 'Mean memory used, MiB.'),
            ('', 'memory_mib_used_max', 'Most memory used, MiB.'),
            ('', 'queue_length_mean', 'Mean number of requests that wait.'),
            ('', 'latency_ms_p50', 'Median latency, ms: the mean of reports weighted by their answers, an estimate.'),
            ('', 'latency_ms_p95',
                '95th percentile of latency, ms: the mean of reports weighted by their answers, an estimate.'),
            ('', 'latency_ms_p99',
                '99th percentile of latency, ms: the mean of reports weighted by their answers, an estimate.'),
            ('', 'latency_ms_p99_max', '99th percentile of latency of the worst replica and report, ms.'),
            ('', 'energy_j', 'Energy, J.'),
            ('', 'power_w_mean', 'Mean power, W.'),
            ('', 'power_w_max', 'Highest power reported, W.'),
            ('', 'utilisation_pct_mean', 'Mean utilisation as the driver tells it, percent.'),
            ('', 'clock_mhz_sm_mean', 'Mean SM clock, MHz.'),
            ('', 'temperature_c_max', 'Highest temperature, degrees Celsius.'),
            ('', 'throttled_s', 'Seconds in which the driver throttled the clock.'),
            ('', 'unhealthy_s', 'Seconds in which the device was unhealthy.'),
            ('', 'accounting', 'memory, share, whole or energy.'),
            ('', 'bill_usd', 'Sum of the bills, US dollars.'),
            ('', 'ledger_usd', 'Sum of the ledger, US dollars.'),
            ('', 'difference_usd', 'Bill less ledger, US dollars: always 0.'),
            ('', 'model', 'The model.'),
            ('', 'verdict', 'admitted, or why the measurement was not learned from.'),
            ('', 'outcomes', 'Measurements: minutes of replicas.'),
            ('', 'executions', 'Batches executed.'),
            ('', 'admitted', 'Measurements that were learned from.'),
            ('', 'rejected', 'Measurements that were not learned from.'),
            ('', 'predicted', 'Measurements learned from for which there was a prediction.'),
            ('', 'error_pct_mean', 'Mean absolute error of predictions, percent.'),
            ('', 'bias_pct', 'Mean error of predictions, percent; positive: predicted too slow.'),
            ('', 'error_pct_rms', 'Root of the mean squared error of predictions, percent.'),
            ('', 'error_pct_max', 'Largest absolute error of a prediction, percent.'),
            ('', 'coverage_80_pct', 'Measurements within the interval predicted for 80 percent of them, percent.'),
            ('', 'coverage_95_pct', 'Measurements within the interval predicted for 95 percent of them, percent.'),
            ('', 'name', 'Name of the task within its project.'),
            ('', 'planner', 'The planner whose plan stood when the task ended, or stands now.'),
            ('', 'task_group', 'The tasks on the same device, this one included.'),
            ('', 'state', 'waiting, running, late (past its deadline, not done) or done.'),
            ('', 'submitted_at', 'When the document was made; the deadline counts from then.'),
            ('', 'begun_at', 'When work began; NULL before.'),
            ('', 'finished_at', 'When the last input was done; NULL before.'),
            ('', 'deadline_at', 'The deadline; NULL without one.'),
            ('', 'deadline_kept', 'Whether the deadline was kept; NULL while that is open and without a deadline.'),
            ('', 'waited_s', 'Seconds from submission to the beginning of work.'),
            ('', 'took_s', 'Seconds from submission to the end of work.'),
            ('', 'inputs_total', 'Inputs of the task.'),
            ('', 'inputs_done', 'Inputs done.'),
            ('', 'evictions', 'How often the task was made to leave a device.'),
            ('task_outcomes', 'device_uuid', 'The device where the task stood when it ended, or stands.'),
            ('task_outcomes', 'gpu_type', 'The type of that device.'),
            ('', 'replicas', 'Replicas of the task.'),
            ('', 'batch', 'Inputs in a batch.'),
            ('', 'share_pct_sm', 'SM share of a replica, percent of the device.'),
            ('', 'rate_rps_predicted', 'Inputs per second as planned.'),
            ('', 'latency_ms_predicted', 'Time of a batch as planned, ms.'),
            ('', 'latency_ms_measured', 'Mean time of a batch as measured, ms.'),
            ('', 'error_pct', '(predicted - measured) / measured of a batch''s time, percent.'),
            ('', 'tasks', 'Tasks.'),
            ('', 'finished', 'Tasks that are done.'),
            ('', 'deadlines_kept', 'Tasks that kept their deadline.'),
            ('', 'deadlines_missed', 'Tasks that missed their deadline.'),
            ('', 'measured', 'Tasks with an error: planned, and measured.'),
            ('', 'BilledCost', 'Cost by SM share held, US dollars.'),
            ('', 'EffectiveCost', 'The same as BilledCost.'),
            ('', 'ListCost', 'The same as BilledCost.'),
            ('', 'ContractedCost', 'The same as BilledCost.'),
            ('', 'BillingCurrency', 'Always USD.'),
            ('', 'ChargeCategory', 'Always Usage.'),
            ('', 'ChargeClass', 'Always NULL: nothing here corrects an earlier charge.'),
            ('', 'ChargeFrequency', 'Always Usage-Based.'),
            ('', 'ChargeDescription', 'Who held which GPU type, or that it idled or was not observed.'),
            ('', 'ChargePeriodStart', 'Start of the hour, UTC.'),
            ('', 'ChargePeriodEnd', 'End of the hour, UTC.'),
            ('', 'BillingPeriodStart', 'Start of the month, UTC.'),
            ('', 'BillingPeriodEnd', 'End of the month, UTC.'),
            ('', 'ConsumedQuantity', 'GPU-hours by SM share.'),
            ('', 'ConsumedUnit', 'Always GPU Hours.'),
            ('', 'PricingQuantity', 'GPU-hours by SM share.'),
            ('', 'PricingUnit', 'Always GPU Hours.'),
            ('', 'ListUnitPrice', 'Price of the device, US dollars per hour.'),
            ('', 'ContractedUnitPrice', 'Price of the device, US dollars per hour.'),
            ('', 'PricingCategory',
                'Dynamic for spot, Committed for reserved, Other for owned, Standard for on_demand.'),
            ('', 'ResourceId', 'The device.'),
            ('', 'ResourceName', 'The replica; the device where nobody held it.'),
            ('', 'ResourceType', 'Always GPU.'),
            ('', 'ServiceCategory', 'Always Compute.'),
            ('', 'ServiceSubcategory', 'Always Other (Compute).'),
            ('', 'ServiceName', 'Always GPU capacity.'),
            ('', 'SkuId', 'The type of the GPU.'),
            ('', 'SkuMeter', 'Always GPU Hours.'),
            ('', 'SkuPriceId', 'GPU type, price kind and region: the price row.'),
            ('', 'SkuPriceDetails', 'GPU type and price kind as an object.'),
            ('', 'RegionId', 'The region of the node.'),
            ('', 'RegionName', 'The region of the node.'),
            ('', 'SubAccountId', 'The project; NULL for what idled or was not observed.'),
            ('', 'SubAccountName', 'The project; NULL for what idled or was not observed.'),
            ('', 'SubAccountType', 'Project; NULL for what idled or was not observed.'),
            ('', 'BillingAccountId', 'Always headroom.'),
            ('', 'BillingAccountName', 'Always Headroom.'),
            ('', 'BillingAccountType', 'Always Cluster.'),
            ('', 'ProviderName', 'Always Headroom.'),
            ('', 'PublisherName', 'Always Headroom.'),
            ('', 'InvoiceIssuerName', 'Always Headroom.'),
            ('', 'Tags', 'Project, workload, model and kind as an object.'),
            ('', 'x_LedgerKind', 'replica, job, task, idle or unobserved.'),
            ('', 'x_Workload', 'The service, job or task; empty where nobody held the device.'),
            ('', 'x_NodeId', 'The node that the device is in.'),
            ('', 'x_CostByMemory', 'Cost by memory used, US dollars.'),
            ('', 'x_CostByWholeGpu', 'Cost of the whole GPU of each instant, split among its holders, US dollars.'),
            ('', 'x_EnergyCost', 'Cost of the energy, in none of the other costs, US dollars.'),
            ('', 'x_EnergyKwh', 'Energy, kWh.')
        ) AS m (view_name, column_name, sentence)
        JOIN pg_attribute a ON a.attname = m.column_name AND a.attnum > 0
        JOIN pg_class c ON c.oid = a.attrelid AND m.view_name IN ('', c.relname)
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'v'
            AND c.relname NOT IN ('billable_devices', 'device_bills_hourly', 'ledger_hourly')
        -- The sentence of a view of its own is written last, over the general one.
        ORDER BY m.view_name
    LOOP
        EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', v_meaning.relname, v_meaning.attname, v_meaning.sentence);
    END LOOP;
END
$body$;
