"""The simulated world: the ports of the cycle over an event heap; how its hardware behaves is `solvers.sim`'s."""
