"""The pinned solver libraries must coexist in one process whatever is imported first.

Their native parts have clashed before (one HiGHS inside OR-Tools, another beside it), and a clash shows as a failed
import or as a solver that calls itself unavailable. So every order of two is tried in a process of its own, and every
order of three in one of six with all four. Orders that begin alike share their beginning: a process forks before each
import and before anything is solved, so that nothing is loaded twice. The first of them has pandas, most of what CP-SAT
loads: it holds no solver. After the imports every library solves a problem of two variables: maximise x + 2y under
x + y <= 4, 0 <= x <= 3, 0 <= y <= 3, whose answer is 7 at (1, 3).
"""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

IMPORTS = {
    "cpsat": "from ortools.sat.python import cp_model",
    "pulp": "import pulp",
    "cvxpy": "import cvxpy",
    "highspy": "import highspy",
}

SOLVES = {
    "cpsat": """
def solve_cpsat():
    model = cp_model.CpModel()
    x, y = model.new_int_var(0, 3, "x"), model.new_int_var(0, 3, "y")
    model.add(x + y <= 4)
    model.maximize(x + 2 * y)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.value(x), solver.value(y)
""",
    "pulp": """
def solve_pulp():
    model = pulp.LpProblem("two", pulp.LpMaximize)
    x, y = pulp.LpVariable("x", 0, 3, cat="Integer"), pulp.LpVariable("y", 0, 3)
    model += x + 2 * y
    model += x + y <= 4
    engine = pulp.HiGHS(msg=False)
    assert engine.available(), "PuLP does not find HiGHS"
    assert pulp.LpStatus[model.solve(engine)] == "Optimal"
    return x.value(), y.value()
""",
    "cvxpy": """
def solve_cvxpy():
    x, y = cvxpy.Variable(integer=True), cvxpy.Variable()
    problem = cvxpy.Problem(cvxpy.Maximize(x + 2 * y), [x + y <= 4, x >= 0, x <= 3, y >= 0, y <= 3])
    assert "HIGHS" in cvxpy.installed_solvers(), "CVXPY does not find HiGHS"
    problem.solve(solver=cvxpy.HIGHS)
    assert problem.status == "optimal"
    return float(x.value), float(y.value)
""",
    "highspy": """
def solve_highspy():
    engine = highspy.Highs()
    engine.setOptionValue("output_flag", False)
    engine.addVar(0.0, 3.0)
    engine.addVar(0.0, 3.0)
    engine.changeColCost(0, -1.0)
    engine.changeColCost(1, -2.0)
    engine.addRow(-highspy.kHighsInf, 4.0, 2, [0, 1], [1.0, 1.0])
    engine.run()
    assert engine.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return tuple(engine.getSolution().col_value)
""",
}

PAIRS = list(itertools.permutations(IMPORTS, 2))
ALL = [
    ("cpsat", "pulp", "cvxpy", "highspy"),
    ("cpsat", "highspy", "cvxpy", "pulp"),
    ("pulp", "highspy", "cpsat", "cvxpy"),
    ("cvxpy", "pulp", "cpsat", "highspy"),
    ("highspy", "pulp", "cvxpy", "cpsat"),
    ("cvxpy", "highspy", "cpsat", "pulp"),
]
"""All four, six times: among them three libraries follow each other in every order."""


GROW = """
import os
import pandas

def grow(order):
    for name in IMPORTS:
        longer = (*order, name)
        if any(wanted[: len(longer)] == longer for wanted in ORDERS) and forked():
            exec(IMPORTS[name], globals())
            if longer in ORDERS and forked():
                solve(longer)
            grow(longer)
            os._exit(0)

def solve(order):
    for name in order:
        answer = globals()[f"solve_{name}"]()
        assert max(abs(a - b) for a, b in zip(answer, (1, 3))) < 1e-6, answer
    print("solved:", *order, flush=True)
    os._exit(0)

def forked():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return not child

grow(())
"""


@pytest.fixture(scope="module")
def run() -> subprocess.CompletedProcess[str]:
    """What all orders said: those that came to their end, first and last import alike, and why others did not."""
    program = "\n".join([f"IMPORTS={IMPORTS}\nORDERS={[*PAIRS, *ALL]}", *SOLVES.values(), GROW])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("order", [*PAIRS, *ALL], ids="-".join)
def test_the_libraries_import_and_solve_in_this_order(
    run: subprocess.CompletedProcess[str], order: tuple[str, ...]
) -> None:
    assert " ".join(("solved:", *order)) in run.stdout.splitlines(), run.stderr


def test_no_order_is_left_out() -> None:
    assert len(set(PAIRS)) == 12
    assert {three for order in ALL for three in itertools.combinations(order, 3)} == set(
        itertools.permutations(IMPORTS, 3)
    )
