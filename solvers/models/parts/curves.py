"""One fitted formula per model and GPU type: the form of every published model of replicas alone.

Decided here: when a formula is learned, how sure it is (error on samples that were left out of learning) and what the
formula does not speak about: tail, throughput, memory and, mostly, power come from the measured table. A formula is
only how to learn latency from rows and how to compute it. Clocks reach formulas as the time a cycle takes, relative to
the highest clock that the rows know. Keys that were never measured have no answer.

Two fits serve several formulas: coefficients that cannot be negative, pulled towards what is usual where rows are few;
and ridge regression whose penalty is the one that does best on rows left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from scipy.optimize import nnls

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Answer, Facts, ModelSpec, Quantity, Queries, Samples, refuse_quantity
from solvers.models.parts.lattice import highest_clocks
from solvers.models.parts.seen import samples_from_plain, samples_to_plain
from solvers.models.parts.static import Static, answered, errors_left_out, of_keys

_PENALTIES = 10.0 ** np.arange(-4.0, 4.1, 0.5)


def not_negative(features: Floats, target: Floats, usual: Floats | None = None, weight: float = 0.0) -> Floats:
    """Least squares with coefficients of at least 0. `usual` counts like `weight` rows of middling features."""
    if usual is not None and weight > 0:
        size = np.sqrt(weight * np.mean(features**2, axis=0) + 1e-12)
        features = np.vstack([features, np.diag(size)])
        target = np.concatenate([target, size * usual])
    found: Floats = nnls(features, target)[0]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """A fitted linear form: `offset` plus features, each scaled to have spread 1, times coefficients."""

    offset: float
    centre: Floats
    scale: Floats
    coefficients: Floats

    @staticmethod
    def of(features: Floats, target: Floats) -> Ridge:
        """Fit, with the penalty that is best on rows left out one at a time; features that do not vary get no
        coefficient.
        """
        centre, spread = features.mean(axis=0), features.std(axis=0)
        scale = np.where(spread > 1e-12, spread, np.inf)
        scaled = (features - centre) / scale
        offset = float(target.mean())
        left, sizes, right = np.linalg.svd(scaled, full_matrices=False)
        along = left.T @ (target - offset)
        best: tuple[float, Floats] | None = None
        for penalty in _PENALTIES * len(target):
            shrink = sizes**2 / (sizes**2 + penalty)
            leverage = np.sum(left**2 * shrink, axis=1) + 1.0 / len(target)
            residual = target - offset - left @ (shrink * along)
            error = float(np.sqrt(np.mean((residual / np.maximum(1.0 - leverage, 1e-6)) ** 2)))
            if best is None or error < best[0]:
                best = error, right.T @ (sizes / (sizes**2 + penalty) * along)
        assert best is not None
        return Ridge(offset=offset, centre=centre, scale=scale, coefficients=best[1])

    def __call__(self, features: Floats) -> Floats:
        return np.asarray(self.offset + (features - self.centre) / self.scale @ self.coefficients)


# --- Formulas


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
class CurveModel:
    """A published formula as a model that is found by name. `learn_power`: None leaves power to the table."""

    spec: ModelSpec
    learn: Learn
    learn_power: Learn | None = None

    def make(self, facts: Facts, _seed: int = 0) -> Curves:
        return Curves(model=self, table=Static(facts=facts))

    def load(self, plain: Plain, facts: Facts) -> Curves:
        return self.make(facts).fit(samples_from_plain(plain))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Formulas of every key that was measured, beside the table."""

    model: CurveModel
    table: Static
    latency: Fits = field(default_factory=dict)
    power: Fits = field(default_factory=dict)
    errors: dict[Key, float] = field(default_factory=dict)

    @property
    def spec(self) -> ModelSpec:
        """Name, version, what it answers."""
        return self.model.spec

    def fit(self, samples: Samples) -> Curves:
        table = self.table.table(samples)
        seen, facts, learn, learn_power = table.seen, table.facts, self.model.learn, self.model.learn_power

        def believe(rest: Samples, queries: Queries) -> Floats:
            return evaluated(fits(rest, rest.latency_ms, facts, learn), queries, tops(rest, facts))

        return replace(
            self,
            table=table,
            latency=fits(seen, seen.latency_ms, facts, learn),
            power=fits(seen, seen.power_w, facts, learn_power) if learn_power else {},
            errors=errors_left_out(seen, believe),
        )

    def update(self, samples: Samples) -> Curves:
        """Learn again from what was seen and from these."""
        return self.fit(self.table.seen.joined(samples))

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
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
        own = of_keys(queries, self.errors, np.nan)
        return replace(answer, std=np.maximum(answer.std, np.abs(answer.mean) * own))

    def dump(self) -> Plain:
        """What was seen; the coefficients follow from it."""
        return samples_to_plain(self.table.seen)


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
