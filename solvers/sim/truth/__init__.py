"""How the simulated devices and models really behave."""
