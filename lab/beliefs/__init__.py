"""Models of performance that others published, to compare with."""

from __future__ import annotations

SUITES = {
    "mf": ("mf", "mf"),
    "rf": ("rf", "rf"),
    "constant": ("static", "constant"),
    "gpulet": ("static", "gpulet"),
    "igniter": ("igniter", "igniter"),
}
"""Suites of models that they bring."""
