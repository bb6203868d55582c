"""HetSev's static profile: what was measured, looked up. The belief that every other one is compared with.

Uncertainty is each key's error on samples left out of the table. Latency never rises with share or clock and never
falls with batch; power and memory never fall. Below the lowest measured clock, latency grows as the clock falls (work
takes cycles); everywhere else outside the measured box the table clamps and says so. Nothing is guessed: models and GPU
types that were not measured get NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Answer, Facts, ModelSpec, Origin, Quantity, Queries, Samples, refuse_quantity
from solvers.models.parts.lattice import FREE, Lattice, Places, Signs, highest_clocks
from solvers.models.parts.seen import NO_SAMPLES, samples_from_plain, samples_to_plain

SPEC = ModelSpec(
    name="static",
    version="1",
    formula="table look-up over batch, share and clock (HetSev)",
    quantities=tuple(Quantity),
)

NOISE = 0.03
"""Relative spread of measurements of one configuration where too few were repeated to tell."""
BETWEEN = 0.05
"""Relative spread between measured configurations of a model with too few of them to tell."""
PER_STEP_OUTSIDE = 0.15
"""Relative spread that every usual grid step adds beyond what was measured."""
_REPEATS_MIN = 8
FOLDS = 4
LATENCY_SIGNS: Signs = (-1, -1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    facts: Facts
    seen: Samples = NO_SAMPLES
    noise: float = NOISE
    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    """Relative error between measured configurations, by key."""
    lattice: Lattice | None = None
    spec: ModelSpec = SPEC

    def fit(self, samples: Samples) -> Static:
        table = self.table(samples)
        errors = errors_left_out(table.seen, lambda rest, queries: _believed(rest, queries, self.facts))
        return replace(table, noise=_spread(table.seen), errors=errors)

    def table(self, samples: Samples) -> Static:
        """Table of these samples, without asking how far it can be trusted between them."""
        usable = samples.take(np.isfinite(samples.latency_ms) & (samples.latency_ms > 0))
        return replace(self, seen=usable, lattice=_lattice(usable, self.facts))

    def update(self, samples: Samples) -> Static:
        return self.fit(self.seen.joined(samples))

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        refuse_quantity(self.spec, quantity)
        if self.lattice is None:
            return Answer.unknown(len(queries))
        places = self.lattice.places(queries)
        return answered(queries, places, self.value(queries, quantity, places), self.noise, self.errors)

    def value(self, queries: Queries, quantity: Quantity, places: Places) -> Floats:
        assert self.lattice is not None
        if quantity is Quantity.POWER_W:
            return self.lattice.column(places, "power")
        if quantity is Quantity.MEMORY_MIB:
            return self.lattice.column(places, "memory")
        slower = np.maximum(places.lowest_clock_mhz / places.clock_mhz, 1.0)
        latency = self.lattice.column(places, "latency") * slower
        return self.derived(queries, quantity, places, latency)

    def derived(self, queries: Queries, quantity: Quantity, places: Places, latency_ms: Floats) -> Floats:
        """Mean latency, tail latency or throughput from the mean latency."""
        assert self.lattice is not None
        if quantity is Quantity.LATENCY_MS_P99:
            return latency_ms * self.lattice.column(places, "tail")
        if quantity is Quantity.THROUGHPUT_RPS:
            return self.lattice.column(places, "rate") * 1000.0 * queries.batch / latency_ms
        return latency_ms

    def dump(self) -> Plain:
        """What was seen; the table follows from it."""
        return samples_to_plain(self.seen)


def answered(
    queries: Queries, places: Places, mean: Floats, noise: float, errors: dict[tuple[str, str], float]
) -> Answer:
    """An answer with its relative spread: of measuring (`noise`), of the way between measured configurations (`errors`,
    by key), of leaving them.
    """
    between = of_keys(queries, errors, BETWEEN)
    away = np.where(places.known & ~places.inside, PER_STEP_OUTSIDE * places.distance, 0.0)
    unknown = np.isnan(mean)
    return Answer(
        mean=mean,
        std=np.abs(mean) * np.hypot(np.where(places.distance == 0.0, noise, np.maximum(noise, between)), away),
        support=places.inside & ~unknown,
        distance=np.where(unknown, np.inf, places.distance),
        origin=np.where(places.known, Origin.MEASURED, Origin.SCALED).astype(np.int8),
    )


def of_keys(queries: Queries, values: Mapping[tuple[str, str], float], otherwise: float) -> Floats:
    table = [[values.get((model, gpu), otherwise) for gpu in queries.gpu_types] for model in queries.models]
    shape = len(queries.models), len(queries.gpu_types)
    return np.asarray(np.array(table, dtype=np.float64).reshape(shape)[queries.model, queries.gpu_type])


def errors_left_out(samples: Samples, believe: Callable[[Samples, Queries], Floats]) -> dict[tuple[str, str], float]:
    """Relative error of every key on samples that `believe` was not shown; keys with few samples lean on all others."""
    order = np.random.default_rng(0).permutation(len(samples))
    wrong = np.full(len(samples), np.nan)
    for fold in range(FOLDS):
        out = order % FOLDS == fold
        if out.any() and not out.all():
            held = samples.take(out)
            wrong[out] = believe(samples.take(~out), held.queries) / held.latency_ms - 1.0
    known = np.isfinite(wrong)
    # One wild row must not widen every answer: errors beyond half count as half.
    squares = np.minimum(np.abs(wrong), 0.5) ** 2
    usual = float(np.mean(squares[known])) if known.any() else BETWEEN**2
    found: dict[tuple[str, str], float] = {}
    for key, rows in samples.queries.keys().items():
        mine = squares[rows][known[rows]]
        found[key] = float(np.sqrt((mine.sum() + FOLDS * usual) / (len(mine) + FOLDS)))
    return found


def _lattice(samples: Samples, facts: Facts) -> Lattice | None:
    throughput = samples.column(Quantity.THROUGHPUT_RPS)
    columns = {
        "latency": (samples.latency_ms, LATENCY_SIGNS),
        "tail": (samples.latency_ms_p99 / samples.latency_ms, FREE),
        "rate": (throughput * samples.latency_ms / (1000.0 * samples.queries.batch), FREE),
        "power": (samples.power_w, (1, 1, 1)),
        "memory": (_by_batch(samples), (0, 0, 1)),
    }
    return Lattice.of(samples.queries, columns, highest_clocks(samples.queries, facts))


def _believed(samples: Samples, queries: Queries, facts: Facts) -> Floats:
    columns = {"latency": (samples.latency_ms, LATENCY_SIGNS)}
    lattice = Lattice.of(samples.queries, columns, highest_clocks(samples.queries, facts))
    return np.full(len(queries), np.nan) if lattice is None else lattice.column(lattice.places(queries), "latency")


def _by_batch(samples: Samples) -> Floats:
    """Memory needs of every row's batch: the most that was seen of it, whatever the share and the clock."""
    needs = samples.memory_mib.copy()
    for rows in samples.queries.keys().values():
        batches, place = np.unique(samples.queries.batch[rows], return_inverse=True)
        most = np.full(len(batches), -np.inf)
        np.fmax.at(most, place, samples.memory_mib[rows])
        needs[rows] = np.where(np.isfinite(most), most, np.nan)[place]
    return needs


def _spread(samples: Samples) -> float:
    """Relative spread of repeated measurements, pooled over all configurations."""
    queries = samples.queries
    cells = np.stack(
        [queries.model, queries.gpu_type, queries.batch, queries.share_pct, np.nan_to_num(queries.clock_mhz)]
    )
    if not len(samples):
        return NOISE
    place = np.unique(cells, axis=1, return_inverse=True)[1].ravel()
    counts = np.bincount(place)
    means = np.bincount(place, weights=samples.latency_ms) / counts
    free = len(samples) - len(counts)
    if free < _REPEATS_MIN:
        return NOISE
    return float(np.sqrt(np.sum((samples.latency_ms / means[place] - 1.0) ** 2) / free))


def make(facts: Facts, _seed: int = 0) -> Static:
    return Static(facts=facts)


def load(plain: Plain, facts: Facts) -> Static:
    return make(facts).fit(samples_from_plain(plain))
