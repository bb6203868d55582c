"""Neighbours divide a device best: both ways agree, optimality holds by its own conditions, whole steps are exact."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.engines import convex
from solvers.engines.convex import Convex
from solvers.engines.shares import ShareProgram, hyperbola, least_share, shares, total, whole_shares
from solvers.errors import EngineError

PLACES = 4


@pytest.fixture(scope="module")
def solver() -> Convex:
    return Convex()


def drawn(devices: int, seed: int) -> ShareProgram:
    rng = np.random.default_rng(seed)
    shape = (devices, PLACES)
    members = rng.integers(1, PLACES + 1, devices)
    least = rng.uniform(0.02, 0.95, shape) / members[:, None]
    return ShareProgram(
        weight=rng.uniform(0, 200, shape) * (rng.random(shape) < 0.9),
        fixed_ms=rng.uniform(0, 4, shape),
        work_ms=rng.uniform(0.5, 30, shape),
        least=least,
        most=np.minimum(1.0, least + rng.uniform(0.0, 1.0, shape)),
        room=rng.uniform(0.96, 1.0, devices),
        present=np.arange(PLACES) < members[:, None],
    )


def one(weights: list[float], least: list[float], **changes: Any) -> ShareProgram:
    count = len(weights)
    program = ShareProgram(
        weight=np.array([weights], dtype=np.float64),
        fixed_ms=np.zeros((1, count)),
        work_ms=np.ones((1, count)),
        least=np.array([least], dtype=np.float64),
        most=np.ones((1, count)),
        room=np.ones(1),
        present=np.ones((1, count), dtype=np.bool_),
    )
    return replace(program, **changes)


def test_shares_go_by_the_root_of_the_pull() -> None:
    answer = shares(one([1, 4, 9], [0.01, 0.01, 0.01]))
    assert answer.share[0].tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert answer.total[0] == pytest.approx(6 + 12 + 18)
    assert answer.feasible.all()


def test_promises_come_first() -> None:
    answer = shares(one([1, 100], [0.6, 0.1]))
    assert answer.share[0].tolist() == pytest.approx([0.6, 0.4])


def test_what_nobody_wants_stays() -> None:
    answer = shares(one([1, 1], [0.1, 0.1], most=np.array([[0.3, 0.4]])))
    assert answer.share[0].tolist() == pytest.approx([0.3, 0.4])
    silent = shares(one([0, 5], [0.2, 0.1], most=np.array([[1.0, 0.5]])))
    assert silent.share[0].tolist() == pytest.approx([0.2, 0.5])


def test_devices_that_cannot_are_told_apart() -> None:
    two = ShareProgram(
        weight=np.ones((3, 2)),
        fixed_ms=np.zeros((3, 2)),
        work_ms=np.ones((3, 2)),
        least=np.array([[0.6, 0.5], [0.5, 0.5], [0.7, 0.1]]),
        most=np.array([[1.0, 1.0], [1.0, 1.0], [0.6, 1.0]]),
        room=np.ones(3),
        present=np.ones((3, 2), dtype=np.bool_),
    )
    for engine in (None, Convex()):
        answer = shares(two, engine)
        assert answer.feasible.tolist() == [False, True, False]
        assert np.isnan(answer.share[[0, 2]]).all()
        assert np.isnan(answer.total[[0, 2]]).all()
        assert answer.share[1].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("seed", range(3))
def test_the_solver_and_the_closed_form_agree(solver: Convex, seed: int) -> None:
    program = drawn(40, seed)
    closed, solved = shares(program), shares(program, solver)
    assert closed.feasible.sum() > 30
    there = program.present & closed.feasible[:, None]
    assert np.abs(solved.share - closed.share)[there].max() < 1e-4
    kept = closed.feasible & (closed.total > 0)
    assert solved.total[kept] == pytest.approx(closed.total[kept], rel=1e-4)


def test_blocks_agree_with_one_problem(monkeypatch: pytest.MonkeyPatch, solver: Convex) -> None:
    program = drawn(40, 5)
    whole = shares(program, solver)
    monkeypatch.setattr(convex, "BLOCK", 16)
    parts = shares(program, Convex())
    assert np.nanmax(np.abs(parts.share - whole.share)) < 1e-4


def test_the_solver_has_nothing_to_do_for_nobody() -> None:
    nobody = one([1, 2], [0.1, 0.1], present=np.zeros((1, 2), dtype=np.bool_))
    for engine in (None, Convex()):
        answer = shares(nobody, engine)
        assert answer.share.tolist() == [[0, 0]]
        assert answer.total.tolist() == [0]


@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_meets_the_conditions_of_an_optimum(seed: int) -> None:
    program = drawn(200, seed)
    answer = shares(program)
    assert answer.feasible.sum() > 150
    share = np.where(program.present, np.nan_to_num(answer.share), 0.0)
    assert (share.sum(axis=1) <= program.room + 1e-9).all()
    for device in np.flatnonzero(answer.feasible):
        members = np.flatnonzero(program.present[device] & (program.pull[device] > 0))
        slope = program.pull[device, members] / share[device, members] ** 2
        low = share[device, members] <= program.least[device, members] + 1e-9
        high = share[device, members] >= program.most[device, members] - 1e-9
        if share[device].sum() < program.room[device] - 1e-7:
            assert high.all()
            continue
        # Whoever could give pays no more for it than whoever could take would gain.
        givers, takers = slope[~low], slope[~high]
        if len(givers) and len(takers):
            assert givers.min() >= takers.max() * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("step_pct", [1, 10, 20])
def test_whole_steps_are_the_best_there_are(seed: int, step_pct: int) -> None:
    program = replace(drawn(5, seed), room=np.ones(5))
    answer = shares(program)
    steps, feasible = whole_shares(program, answer, step_pct)
    assert (steps % step_pct == 0).all()
    assert (steps.sum(axis=1) <= 100).all()
    assert not steps[~program.present].any()
    if step_pct == 1:
        # Hundred steps and four members are too many to try; three steps to either side of those found are not.
        tried = {device: [range(max(1, n - 3), n + 4) for n in steps[device]] for device in range(5)}
    else:
        tried = {device: [range(step_pct, 101, step_pct)] * PLACES for device in range(5)}
    for device in range(5):
        members = np.flatnonzero(program.present[device])
        best = np.inf
        for chosen in itertools.product(*(tried[device][place] for place in members)):
            part = np.array(chosen) / 100
            inside = (part >= program.least[device, members] - 1e-12) & (part <= program.most[device, members] + 1e-12)
            if sum(chosen) <= 100 and inside.all():
                best = min(best, float((program.pull[device, members] / part).sum()))
        assert feasible[device] == np.isfinite(best)
        if feasible[device]:
            found = float((program.pull[device, members] / (steps[device, members] / 100)).sum())
            assert found == pytest.approx(best, rel=1e-9)
        else:
            assert not steps[device].any()


def test_least_shares_come_from_promises() -> None:
    found = least_share(np.array([2.0, 2.0, 5.0]), np.array([4.0, 0.0, 1.0]), np.array([10.0, 10.0, 5.0]))
    assert found.tolist() == [0.5, 0.0, np.inf]


def test_a_hyperbola_is_found_again() -> None:
    share = np.array([0.1, 0.2, 0.5, 1.0])
    seen = np.array([3 + 2 / share, np.full(4, 7.0), 5 / share, [np.inf, np.inf, 9.0, 6.0], [1.0, 2.0, 3.0, 4.0]])
    fixed, work = hyperbola(share, seen)
    assert fixed[:4].tolist() == pytest.approx([3, 7, 0, 3])
    assert work[:4].tolist() == pytest.approx([2, 0, 5, 3])
    assert work[4] == 0
    assert fixed[4] == pytest.approx(2.5)


def test_a_hyperbola_does_not_fall_below_nothing() -> None:
    share = np.array([0.25, 0.5, 1.0])
    fixed, work = hyperbola(share, np.array([[9.0, 4.0, 0.5]]))
    assert fixed[0] >= 0
    assert work[0] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"weight": np.array([[np.nan, 1.0]])},
        {"weight": np.array([[-1.0, 1.0]])},
        {"work_ms": np.array([[1.0, -2.0]])},
        {"least": np.array([[0.0, 0.1]])},
        {"room": np.array([np.inf])},
        {"room": np.ones(2)},
        {"most": np.ones((1, 3))},
    ],
)
def test_nonsense_is_refused(change: dict[str, np.ndarray]) -> None:
    with pytest.raises(EngineError):
        shares(replace(one([1, 2], [0.1, 0.1]), **change))


def test_empty_places_may_hold_anything() -> None:
    program = one([1, 2], [0.1, 0.1], present=np.array([[True, False]]))
    noisy = replace(program, weight=np.array([[1.0, np.nan]]), least=np.array([[0.1, -3.0]]))
    assert shares(noisy).share.tolist() == shares(program).share.tolist() == [[1.0, 0.0]]
    assert total(program, shares(program).share).tolist() == [1.0]
