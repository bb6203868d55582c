"""One fitted formula per model and GPU type: the form of every published model of replicas alone.

Decided here: when a formula is learned, how sure it is (error on samples that were left out of learning) and what the
formula does not speak about: tail, throughput, memory and, mostly, power come from the measured table. A formula is
only how to learn latency from rows and how to compute it. Clocks reach formulas as the time a cycle takes, relative to
the highest clock that the rows know. Keys that were never measured have no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Answer, Facts, ModelSpec, Quantity, Queries, Samples, refuse_quantity
from solvers.models.parts.lattice import highest_clocks
from solvers.models.parts.seen import joined, samples_from_plain, samples_to_plain
from solvers.models.parts.static import Static, answered, errors_left_out

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Measurements of one model on one GPU type. `cycle` is the time of a clock cycle over that of the fastest."""

    batch: Floats
    share_pct: Floats
    cycle: Floats
    value: Floats


class Curve(Protocol):
    """A formula with its coefficients, for one model on one GPU type."""

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        """Latency in ms (or whatever the rows held) of every row."""
        ...


Learn = Callable[[Rows], Curve]
"""Coefficients from at least one row."""
Fits = Mapping[Key, Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Formulas of every key that was measured, beside the table. `learn_power`: None leaves power to the table."""

    spec: ModelSpec
    learn: Learn
    table: Static
    learn_power: Learn | None = None
    latency: Fits = field(default_factory=dict)
    power: Fits = field(default_factory=dict)
    errors: dict[Key, float] = field(default_factory=dict)

    @staticmethod
    def unlearned(spec: ModelSpec, facts: Facts, learn: Learn, learn_power: Learn | None = None) -> Curves:
        """Formulas of nothing yet."""
        return Curves(spec=spec, learn=learn, table=Static(facts=facts), learn_power=learn_power)

    def fit(self, samples: Samples) -> Curves:
        """Learn from these samples."""
        table = self.table.table(samples)
        seen, facts = table.seen, table.facts
        power = fits(seen, seen.power_w, facts, self.learn_power) if self.learn_power else {}

        def believe(rest: Samples, queries: Queries) -> Floats:
            return evaluated(fits(rest, rest.latency_ms, facts, self.learn), queries, tops(rest, facts))

        return replace(
            self,
            table=table,
            latency=fits(seen, seen.latency_ms, facts, self.learn),
            power=power,
            errors=errors_left_out(seen, believe),
        )

    def update(self, samples: Samples) -> Curves:
        """Learn again from what was seen and from these."""
        return self.fit(joined(self.table.seen, samples))

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        """Compute every row."""
        refuse_quantity(self.spec, quantity)
        if self.table.lattice is None:
            return Answer.unknown(len(queries))
        places = self.table.lattice.places(queries)
        fastest = tops(self.table.seen, self.table.facts)
        if quantity is Quantity.POWER_W and self.power:
            mean = evaluated(self.power, queries, fastest)
        elif quantity in (Quantity.POWER_W, Quantity.MEMORY_MIB):
            mean = self.table.value(queries, quantity, places)
        else:
            latency = evaluated(self.latency, queries, fastest)
            # Straight lines may cross zero; nothing takes no time.
            latency = np.where(latency > 0, latency, np.nan)
            mean = self.table.derived(queries, quantity, places, latency)
        answer = answered(queries, places, mean, self.table.noise, self.errors)
        # A formula does not pass through what was measured, so measured cells are no surer than others.
        relative = np.array(
            [[self.errors.get((model, gpu), np.nan) for gpu in queries.gpu_types] for model in queries.models]
        )
        own = relative.reshape(len(queries.models), len(queries.gpu_types))[queries.model, queries.gpu_type]
        return replace(answer, std=np.maximum(answer.std, np.abs(answer.mean) * own))

    def curve(self, model: str, gpu_type: str) -> Curve | None:
        """The formula of one key."""
        return self.latency.get((model, gpu_type))

    def dump(self) -> Plain:
        """What was seen; the coefficients follow from it."""
        return samples_to_plain(self.table.seen)

    def loaded(self, plain: Plain) -> Curves:
        """What was dumped."""
        return self.fit(samples_from_plain(plain))


def tops(samples: Samples, facts: Facts) -> dict[Key, float]:
    """The highest measured clock of every key, in MHz."""
    missing = highest_clocks(samples.queries, facts)
    found: dict[Key, float] = {}
    for (model, gpu_type), rows in samples.queries.keys().items():
        clock = samples.queries.clock_mhz[rows]
        found[model, gpu_type] = float(np.where(np.isnan(clock), missing[gpu_type], clock).max())
    return found


def fits(samples: Samples, values: Floats, facts: Facts, learn: Learn) -> dict[Key, Curve]:
    """A formula for every key with a positive value."""
    fastest = tops(samples, facts)
    missing = highest_clocks(samples.queries, facts)
    found: dict[Key, Curve] = {}
    for key, rows in samples.queries.keys().items():
        wanted = rows[np.isfinite(values[rows]) & (values[rows] > 0)]
        if len(wanted):
            part = samples.queries.take(wanted)
            clock = np.where(np.isnan(part.clock_mhz), missing[key[1]], part.clock_mhz)
            found[key] = learn(
                Rows(batch=part.batch, share_pct=part.share_pct, cycle=fastest[key] / clock, value=values[wanted])
            )
    return found


def evaluated(curves: Fits, queries: Queries, fastest: Mapping[Key, float]) -> Floats:
    """Value of every row; NaN where its key has no formula. No clock given: the fastest that was measured."""
    mean = np.full(len(queries), np.nan)
    for key, rows in queries.keys().items():
        if key in curves:
            part = queries.take(rows)
            cycle = np.where(np.isnan(part.clock_mhz), 1.0, fastest[key] / part.clock_mhz)
            mean[rows] = curves[key](part.batch, part.share_pct, cycle)
    return mean
