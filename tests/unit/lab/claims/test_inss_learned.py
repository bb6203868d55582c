"""Claims on InSS' learned actor: their judges see what is late, poor or slow, and measure a real decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.claims.base import Claim, ClaimStatus, Effort
from lab.claims.inss import learned as room
from lab.learning.inss.evaluating import Score

SCORE = Score(
    actor=9.6,
    actor_places=9.7,
    programme=9.0,
    bound=10.0,
    actor_violated=0.0,
    programme_violated=0.0,
    actor_rps=1.0,
    programme_rps=1.0,
    seconds=1,
)
TIMES = room.DecisionTimes(batches=9.0, actor=19.0, programme=900.0, models=8, gpus=4)


def claim(number: str) -> Claim:
    return next(each for each in room.CLAIMS if each.id == number)


def curve(rises: int, episodes: int = 1500) -> list[float]:
    """From -50 to 10, there at an episode, with noise."""
    drawn = np.random.default_rng(0).normal(scale=0.2, size=episodes)
    return list(np.minimum(np.linspace(-50.0, -50.0 + 60.0 * episodes / rises, episodes), 10.0) + drawn)


def test_when_a_curve_stays_near_its_end_is_found() -> None:
    there, end, first = room.reached(curve(400))
    assert there == pytest.approx(10.0, abs=0.1)
    assert end == pytest.approx(10.0, abs=0.1)
    assert first is not None
    assert 380 < first < 460
    there, _, first = room.reached(curve(1200))
    assert there < 0
    assert first is not None
    assert first > 1150


@pytest.mark.parametrize(
    ("rises", "episodes", "score", "words"),
    [
        (400, 1500, SCORE, ""),
        (1200, 1500, SCORE, "seed 1 reaches 95 %"),
        (
            400,
            1500,
            replace(SCORE, actor=9.4),
            "94.0 % of the most there is; with its places and the best division of units it would be 97.0 %",
        ),
        (400, 850, SCORE, "trained for 850 episodes only"),
    ],
)
def test_what_is_not_reached_is_told(
    rises: int, episodes: int, score: Score, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_curves", lambda _: {"1": curve(rises, episodes), "2": curve(300), "3": curve(300)})
    monkeypatch.setattr(room, "_score", lambda *_: score)
    found = claim("AC-INS-11").judge(Effort(seeds=1))
    assert found.status is (ClaimStatus.NOT_REPRODUCED if words else ClaimStatus.PASS)
    assert words in found.note
    assert "programme's placements 9.00" in found.measured


def test_fewer_seeds_than_asked_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_curves", lambda _: {"1": curve(300)})
    monkeypatch.setattr(room, "_score", lambda *_: SCORE)
    found = claim("AC-INS-11").judge(Effort(seeds=1))
    assert found.status is ClaimStatus.NOT_REPRODUCED
    assert found.note == "trained with 1 of 3 seeds"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (TIMES, ""),
        (replace(TIMES, batches=11.0), "batches takes 11.0 ms"),
        (replace(TIMES, actor=21.0), "actor takes 21.0 ms"),
        (replace(TIMES, programme=1001.0), "ILP takes 1001.0 ms"),
    ],
)
def test_what_is_slow_is_told(seen: room.DecisionTimes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "picture", lambda: None)
    monkeypatch.setattr(room, "times", lambda _: seen)
    found = claim("AC-INS-12").judge(Effort())
    assert found.status is (ClaimStatus.NOT_REPRODUCED if words else ClaimStatus.PASS)
    assert words in found.note


def test_a_running_worlds_picture_is_measured_and_placed_by_the_shipped_actor() -> None:
    seen = room.times(room.picture())
    assert (seen.models, seen.gpus) == (8, 4)
    assert min(seen.batches, seen.actor, seen.programme) > 0


def test_the_shipped_curves_and_actor_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SECONDS", 3)
    found = claim("AC-INS-11").judge(Effort(seeds=1))
    assert found.status in (ClaimStatus.PASS, ClaimStatus.NOT_REPRODUCED)
    assert "95 % from" in found.measured
    assert "most there is" in found.measured
