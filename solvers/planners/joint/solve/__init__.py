"""Column generation, dives and local search from a `JointProblem` to a `Layout`; `solve.solve` is the door."""
