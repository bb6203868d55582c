"""The pure core: immutable data in, immutable data out; it refuses clocks, hidden randomness, I/O and logging."""
