-- How good predictions were. Errors are (predicted - measured) / measured of outcomes that were learned from, before
-- they were; counts of none are 0.
CREATE OR REPLACE VIEW prediction_error_by_model_hour AS
    SELECT hour, model, gpu_type, sum(outcomes)::bigint AS outcomes,
        coalesce(sum(outcomes) FILTER (WHERE verdict = 'admitted')::bigint, 0) AS admitted,
        coalesce(sum(outcomes) FILTER (WHERE verdict <> 'admitted')::bigint, 0) AS rejected,
        coalesce(sum(predicted) FILTER (WHERE verdict = 'admitted')::bigint, 0) AS predicted,
        100 * sum(error_abs_sum) FILTER (WHERE verdict = 'admitted')
            / nullif(sum(predicted) FILTER (WHERE verdict = 'admitted'), 0) AS error_pct_mean,
        100 * sum(error_sum) FILTER (WHERE verdict = 'admitted')
            / nullif(sum(predicted) FILTER (WHERE verdict = 'admitted'), 0) AS bias_pct,
        100 * sqrt(sum(error_square_sum) FILTER (WHERE verdict = 'admitted')
            / nullif(sum(predicted) FILTER (WHERE verdict = 'admitted'), 0)) AS error_pct_rms,
        100 * max(error_abs_max) FILTER (WHERE verdict = 'admitted' AND predicted > 0) AS error_pct_max,
        100.0 * sum(inside_80) FILTER (WHERE verdict = 'admitted')
            / nullif(sum(predicted) FILTER (WHERE verdict = 'admitted'), 0) AS coverage_80_pct,
        100.0 * sum(inside_95) FILTER (WHERE verdict = 'admitted')
            / nullif(sum(predicted) FILTER (WHERE verdict = 'admitted'), 0) AS coverage_95_pct
    FROM outcome_hours GROUP BY hour, model, gpu_type;
