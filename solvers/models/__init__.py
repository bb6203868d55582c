"""What we believe about latency, throughput, power and demand; it refuses to see how the simulated world really
behaves.
"""
