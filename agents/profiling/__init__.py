"""Measures a workload's process on a real device, point by point, and hands what it measured to the control plane."""
