"""What we believe about latency, throughput, power and demand, never of how the simulated world really behaves."""
