"""Engines by name, and nothing imported before it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from solvers.engines.base import create
from solvers.errors import EngineError

LAZY = """
import sys
import solvers.engines.base, solvers.engines.least_share
heavy = {"highspy", "ortools", "pulp", "cvxpy"} & set(sys.modules)
assert not heavy, heavy
print("light")
"""


def test_unknown_names_are_refused() -> None:
    with pytest.raises(EngineError, match="no engine"):
        create("gurobi")


def test_libraries_come_when_asked_for() -> None:
    run = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "light"
