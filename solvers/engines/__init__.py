"""Solver libraries behind one interface: programmes in, statuses, values, bounds and duals out."""
