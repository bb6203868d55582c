"""No native status is left without a meaning, and what only one library does wrong is caught for that one."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from typing import Any

import highspy
import numpy as np
import pulp
import pytest
from ortools.sat.python import cp_model

from solvers.engines import cbc, cpsat, highs
from solvers.engines.base import EngineStatus, Limits, Program, ProgrammeRows
from solvers.engines.cpsat import scaled
from solvers.errors import EngineError
from tests.unit.solvers.engines import exhaustive
from tests.unit.solvers.engines.programmes import INF, hard, program


def test_every_status_of_highs_has_a_meaning() -> None:
    native = set(highspy.HighsModelStatus.__members__.values())
    assert len(native) > 15
    assert set(highs.STATUSES) == native


def test_every_status_of_cp_sat_has_a_meaning() -> None:
    native = {cp_model.UNKNOWN, cp_model.MODEL_INVALID, cp_model.FEASIBLE, cp_model.INFEASIBLE, cp_model.OPTIMAL}
    assert set(cpsat.STATUSES) == native
    assert len(native) == 5


def test_every_status_of_pulp_has_a_meaning() -> None:
    assert set(cbc.STATUSES) == set(pulp.LpStatus)
    assert len(pulp.LpStatus) == 5


def test_pulp_calls_a_limit_optimal_and_we_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    read = cbc._read

    def listen(asked: Program, problem: pulp.LpProblem, *rest: Any) -> object:
        said.append((problem.status, problem.sol_status))
        return read(asked, problem, *rest)

    monkeypatch.setattr(cbc, "_read", listen)
    asked, _ = hard()
    answer = cbc.Cbc().solve(asked, Limits(work=1))
    assert said == [(pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible)], "the trap is gone: simplify"
    assert answer.status is EngineStatus.FEASIBLE
    assert "stopped on node" in answer.note
    assert np.isfinite(answer.bound)
    assert answer.bound < answer.objective


def test_a_gap_is_not_proof_of_more_than_the_gap() -> None:
    asked, _ = hard()
    answer = cbc.Cbc().solve(asked, Limits(time_s=20.0, gap=0.05))
    assert answer.status is EngineStatus.OPTIMAL
    assert 0 < answer.gap <= 0.05


def test_cbc_is_not_asked_for_a_single_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would now and then wait for ten seconds for nothing."""
    asked: list[int | None] = []
    make = pulp.COIN_CMD
    monkeypatch.setattr(pulp, "COIN_CMD", lambda **options: asked.append(options["threads"]) or make(**options))
    for threads in (1, 2):
        assert cbc.Cbc().solve(hard(count=8)[0], Limits(time_s=20.0, threads=threads)).status is EngineStatus.OPTIMAL
    assert asked == [None, 2]


def test_a_missing_cbc_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", "/nowhere/cbc")
    with pytest.raises(EngineError, match="does not run"):
        cbc.Cbc().solve(program([1], [(1, [1], 2)]), Limits())


def test_decimals_are_scaled_exactly() -> None:
    found = scaled(np.array([0.125, -2.5, 3.0]), np.array([10.0, 1.0, 4.0]))
    assert (found.coefficients.tolist(), found.scale, found.error) == ([125, -2500, 3000], 1000.0, 0.0)
    awkward = scaled(np.array([1 / 3, np.pi]), np.array([100.0, 100.0]))
    assert 0 < awkward.error < 1e-9
    assert awkward.coefficients[1] / awkward.scale == pytest.approx(np.pi, abs=1e-12)


def test_scaling_errors_are_stated_and_never_raise_the_bound() -> None:
    asked = program([1 / 3, np.pi, np.e], [(1 + np.sqrt(2), [np.sqrt(2), 1, 1 / 7], INF)], upper=1000.0)
    found, truth = cpsat.CpSat().solve(asked, Limits()), highs.Highs().solve(asked, Limits())
    assert found.status is truth.status is EngineStatus.OPTIMAL
    assert found.objective == pytest.approx(truth.objective)
    assert found.bound <= found.objective
    assert "error" in found.note


def test_a_search_cut_off_before_any_bound_claims_only_the_box() -> None:
    asked = program([1, 1], [(3, [1, 1], INF)], lower=-7.0, upper=9.0)
    answer = cpsat.CpSat().solve(asked, Limits(time_s=0.0))
    assert answer.status is EngineStatus.NO_SOLUTION
    assert answer.bound <= 3


def test_columns_that_only_rows_keep_finite_will_do() -> None:
    asked = program([-1, -1], [(-INF, [2, 3], 12), (-INF, [1, 0], 4)])
    for engine in (cpsat.CpSat(), exhaustive.Exhaustive()):
        answer = engine.solve(asked, Limits())
        assert answer.status is EngineStatus.OPTIMAL
        assert answer.objective == -5


def test_too_many_combinations_are_refused() -> None:
    answer = exhaustive.Exhaustive().solve(program([1] * 3, [(5, [1, 1, 1], INF)], upper=100.0), Limits())
    assert answer.status is EngineStatus.FAILED
    assert str(exhaustive.COMBINATIONS_MAX) in answer.note


def test_rounding_in_scaled_rows_is_no_violation() -> None:
    """0.1 + 0.2 <= 0.3 holds for everybody but binary fractions."""
    asked = program([-1, -1], [(-INF, [0.1, 0.2], 0.3)], upper=1.0)
    for engine in (cpsat.CpSat(), exhaustive.Exhaustive(), highs.Highs(), cbc.Cbc()):
        assert engine.solve(asked, Limits()).objective == -2


def _far_scales() -> Program:
    """Sites that open for what three customers ask, with a room a million times as large as that."""
    drawn, sites, customers, room = np.random.default_rng(32), 4, 3, 1e6
    rows = ProgrammeRows()
    opened = rows.add_columns(drawn.uniform(10.0, 100.0, sites), np.ones(sites))
    sent = rows.add_columns(drawn.uniform(1.0, 10.0, sites * customers), np.array(INF), integer=False)
    asked = drawn.uniform(0.01, 50.0, customers)
    site, customer = np.divmod(np.arange(sites * customers), customers)
    rows.enter(rows.add_rows(asked, asked)[customer], sent, 1.0)
    within = rows.add_rows(np.full(sites, -INF), np.zeros(sites))
    rows.enter(within[site], sent, 1.0)
    rows.enter(within, opened, -room)
    return rows.program()


def test_highs_prints_what_its_options_forbid_and_we_do_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Amid what a command writes for programs to read."""
    flush = ctypes.CDLL(None).fflush
    assert highs.Highs().solve(_far_scales(), Limits(time_s=20.0)).status is EngineStatus.OPTIMAL
    flush(None)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(highs, "_QUIET", nullcontext())
    highs.Highs().solve(_far_scales(), Limits(time_s=20.0))
    flush(None)
    assert "tmpSolver.run();" in capfd.readouterr().out, "the trap is gone: simplify"


def test_others_print_while_highs_solves_and_after(capfd: pytest.CaptureFixture[str]) -> None:
    """Python at any time, C from when the last of those that solve is done."""
    library = ctypes.CDLL(None)
    with highs._QUIET:
        with highs._QUIET:
            pass
        library.puts(b"lost")
        sys.stdout.write("Python speaks\n")
    library.puts(b"C speaks")
    library.fflush(None)
    assert capfd.readouterr().out == "Python speaks\nC speaks\n"
