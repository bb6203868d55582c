"""Problems to measure the optimiser on: a synthetic family drawn from a seed, and what other systems were tried on."""
