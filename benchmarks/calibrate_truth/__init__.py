"""Fits the simulated world's coefficients to published measurements, and prints how far the committed ones are off."""
