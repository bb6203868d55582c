"""Rounds: turns that add up to parts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lab.gavel.rounds import Entrant, GavelRound, JobPlace
from solvers.domain.ids import ModelName, WorkloadId

ALONE = JobPlace(kind="v100")


def entrant(job: str, parts: Mapping[JobPlace, float], model: str = "resnet50") -> Entrant:
    return Entrant(job=WorkloadId(job), model=ModelName(model), part=parts, speed=dict.fromkeys(parts, 1.0))


def held_over(entrants: list[Entrant], devices: int, rounds: int, *, packed: bool = False) -> dict[str, float]:
    """Part of the rounds that each job was on a device in, when every round is given its due."""
    given: dict[WorkloadId, dict[JobPlace, float]] = {}
    models = {item.job: item.model for item in entrants}
    held = dict.fromkeys((item.job for item in entrants), 0)
    for _ in range(rounds):
        chosen = GavelRound(entrants=entrants, room={"v100": devices}, given=given)
        chosen.choose()
        if packed:
            chosen.join()
        for crew in chosen.crews:
            for job in crew.jobs:
                other = [models[each] for each in crew.jobs if each != job]
                place = JobPlace(kind=crew.kind, beside=str(other[0])) if other else JobPlace(kind=crew.kind)
                mine = given.setdefault(job, {})
                mine[place] = mine.get(place, 0.0) + 1.0
                held[job] += 1
        for item in entrants:
            waited = given.setdefault(item.job, {})
            if item.job not in chosen.busy:
                nowhere = JobPlace(kind="nowhere")
                waited[nowhere] = waited.get(nowhere, 0.0) + 1.0
    return {str(job): count / rounds for job, count in held.items()}


def test_turns_add_up_to_the_parts() -> None:
    entrants = [entrant("a", {ALONE: 1.0}), entrant("b", {ALONE: 0.5}), entrant("c", {ALONE: 0.5})]
    held = held_over(entrants, devices=2, rounds=200)
    assert held == {
        "a": pytest.approx(1.0, abs=0.02),
        "b": pytest.approx(0.5, abs=0.02),
        "c": pytest.approx(0.5, abs=0.02),
    }


def test_who_stands_stays_until_the_round_is_over() -> None:
    entrants = [entrant("a", {ALONE: 0.1}), entrant("b", {ALONE: 0.9})]
    chosen = GavelRound(entrants=entrants, room={"v100": 1}, given={})
    chosen.keep((WorkloadId("a"),), "v100")
    chosen.choose()
    assert chosen.busy == {"a"}


def test_couples_are_matched_by_their_priority() -> None:
    with_bert, with_resnet = JobPlace(kind="v100", beside="bert"), JobPlace(kind="v100", beside="resnet50")
    entrants = [
        entrant("hungry", {with_bert: 0.5}),
        entrant("fed", {with_bert: 0.5}),
        entrant("text", {with_resnet: 1.0}, model="bert"),
    ]
    given = {WorkloadId("fed"): {with_bert: 10.0}}
    chosen = GavelRound(entrants=entrants, room={"v100": 1}, given=given)
    chosen.choose()
    assert [crew.jobs for crew in chosen.crews] == [("text", "hungry")]


def test_who_waits_joins_only_where_two_do_more_than_one() -> None:
    beside = JobPlace(kind="v100", beside="resnet50")
    for speed, jobs in ((0.6, 2), (0.4, 1)):
        entrants = [
            Entrant(
                job=WorkloadId(name),
                model=ModelName("resnet50"),
                part={ALONE: 0.5},
                speed={ALONE: 1.0, beside: speed},
            )
            for name in ("a", "b")
        ]
        chosen = GavelRound(entrants=entrants, room={"v100": 1}, given={})
        chosen.choose()
        chosen.join()
        assert len(chosen.busy) == jobs
