"""The control plane's shell under a seeded scheduler of faults: the real application and store on a real PostgreSQL."""
