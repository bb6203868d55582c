"""OLTunes' trigger and its tamer form."""

from __future__ import annotations

import pytest

from solvers.errors import FieldError
from solvers.models.online.monitor import Trigger, relative_error


def run(errors: list[float], trigger: Trigger) -> list[bool]:
    window: tuple[float, ...] = ()
    answers = []
    for error in errors:
        window, due = trigger.after(window, error)
        answers.append(due)
    assert len(window) <= trigger.window
    return answers


def test_the_papers_form_asks_after_every_task() -> None:
    paper = Trigger(window=1, least=1, part=1.0)
    assert run([0.25, 0.26, -0.3, 0.1], paper) == [False, True, True, False]


def test_a_part_of_the_newest_must_miss() -> None:
    trigger = Trigger(theta=0.25, window=20, least=10, part=0.5)
    assert not any(run([0.4, 0.1, 0.1] * 20, trigger))
    answers = run([0.1] * 20 + [0.4] * 10, trigger)
    assert answers.index(True) == 29
    assert run([0.4] * 10, trigger).index(True) == 9


def test_errors_are_relative_to_what_was_measured() -> None:
    assert relative_error(15.0, 10.0) == 0.5
    assert relative_error(5.0, 10.0) == -0.5


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"window": 0}, {"least": 21}, {"part": 1.5}])
def test_senseless_triggers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(FieldError):
        Trigger(**wrong)  # type: ignore[arg-type]
