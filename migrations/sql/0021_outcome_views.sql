-- How good predictions were. Errors are (predicted - measured) / measured of outcomes that were learned from, before
-- they were.
CREATE OR REPLACE VIEW prediction_error_by_model_hour AS
    SELECT hour, model, gpu_type, sum(outcomes)::bigint AS outcomes,
        sum(outcomes) FILTER (WHERE verdict = 'admitted')::bigint AS admitted,
        sum(outcomes) FILTER (WHERE verdict <> 'admitted')::bigint AS rejected,
        sum(predicted) FILTER (WHERE verdict = 'admitted')::bigint AS predicted,
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

CREATE OR REPLACE VIEW outcome_by_verdict_hour AS
    SELECT hour, model, gpu_type, verdict, outcomes, executions FROM outcome_hours;
