"""How simulated hardware behaves and how it serves: the truth of the demo's devices, never visible to a planner."""
