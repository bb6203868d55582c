"""Answers to what-if questions: any quantity at any configuration, alone or beside neighbours, with its uncertainty and
where it comes from; and which measurements would tell most.

Questions become columns and back; every number is the suite's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import NormalDist
from typing import Annotated, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.errors import Fault, FieldsError
from app.records import record, record_of
from app.services.beliefs.beliefs import Belief, Beliefs, Progress, known_keys, source_of, unknown_words
from app.services.profiles.forms import Answers, Sheet, SheetError, answers_to, groups_of, keys_of, read_sheet, written
from solvers.domain.arrays import Floats
from solvers.domain.profile import BATCH_MAX, CLOCK_MHZ_MAX, CLOCK_MHZ_MIN, SHARE_PCT_MIN
from solvers.domain.value import TEXT, value, within
from solvers.errors import FieldError, NotFoundError
from solvers.models.base import Answer, Groups, Origin, Quantity, Queries
from solvers.models.belief import design

QUERIES_MAX = 10_000
ROWS_MAX = 100_000
NEIGHBOURS_MAX = 15
FAULTS_MAX = 50
PERCENTILE_MIN, PERCENTILE_MAX = 50.0, 99.9
_LATENCIES = (Quantity.LATENCY_MS, Quantity.LATENCY_MS_P99)

T = TypeVar("T")


@value
class Neighbour:
    """Another replica on the same GPU."""

    model: Annotated[str, TEXT]
    batch: Annotated[int, within(1, BATCH_MAX)]
    share_pct_sm: Annotated[float, within(SHARE_PCT_MIN, 100)]


@value
class PredictionQuery:
    """One question. Without a clock it is about the highest one; without a percentile about the mean."""

    model: str
    gpu_type: Annotated[str, TEXT]
    batch: int
    share_pct_sm: float
    clock_mhz_sm: Annotated[float | None, within(CLOCK_MHZ_MIN, CLOCK_MHZ_MAX)] = None
    neighbours: tuple[Neighbour, ...] = ()
    quantity: Quantity = Quantity.LATENCY_MS
    percentile: Annotated[float | None, within(PERCENTILE_MIN, PERCENTILE_MAX)] = None

    def __post_init__(self) -> None:
        self.itself()
        if len(self.neighbours) > NEIGHBOURS_MAX:
            raise FieldError("neighbours", f"a GPU has {NEIGHBOURS_MAX} neighbours at most here")
        if self.percentile is not None and self.quantity is not Quantity.LATENCY_MS:
            raise FieldError("percentile", "only latency_ms has percentiles")

    def about(self) -> set[tuple[str, str]]:
        return {(each.model, self.gpu_type) for each in (self.itself(), *self.neighbours)}

    def itself(self) -> Neighbour:
        """The replica in question, as its neighbours see it."""
        return Neighbour(model=self.model, batch=self.batch, share_pct_sm=self.share_pct_sm)


@value
class Prediction:
    """One answer. Nulls: nothing of the kind was ever seen.

    The next measurement should lie within mean plus or minus 1.96 std 95 times in a hundred. `distance` is 0 at a
    measured configuration and about 1 one usual grid step away; `support` is true inside what was measured.
    """

    quantity: Quantity
    mean: float | None
    std: float | None
    origin: str | None
    support: bool
    distance: float | None
    source: str


@value
class NextPoint:
    """A configuration worth measuring. `std_pct` is how unsure the belief is of its latency before any of them is."""

    model: str
    gpu_type: str
    batch: int
    share_pct_sm: int
    clock_mhz_sm: int
    std_pct: float


@record
class NextPoints:
    """What to measure next, the most useful first."""

    items: tuple[NextPoint, ...]


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """Answers, and how far the belief they come from has come with what is stored."""

    what: T
    progress: Progress


class Predictions:
    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs

    def answer(self, queries: Sequence[PredictionQuery]) -> Told[tuple[Prediction, ...]]:
        """One answer for each question. Raises FieldsError when there are too many or a quantity has no model."""
        if not 1 <= len(queries) <= QUERIES_MAX:
            raise FieldsError.of("", f"ask 1 to {QUERIES_MAX} questions at once")
        belief = self._beliefs.belief().about(set().union(*(query.about() for query in queries)))
        return Told(_Asked(belief, queries).answers(), belief.progress)

    def answer_csv(self, body: bytes) -> Told[str]:
        """The rows with their answers behind them. Raises FieldsError naming every bad cell, or for no row."""
        sheet = questions_of(body)
        if not len(sheet):
            raise FieldsError.of("", "there is no question in it")
        belief = self._beliefs.belief().about(keys_of(sheet))
        answers = answers_to(sheet, belief.suite)
        return Told(written(sheet, {**answers, **_sources_of(sheet, answers, belief)}), belief.progress)

    def next_points(
        self, model: str, gpu_type: str, budget: int, *, own_clock: bool = False
    ) -> Told[tuple[NextPoint, ...]]:
        """What to measure next of a model on a GPU type, the most useful first; at its highest clock alone where nobody
        may set another. Raises NotFoundError when neither documents nor the library know one of the two.
        """
        belief = self._beliefs.belief().about({(model, gpu_type)})
        facts = belief.evidence.facts
        if gpu_type not in facts.gpu_types:
            raise NotFoundError(f"no GPU type {gpu_type}", gpu_type=gpu_type)
        if model not in facts.models:
            raise NotFoundError(f"no model {model}", model=model)
        highest = facts.gpu_types[gpu_type].clock_mhz_sm_max
        among = design.candidates_of(model, gpu_type, facts)
        if own_clock:
            among = tuple(each for each in among if each.clock_mhz_sm is None)
        found = tuple(
            record_of(NextPoint, item, model=model, gpu_type=gpu_type, clock_mhz_sm=item.clock_mhz_sm or highest)
            for item in design.next_points(belief.suite.solo, (model, gpu_type), facts, budget, among)
        )
        return Told(found, belief.progress)


def questions_of(body: bytes) -> Sheet:
    """A CSV of questions. Raises FieldsError naming every bad cell."""
    try:
        sheet = read_sheet(body, questions=True)
    except SheetError as error:
        raise FieldsError.of(f"row:{error.fault.line}/{error.fault.column}".rstrip("/"), error.fault.detail) from None
    if sheet.faults:
        pointers = ((f"row:{fault.line}/{fault.column}".rstrip("/"), fault.detail) for fault in sheet.faults)
        faults = tuple(Fault(pointer=place, code="value-invalid", detail=detail) for place, detail in pointers)
        raise FieldsError(faults[:FAULTS_MAX])
    if len(sheet) > ROWS_MAX:
        raise FieldsError.of("", f"ask {ROWS_MAX} questions at most at once")
    return sheet


@dataclass(slots=True)
class _Asked:
    """Questions while they are answered."""

    belief: Belief
    asked: Sequence[PredictionQuery]
    _sources: _Sources = field(init=False)

    def __post_init__(self) -> None:
        self._sources = _Sources(self.belief)

    def answers(self) -> tuple[Prediction, ...]:
        found: list[Prediction | None] = [None] * len(self.asked)
        by_quantity: dict[Quantity, list[int]] = {}
        for index, query in enumerate(self.asked):
            by_quantity.setdefault(query.quantity, []).append(index)
        for quantity, rows in by_quantity.items():
            needed = {quantity} | {Quantity.LATENCY_MS_P99 for row in rows if self.asked[row].percentile is not None}
            if not needed <= {*self.belief.suite.solo.spec.quantities}:
                raise FieldsError.of(f"/{rows[0]}/quantity", f"{quantity.value} cannot be predicted")
            alone, answer = self._answer(quantity, rows)
            for place, row in enumerate(rows):
                found[row] = self._prediction(row, alone, answer, place)
        return tuple(item for item in found if item is not None)

    def _answer(self, quantity: Quantity, rows: list[int]) -> tuple[Answer, Answer]:
        """The rows alone at their percentile, and with what their neighbours do to them."""
        suite = self.belief.suite
        queries = self._columns([(row, self.asked[row].itself()) for row in rows])
        alone = suite.predict(queries, quantity)
        percentiles = np.array([self.asked[row].percentile or np.nan for row in rows])
        if np.isfinite(percentiles).any():
            alone = _at_percentile(alone, suite.predict(queries, Quantity.LATENCY_MS_P99), percentiles)
        crowded = [place for place, row in enumerate(rows) if self.asked[row].neighbours]
        if not crowded or quantity not in (*_LATENCIES, Quantity.THROUGHPUT_RPS):
            return alone, alone
        groups, firsts = self._groups([rows[place] for place in crowded])
        beside = suite.interference.predict(groups, suite.solo)
        crowd = _Crowd(rows=np.array(crowded), slowdown=beside, firsts=firsts)
        return alone, _slowed(alone, crowd, faster=quantity is Quantity.THROUGHPUT_RPS)

    def _columns(self, members: Sequence[tuple[int, Neighbour]]) -> Queries:
        """Replicas of questions, each with its question's row, as columns."""
        asked = [self.asked[row] for row, _ in members]
        return Queries.of(
            [item.model for _, item in members],
            [query.gpu_type for query in asked],
            [item.batch for _, item in members],
            [item.share_pct_sm for _, item in members],
            [math.nan if query.clock_mhz_sm is None else query.clock_mhz_sm for query in asked],
        )

    def _groups(self, rows: list[int]) -> tuple[Groups, NDArray[np.intp]]:
        """Each question with its neighbours as one group, and where the questions themselves stand in it."""
        members = [(row, item) for row in rows for item in (self.asked[row].itself(), *self.asked[row].neighbours)]
        sizes = np.array([1 + len(self.asked[row].neighbours) for row in rows])
        group = np.repeat(np.arange(len(rows), dtype=np.int64), sizes)
        return Groups(members=self._columns(members), group=group), np.cumsum(sizes) - sizes

    def _prediction(self, row: int, alone: Answer, answer: Answer, place: int) -> Prediction:
        query = self.asked[row]
        if not np.isfinite(answer.mean[place]):
            return Prediction(
                quantity=query.quantity,
                mean=None,
                std=None,
                origin=None,
                support=False,
                distance=None,
                source=self._sources.nothing(query.model, query.gpu_type),
            )
        own, origin, company = Origin(int(alone.origin[place])), Origin(int(answer.origin[place])), ""
        if query.neighbours and alone is not answer:
            company = self._sources.company(own, origin, (each.model for each in query.neighbours))
        return Prediction(
            quantity=query.quantity,
            mean=float(answer.mean[place]),
            std=_finite(answer.std[place]),
            origin=origin.name.lower(),
            support=bool(answer.support[place]),
            distance=_finite(answer.distance[place]),
            source=self._sources.of(query.model, query.gpu_type, own, query.quantity) + company,
        )


class _Sources:
    """Where what is believed comes from, in words."""

    def __init__(self, belief: Belief) -> None:
        self._known = known_keys(belief)
        self.of = cache(partial(source_of, belief))
        """By model, GPU type, origin and quantity."""

    def nothing(self, model: str, gpu_type: str) -> str:
        return "nothing of the kind was ever seen" + unknown_words(self._known, (model, gpu_type))

    def company(self, alone: Origin, beside: Origin, neighbours: Iterable[str]) -> str:
        """How a source goes on where neighbours count."""
        words = "; slowed by its neighbours"
        if beside is Origin.MEASURED:
            words += " as measured beside them"
        elif beside > alone:
            words += " as their pressures say"
        return words + unknown_words(self._known, neighbours)


def _sources_of(sheet: Sheet, answers: Answers, belief: Belief) -> Answers:
    """Columns that say of each row's answers where they come from."""
    sources, gpu_types = _Sources(belief), sheet.names["gpu_type"]

    def told(models: Sequence[str], origins: Iterable[Origin | None]) -> list[str]:
        return [
            sources.nothing(model, gpu_type) if origin is None else sources.of(model, gpu_type, origin)
            for model, gpu_type, origin in zip(models, gpu_types, origins, strict=True)
        ]

    if not sheet.form.is_pairs:
        return {"source": told(sheet.names["model"], _origins(answers["origin"]))}
    alone = belief.suite.predict(groups_of([sheet]).members).origin
    columns = {}
    for place, (side, other) in enumerate((("a", "b"), ("b", "a"))):
        beside = list(_origins(answers[f"origin_{side}"]))
        own = [
            None if origin is None else Origin(int(first))
            for origin, first in zip(beside, alone[place::2], strict=True)
        ]
        words = told(sheet.names[f"model_{side}"], own)
        columns[f"source_{side}"] = [
            text if first is None or second is None else text + sources.company(first, second, (neighbour,))
            for text, first, second, neighbour in zip(words, own, beside, sheet.names[f"model_{other}"], strict=True)
        ]
    return columns


def _origins(words: Iterable[object]) -> Iterator[Origin | None]:
    return (Origin[str(word).upper()] if word else None for word in words)


def _at_percentile(mean: Answer, tail: Answer, percentiles: Floats) -> Answer:
    """Between mean and p99 as a lognormal would have it; rows without a percentile keep the mean."""
    normal = NormalDist()
    steps = np.array([0.0 if np.isnan(each) else normal.inv_cdf(each / 100) for each in percentiles])
    weight = np.where(np.isnan(percentiles), 0.0, steps / normal.inv_cdf(0.99))
    factor = np.power(np.maximum(tail.mean / mean.mean, 1.0), weight)
    return replace(mean, mean=mean.mean * factor, std=mean.std * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowd:
    """Rows with neighbours, slowdowns of all members, and where the rows' own stand among them."""

    rows: NDArray[np.intp]
    slowdown: Answer
    firsts: NDArray[np.intp]


def _slowed(alone: Answer, crowd: _Crowd, *, faster: bool) -> Answer:
    rows, slowdown, firsts = crowd.rows, crowd.slowdown, crowd.firsts
    mean, std, support = alone.mean.copy(), alone.std.copy(), alone.support.copy()
    distance, origin = alone.distance.copy(), alone.origin.copy()
    factor = 1 / slowdown.mean[firsts] if faster else slowdown.mean[firsts]
    relative = np.hypot(std[rows] / mean[rows], slowdown.std[firsts] / slowdown.mean[firsts])
    mean[rows] *= factor
    std[rows] = mean[rows] * relative
    support[rows] &= slowdown.support[firsts]
    distance[rows] = np.maximum(distance[rows], slowdown.distance[firsts])
    origin[rows] = np.maximum(origin[rows], slowdown.origin[firsts])
    return Answer(mean=mean, std=std, support=support, distance=distance, origin=origin)


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
