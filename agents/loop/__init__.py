"""The agent's loop: ask, apply, restart, sample, govern, report."""
