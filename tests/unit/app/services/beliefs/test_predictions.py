"""What-if answers: order, percentiles, company, and where an answer says it comes from."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
import pytest

from app.errors import FieldsError
from app.services.beliefs.beliefs import Belief, Beliefs, Evidence, groups_of, samples_of, source_of
from app.services.beliefs.predictions import Neighbour, Prediction, PredictionQuery, Predictions
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import PairPoint, ProfilePoint
from solvers.errors import NotFoundError
from solvers.models.base import Facts, Origin, Quantity
from solvers.models.library import Library, LibraryEntry
from solvers.models.suite import Suite
from tests import builders

T4, V100 = (GpuTypeName(name) for name in ("t4", "v100"))
RESNET, BERT = (ModelName(name) for name in ("resnet50", "bert-base"))
QUERY = PredictionQuery(model=RESNET, gpu_type=T4, batch=4, share_pct_sm=40.0)
SLOWDOWN = 1.5


def latency_ms(batch: int, share: float) -> float:
    return 1 + batch * 100 / share


def points() -> list[ProfilePoint]:
    return [
        ProfilePoint(
            model=model,
            gpu_type=T4,
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=1590,
            latency_ms_mean=latency_ms(batch, share),
            latency_ms_p99=1.3 * latency_ms(batch, share),
            memory_mib=800.0 + batch,
            power_w=30.0,
        )
        for model in (RESNET, BERT)
        for batch in (1, 2, 4, 8)
        for share in (20, 40, 80)
    ]


def pairs() -> list[PairPoint]:
    return [
        PairPoint(
            gpu_type=T4,
            model_a=RESNET,
            batch_a=batch,
            share_pct_a=40.0,
            model_b=BERT,
            batch_b=2,
            share_pct_b=40.0,
            latency_ms_a=SLOWDOWN * latency_ms(batch, 40),
            latency_ms_b=SLOWDOWN * latency_ms(2, 40),
        )
        for batch in (1, 2, 4, 8)
    ]


@cache
def belief(name: str = "constant") -> Belief:
    facts = Facts(gpu_types={"t4": builders.gpu_type("t4")}, models={RESNET: builders.model(RESNET)})
    evidence = Evidence(facts=facts, samples=samples_of(points()), groups=groups_of(pairs()))
    suite = Suite.fresh(name, facts).fit(evidence.samples, evidence.groups if name == "constant" else None)
    return Belief(suite=suite, evidence=evidence)


class Fixed:
    """A belief that nothing changes."""

    def __init__(self, known: Belief | None = None) -> None:
        self.known = known

    def belief(self) -> Belief:
        return belief() if self.known is None else self.known


def answers(*queries: PredictionQuery) -> tuple[Prediction, ...]:
    return Predictions(cast("Beliefs", Fixed())).answer(queries).what


def mean(query: PredictionQuery) -> float:
    (answer,) = answers(query)
    assert answer.mean is not None
    return answer.mean


def test_answers_keep_the_order_of_mixed_questions() -> None:
    asked = [
        replace(QUERY, quantity=Quantity.MEMORY_MIB),
        QUERY,
        replace(QUERY, quantity=Quantity.POWER_W),
        replace(QUERY, batch=8),
        replace(QUERY, quantity=Quantity.MEMORY_MIB, batch=8),
    ]
    found = answers(*asked)
    assert [item.quantity for item in found] == [item.quantity for item in asked]
    expected = [804, latency_ms(4, 40), 30, latency_ms(8, 40), 808]
    assert [item.mean for item in found] == pytest.approx(expected, rel=0.02)
    assert all(item.support and item.origin == "measured" and item.distance == 0 for item in found)


def test_percentiles_lie_between_mean_and_p99_and_meet_both() -> None:
    alone = mean(QUERY)
    found = [mean(replace(QUERY, percentile=each)) for each in (50.0, 90.0, 95.0, 99.0, 99.9)]
    assert found == sorted(found)
    assert found[0] == pytest.approx(alone)
    assert found[3] == pytest.approx(mean(replace(QUERY, quantity=Quantity.LATENCY_MS_P99)))
    assert found[4] > found[3]


def test_neighbours_slow_down_and_take_throughput() -> None:
    beside = replace(QUERY, neighbours=(Neighbour(model=BERT, batch=2, share_pct_sm=40.0),))
    assert mean(beside) == pytest.approx(SLOWDOWN * mean(QUERY), rel=0.05)
    rate = replace(QUERY, quantity=Quantity.THROUGHPUT_RPS)
    assert mean(replace(beside, quantity=Quantity.THROUGHPUT_RPS)) == pytest.approx(mean(rate) / SLOWDOWN, rel=0.05)
    assert mean(replace(beside, quantity=Quantity.MEMORY_MIB)) == mean(replace(QUERY, quantity=Quantity.MEMORY_MIB))
    alone, crowded = answers(QUERY, beside)
    assert alone.std is not None
    assert crowded.std is not None
    assert crowded.std > alone.std
    assert crowded.source == f"{alone.source}; slowed by its neighbours as measured beside them"


def test_a_source_tells_the_replica_from_its_neighbours() -> None:
    beside = replace(QUERY, neighbours=(Neighbour(model=RESNET, batch=2, share_pct_sm=40.0),))
    (crowded,) = Predictions(cast("Beliefs", Fixed(belief("headroom")))).answer((beside,)).what
    assert crowded.origin == "scaled"
    assert (
        crowded.source
        == "fitted to 12 stored points of resnet50 on t4; slowed by its neighbours as their pressures say"
    )
    (memory,) = (
        Predictions(cast("Beliefs", Fixed(belief("headroom"))))
        .answer((replace(beside, quantity=Quantity.MEMORY_MIB),))
        .what
    )
    assert memory.source == "fitted to 12 stored points of resnet50 on t4"


def test_one_question_of_many_may_have_neighbours() -> None:
    beside = replace(QUERY, neighbours=(Neighbour(model=BERT, batch=2, share_pct_sm=40.0),))
    found = answers(QUERY, beside, QUERY)
    assert found[0] == found[2]
    assert found[1].mean == mean(beside)


def test_nothing_known_is_null() -> None:
    (answer,) = answers(replace(QUERY, model="stranger"))
    assert (answer.mean, answer.std, answer.origin, answer.distance, answer.support) == (None, None, None, None, False)
    assert answer.source == "nothing of the kind was ever seen; nothing is known of stranger"


def test_a_name_that_nobody_knows_is_told_where_there_is_a_number() -> None:
    predictions = Predictions(cast("Beliefs", Fixed(belief("headroom"))))
    beside = replace(QUERY, neighbours=(Neighbour(model="brt", batch=2, share_pct_sm=40.0),))
    (crowded,) = predictions.answer((beside,)).what
    assert crowded.source.endswith("as their pressures say; nothing is known of brt")
    (power,) = predictions.answer((replace(QUERY, model="resnt50", quantity=Quantity.POWER_W),)).what
    assert power.source.endswith("by its specification; nothing is known of resnt50")


def test_questions_have_bounds() -> None:
    with pytest.raises(FieldsError):
        answers()
    with pytest.raises(FieldsError):
        answers(*[QUERY] * 10_001)


def test_csv_is_answered_or_refused_by_place() -> None:
    predictions = Predictions(cast("Beliefs", Fixed()))
    text = predictions.answer_csv(b"model,gpu_type,batch,share_pct_sm\nresnet50,t4,4,40\n").what
    assert text.splitlines()[1].startswith("resnet50,t4,4,40,11,")
    with pytest.raises(FieldsError) as refused:
        predictions.answer_csv(b"model,gpu_type,batch,share_pct_sm\nresnet50,t4,0,40\nresnet50,t4,1\n")
    assert [fault.pointer for fault in refused.value.faults] == ["row:2/batch", "row:3"]
    with pytest.raises(FieldsError, match="there is no question in it"):
        predictions.answer_csv(b"model,gpu_type,batch,share_pct_sm\n")


def test_csv_tells_the_throughput_that_was_measured_as_a_single_question_does() -> None:
    told = samples_of([replace(point, throughput_rps=1500 * point.batch / point.latency_ms_mean) for point in points()])
    known = replace(belief(), suite=Suite.fresh("headroom", belief().evidence.facts).fit(told))
    predictions = Predictions(cast("Beliefs", Fixed(known)))
    (single,) = predictions.answer([replace(QUERY, quantity=Quantity.THROUGHPUT_RPS)]).what
    header, row = predictions.answer_csv(b"model,gpu_type,batch,share_pct_sm\nresnet50,t4,4,40\n").what.splitlines()
    found = float(dict(zip(header.split(","), row.split(","), strict=True))["throughput_rps"])
    assert found == pytest.approx(single.mean, rel=1e-5)
    assert found == pytest.approx(1500 * 4 / latency_ms(4, 40), rel=0.05)


def test_csv_says_where_answers_come_from_as_questions_one_by_one_do() -> None:
    predictions = Predictions(cast("Beliefs", Fixed()))
    names = (RESNET, ModelName("stranger"), BERT)
    asked = [replace(QUERY, model=name) for name in names]
    solo = ["model,gpu_type,batch,share_pct_sm", *(f"{name},t4,4,40" for name in names)]
    told = list(csv.DictReader(io.StringIO(predictions.answer_csv("\n".join(solo).encode()).what)))
    assert [row["source"] for row in told] == [item.source for item in predictions.answer(asked).what]
    other = Neighbour(model="stranger", batch=2, share_pct_sm=40.0)
    both = [replace(QUERY, neighbours=(other,)), replace(QUERY, model=ModelName("stranger"), batch=2)]
    both[1] = replace(both[1], neighbours=(QUERY.itself(),))
    pair = b"gpu_type,model_a,batch_a,share_pct_a,model_b,batch_b,share_pct_b\nt4,resnet50,4,40,stranger,2,40\n"
    (row,) = csv.DictReader(io.StringIO(predictions.answer_csv(pair).what))
    assert [row["source_a"], row["source_b"]] == [item.source for item in predictions.answer(both).what]


def test_proposals_are_about_known_names() -> None:
    predictions = Predictions(cast("Beliefs", Fixed()))
    found = predictions.next_points(RESNET, T4, 3).what
    assert len(found) == 3
    assert all(item.clock_mhz_sm in builders.gpu_type("t4").clocks_mhz_sm for item in found)
    for model, gpu_type in (("stranger", T4), (RESNET, "card")):
        with pytest.raises(NotFoundError):
            predictions.next_points(model, gpu_type, 3)


def test_sources_are_told_in_words() -> None:
    entry = LibraryEntry(
        model="resnet-50",
        gpu_type="v100",
        parameters=(1.0,),
        spread=(0.1,),
        error_pct_mean=3.14,
        points=9,
        source="a paper",
        licence="MIT",
    )
    library = Library(
        version="1", shape_version="1", population_mean=(1.0,), population_covariance=((1.0,),), entries=(entry,)
    )
    evidence = belief().evidence
    known = replace(belief(), evidence=replace(evidence, facts=replace(evidence.facts, library=library)))
    assert source_of(known, RESNET, T4, Origin.MEASURED) == "fitted to 12 stored points of resnet50 on t4"
    assert source_of(known, RESNET, V100, Origin.LIBRARY) == "built-in library: a paper (fit error 3.1 %)"
    assert source_of(known, RESNET, "a100", Origin.SCALED) == "scaled from resnet50 on t4, v100"
    assert source_of(known, RESNET, "a100", Origin.SCALED, Quantity.MEMORY_MIB) == "by the size of resnet50"
    assert source_of(known, RESNET, T4, Origin.SCALED, Quantity.POWER_W).startswith("what replicas usually add on t4")
    assert source_of(known, "stranger", T4, Origin.SCALED).endswith("nothing is known of stranger")
    assert np.isfinite(known.suite.predict(known.evidence.samples.queries).mean).all()
