"""The simulated world: the ports of the cycle over an event heap; its truth is never visible to a planner."""
