"""What one body of evidence has that another lacks, and when there is nothing new to learn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.services.beliefs.beliefs import Evidence, groups_of, samples_of
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import PairPoint, ProfilePoint
from solvers.models.base import Facts
from tests import builders

T4 = GpuTypeName("t4")
RESNET, BERT = (ModelName(name) for name in ("resnet50", "bert-base"))


def point(batch: int, latency_ms: float = 5.0, model: ModelName = RESNET) -> ProfilePoint:
    return ProfilePoint(
        model=model, gpu_type=T4, batch=batch, share_pct_sm=50, clock_mhz_sm=1590, latency_ms_mean=latency_ms
    )


def pair(batch: int, latency_ms: float | None = 9.0) -> PairPoint:
    return PairPoint(
        gpu_type=T4, model_a=RESNET, batch_a=batch, share_pct_a=50, latency_ms_a=7.0,
        model_b=BERT, batch_b=2, share_pct_b=50, latency_ms_b=latency_ms,
    )  # fmt: skip


FACTS = Facts(gpu_types={"t4": builders.gpu_type("t4")}, models={"resnet50": builders.model("resnet50")})


def evidence(points: list[ProfilePoint], pairs: list[PairPoint], facts: Facts = FACTS) -> Evidence:
    return Evidence(facts=facts, samples=samples_of(points), groups=groups_of(pairs))


KNOWN = evidence([point(1), point(2), point(4)], [pair(1), pair(2)])


def test_rows_are_points_and_pairs() -> None:
    assert (len(KNOWN), len(KNOWN.nothing())) == (5, 0)
    assert KNOWN.points_of("resnet50", "t4") == 3
    assert KNOWN.points_of("resnet50", "a100") == KNOWN.points_of("bert-base", "t4") == 0


def test_new_and_changed_measurements_are_beyond_what_is_known() -> None:
    newer = evidence([point(1), point(2, 6.0), point(8), point(4, model=BERT)], [pair(2, None), pair(1), pair(16)])
    found = newer.beyond(KNOWN)
    queries = found.samples.queries
    assert [queries.models[index] for index in queries.model] == ["resnet50", "resnet50", "bert-base"]
    assert queries.batch.tolist() == [2, 8, 4]
    assert found.samples.latency_ms.tolist() == [6, 5, 5]
    assert found.groups.groups.members.batch.tolist() == [2, 2, 16, 2]
    assert found.groups.groups.group.tolist() == [0, 0, 1, 1]
    assert len(KNOWN.beyond(KNOWN)) == 0
    assert len(KNOWN.beyond(KNOWN.nothing())) == len(KNOWN)
    assert len(evidence([], []).beyond(KNOWN)) == 0


def test_evidence_about_some_models_has_their_points_and_pairs() -> None:
    whole = evidence([point(1), point(2, model=BERT), point(4)], [pair(1), pair(2)])
    mine = whole.about({("bert-base", "t4"), ("resnet50", "a100")})
    assert mine.samples.queries.batch.tolist() == [2]
    assert len(mine.groups.groups) == 4, "bert-base is part of every pair"
    assert len(whole.about({("bert-base", "a100")})) == 0


def test_evidence_adds_up() -> None:
    both = KNOWN.joined(evidence([point(8, model=BERT)], [pair(16)]))
    assert (len(both), both.points_of("bert-base", "t4")) == (len(KNOWN) + 2, 1)
    assert both.groups.groups.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(both.beyond(KNOWN)) == 2
    assert both.joined(KNOWN.nothing()).digest() == KNOWN.nothing().joined(both).digest() == both.digest()


def facts(**models: float) -> Facts:
    """Models by their size in millions of parameters."""
    made = {name: replace(builders.model(name), parameters_million=size) for name, size in models.items()}
    return replace(FACTS, models={**FACTS.models, **made})


@pytest.mark.parametrize(
    ("newer", "same"),
    [
        (KNOWN, True),
        (evidence([point(4), point(1), point(2)], [pair(2), pair(1)]), True),
        (replace(KNOWN, facts=facts(stranger=7.0)), True),
        (replace(KNOWN, facts=facts(resnet50=7.0)), False),
        (replace(KNOWN, facts=facts(**{"bert-base": 7.0})), False),
        (replace(KNOWN, facts=replace(FACTS, gpu_types={})), False),
        (evidence([point(1), point(2)], [pair(1), pair(2)]), False),
        (evidence([point(1), point(2), point(4, 6.0)], [pair(1), pair(2)]), False),
        (evidence([point(1), point(2), point(4)], [pair(1), pair(2, 8.0)]), False),
    ],
)
def test_there_is_nothing_to_learn_where_neither_measurements_nor_their_models_changed(
    newer: Evidence, same: bool
) -> None:
    assert (newer.digest() == KNOWN.digest()) is same
