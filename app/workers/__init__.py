"""What the planner process runs: loops, the lease, the child process for planners, housekeeping."""
