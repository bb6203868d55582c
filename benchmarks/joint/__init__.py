"""How the joint optimiser's core does on the synthetic family, at the level of arrays."""
