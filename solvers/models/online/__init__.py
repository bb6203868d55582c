"""Learning from outcomes: what telemetry says, what is believed of it, and when belief is wrong."""
