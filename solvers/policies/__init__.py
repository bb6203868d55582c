"""Five published systems, each in a folder with its planner and its models; found by name as a user's own are.

They do not import each other.
"""

from __future__ import annotations

SUITES = {
    "fm-ftrl": ("fm-ftrl", "fm-ftrl"),
    "inss": ("inss", "inss"),
    "inss-ni": ("inss", "none"),
    "mudi": ("mudi", "mudi"),
    "morak": ("morak", "morak"),
    "hetsev": ("static", "none"),
}
"""Suites of models that they bring."""
