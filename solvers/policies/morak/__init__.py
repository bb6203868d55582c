"""Morak: GPUs cut into virtual ones by the knee of latency over share, batches and clock left to the controller."""
