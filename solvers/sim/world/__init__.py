"""The simulated world that plans are carried out in."""
