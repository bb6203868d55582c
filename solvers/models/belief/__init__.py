"""Our own belief: a physical shape, a learned residual, calibrated uncertainty, interference from pressures."""
