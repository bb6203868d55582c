"""What is believed of a model on a GPU type where it was never measured, from what is known of it or its like.

The rungs, nearest first: the model measured here on another GPU type; the built-in library's entry; the library's
entries of the same network on another GPU type or with other software; networks of its family; its size alone. Each
moves parameters by what differs and adds the spread that this left where it was tried (`benchmarks/transfer.py`). Of a
model with neither measurements nor size nothing is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Origin
from solvers.models.belief import roofline, shape
from solvers.models.belief.likeness import Likeness, learned_likeness
from solvers.models.belief.prior import ShapePrior
from solvers.models.library import LibraryEntry, gpu_key, name_key, spelled

Known = Mapping[tuple[str, str], ShapePrior]
"""What measurements here say, by (model, GPU type)."""

_SOFTWARE_COMMON = 0.4
SOFTWARE = roofline.covariance(_SOFTWARE_COMMON, (0.4, 0.4, 0.4, 0.25, 0.4, 0.3, 0.3, 0.2, 0.2, 0.15))
"""What other software on another host makes of the same network on the same GPU type."""
_OTHERS_USUAL = 0.7
"""So many other models measured here say half of what this host and its software do to all of them."""
_TYPICAL_BATCHES = np.array([1.0, 4.0, 16.0])


def entry_prior(entry: LibraryEntry) -> ShapePrior:
    """The built-in library's entry as a prior: its fit, and what other software and hosts make of a difference."""
    return ShapePrior(
        mean=np.array(entry.parameters),
        covariance=np.diag(np.square(entry.spread)) + SOFTWARE,
        origin=Origin.LIBRARY,
        source=_words(f"library: {entry.model} on {entry.gpu_type}, {entry.source}"),
    )


def scaled_prior(model: str, gpu_type: str, facts: Facts, known: Known) -> ShapePrior | None:
    """`Scaling.of(facts).prior(…)` for those who ask once."""
    return Scaling.of(facts).prior(model, gpu_type, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What facts say, prepared once. GPU types are by key."""

    facts: Facts
    gpu_types: Mapping[str, GpuType]
    likeness: Likeness | None

    @staticmethod
    def of(facts: Facts) -> Scaling:
        """Learn from the library how parameters follow the size of a network."""
        gpu_types = {gpu_key(name): gpu_type for name, gpu_type in sorted(facts.gpu_types.items())}
        entries = facts.library.entries if facts.library is not None else ()
        return Scaling(facts=facts, gpu_types=gpu_types, likeness=learned_likeness(entries, facts.models, gpu_types))

    def prior(self, model: str, gpu_type: str, known: Known) -> ShapePrior | None:
        """The nearest rung's belief; None where nothing is known of the model or of the GPU type."""
        to = self.gpu_types.get(gpu_key(gpu_type))
        found = self._measured(model, to, known) if to is not None else None
        library = self.facts.library
        if found is None and library is not None and (entry := library.entry(model, gpu_type)) is not None:
            found = entry_prior(entry)
        if found is None and to is not None:
            found = self._same_network(model, to) or self._like(model, to, known)
        return found

    def _measured(self, model: str, to: GpuType, known: Known) -> ShapePrior | None:
        here = [(of, prior) for name, of, prior in self._placed(known) if name_key(name) == name_key(model)]
        if not here:
            return None
        names = ", ".join(sorted(of.name for of, _ in here))
        return _mixed([_moved(prior, of, to) for of, prior in here], f"scaled from {model} measured on {names}")

    def _placed(self, known: Known) -> list[tuple[str, GpuType, ShapePrior]]:
        return [
            (name, self.gpu_types[gpu_key(gpu_name)], prior)
            for (name, gpu_name), prior in sorted(known.items(), key=lambda item: item[0])
            if gpu_key(gpu_name) in self.gpu_types
        ]

    def _same_network(self, model: str, to: GpuType) -> ShapePrior | None:
        entries = self.facts.library.entries if self.facts.library is not None else ()
        network = spelled(model, self.facts.models)
        placed = [
            (self.gpu_types[key], entry) for entry in entries if (key := gpu_key(entry.gpu_type)) in self.gpu_types
        ]
        chosen = [item for item in placed if name_key(item[1].model) == name_key(model)] or [
            item for item in placed if network is not None and spelled(item[1].model, self.facts.models) == network
        ]
        if not chosen:
            return None
        words = ", ".join(sorted(f"{entry.model} on {of.name}" for of, entry in chosen))
        return _mixed([_moved(entry_prior(entry), of, to) for of, entry in chosen], f"scaled from the library: {words}")

    def _like(self, model: str, to: GpuType, known: Known) -> ShapePrior | None:
        variant = self._variant(model)
        if variant is None or self.likeness is None:
            return None
        prior = self._by_size(self.likeness, variant, to)
        steps = [
            _typical(measured.mean) - _typical(self._by_size(self.likeness, like, of).mean)
            for name, of, measured in self._placed(known)
            if (like := self._variant(name)) is not None
        ]
        return _with_step(prior, steps) if steps else prior

    def _variant(self, model: str) -> ModelVariant | None:
        name = spelled(model, self.facts.models)
        return None if name is None else self.facts.models[name]

    def _by_size(self, likeness: Likeness, variant: ModelVariant, to: GpuType) -> ShapePrior:
        mean, covariance, words = likeness.law.by_size(variant)
        return ShapePrior(
            mean=mean + roofline.shift(likeness.common, to),
            covariance=covariance + roofline.spread(likeness.common, to),
            origin=Origin.SCALED,
            source=_words(words),
        )


def _moved(prior: ShapePrior, of: GpuType, to: GpuType) -> ShapePrior:
    return replace(
        prior, mean=prior.mean + roofline.shift(of, to), covariance=prior.covariance + roofline.spread(of, to)
    )


def _mixed(priors: Sequence[ShapePrior], words: str) -> ShapePrior:
    """One belief out of several about the same thing: those that are surer weigh more, and where they differ the
    result is as wide as they differ. They are not independent, so their number makes nothing surer.
    """
    weights = np.array([1.0 / np.trace(prior.covariance[shape.TIMES, shape.TIMES]) for prior in priors])
    weights /= weights.sum()
    mean = np.einsum("i,ij->j", weights, np.stack([prior.mean for prior in priors]))
    apart = np.stack([prior.mean for prior in priors]) - mean
    within = np.einsum("i,ijk->jk", weights, np.stack([prior.covariance for prior in priors]))
    between = np.einsum("i,ij,ik->jk", weights, apart, apart)
    return ShapePrior(mean=mean, covariance=within + between, origin=Origin.SCALED, source=_words(words))


def _typical(parameters: Floats) -> float:
    return float(np.mean(shape.log_latency(parameters, _TYPICAL_BATCHES, 1.0)))


def _with_step(prior: ShapePrior, steps: Sequence[float]) -> ShapePrior:
    """What other models here take longer than their size says, this one takes longer, too; that is then known."""
    part = len(steps) / (len(steps) + _OTHERS_USUAL)
    times = np.zeros(shape.COUNT)
    times[shape.TIMES] = 1.0
    removable = 0.9 / float(times @ np.linalg.solve(prior.covariance, times))
    mean = prior.mean + part * float(np.median(steps)) * times
    covariance = prior.covariance - part * min(_SOFTWARE_COMMON**2, removable) * np.outer(times, times)
    return replace(
        prior, mean=mean, covariance=covariance, source=_words(f"{prior.source}; beside {len(steps)} measured here")
    )


def _words(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"
