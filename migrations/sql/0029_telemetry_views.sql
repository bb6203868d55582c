-- SLOs by service, energy by device.
CREATE OR REPLACE VIEW slo_by_service_hour AS SELECT * FROM service_hours;

CREATE OR REPLACE VIEW slo_by_service_minute AS SELECT * FROM service_minutes;

CREATE OR REPLACE VIEW energy_by_device_hour AS
    SELECT d.hour, d.device_uuid, d.node_id, b.gpu_type, b.region, d.observed_s,
        d.energy_j, d.energy_j / 3600000 AS energy_kwh, b.usd_energy,
        d.power_w_mean, d.power_w_max, d.utilisation_pct_mean, d.share_pct_sm_mean,
        d.memory_mib_used_mean, d.memory_mib_used_max, d.clock_mhz_sm_mean, d.temperature_c_max,
        d.throttled_s, d.unhealthy_s, b.policy, b.usd_per_kwh
    FROM device_hours d LEFT JOIN device_bills_hourly b ON b.hour = d.hour AND b.device_uuid = d.device_uuid;

COMMENT ON COLUMN energy_by_device_hour.policy IS
    'The policy that decides on the device, by whose prices its energy is billed.';

COMMENT ON COLUMN energy_by_device_hour.usd_per_kwh IS
    'Price of a kWh drawn: of the hour and of its carbon, times the PUE, US dollars; NULL where it was not noted yet.';
