"""Training what planners learn; needs PyTorch."""
