"""Engine-neutral formulations with explicit bounds and units; it refuses to know which engine answers them."""
