"""What is believed of a model on a GPU type where it was never measured, from what is known of it or its like.

The rungs, nearest first: the model measured here on another GPU type; the built-in library's entry; the library's
entries of the same network on another GPU type or with other software; networks of its family; its size alone. Each
moves parameters by what differs and adds the spread that this left where it was tried (`benchmarks/transfer.py`). Of a
model with neither measurements nor size nothing is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Origin
from solvers.models.belief import forms
from solvers.models.belief.forms import ALL_TIMES, ShapePrior, joint_covariance
from solvers.models.belief.likeness import Likeness, Placed, learned_likeness, shift, spread
from solvers.models.library import LibraryEntry, gpu_key, name_key, spelled

Known = Mapping[tuple[str, str], ShapePrior]
"""What measurements here say, by (model, GPU type)."""

_SOFTWARE_COMMON = 0.4
SOFTWARE = joint_covariance(_SOFTWARE_COMMON, (0.4, 0.4, 0.4, 0.25, 0.4, 0.3, 0.3, 0.2, 0.2, 0.15))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What facts say, prepared once. GPU types are by key."""

    facts: Facts
    gpu_types: Mapping[str, GpuType]
    entries: tuple[Placed, ...]
    _laws: dict[str, Likeness | None] = field(default_factory=dict, repr=False, compare=False)
    """By GPU type, once asked for."""

    @staticmethod
    def of(facts: Facts) -> Scaling:
        """Find the library's entries on the GPU types that are described."""
        gpu_types = {gpu_key(name): gpu_type for name, gpu_type in sorted(facts.gpu_types.items())}
        entries = facts.library.entries if facts.library is not None else ()
        placed = tuple(
            Placed(gpu_type=gpu_types[key], entry=it, key=name_key(it.model), network=spelled(it.model, facts.models))
            for it in entries
            if (key := gpu_key(it.gpu_type)) in gpu_types
        )
        return Scaling(facts=facts, gpu_types=gpu_types, entries=placed)

    def likeness(self, to: GpuType) -> Likeness | None:
        """The law of a GPU type."""
        if to.name not in self._laws:
            self._laws[to.name] = learned_likeness(self.entries, self.facts.models, to)
        return self._laws[to.name]

    def prior(self, model: str, gpu_type: str, known: Known) -> ShapePrior | None:
        """The nearest rung's belief; None where nothing is known of the model or of the GPU type."""
        to = self.gpu_types.get(gpu_key(gpu_type))
        found = self._measured(model, to, known) if to is not None else None
        library = self.facts.library
        if found is None and library is not None and (entry := library.entry(model, gpu_type)) is not None:
            found = entry_prior(entry)
        if found is None and to is not None:
            chosen = self._entries_of(model)
            found = self._as_others(chosen, to, known) if chosen else self._like(model, to, known)
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

    def _entries_of(self, model: str) -> list[Placed]:
        """Those of its own name, else those of its network."""
        own = name_key(model)
        chosen = [item for item in self.entries if item.key == own]
        if not chosen and (network := spelled(model, self.facts.models)) is not None:
            chosen = [item for item in self.entries if item.network == network]
        return chosen

    def _as_others(self, chosen: Sequence[Placed], to: GpuType, known: Known) -> ShapePrior:
        """What the library says elsewhere, each entry moved as others that were measured on this GPU type differ from
        what its source says of them where it measured.
        """
        here = [(name, measured) for name, of, measured in self._placed(known) if of.name == to.name]
        steps = [self._steps(item, to, here) for item in chosen]
        # How each differs by itself is as wide as before.
        moved = [
            _with_step(_moved(entry_prior(item.entry), item.gpu_type, to), its, surer=False)
            for item, its in zip(chosen, steps, strict=True)
        ]
        words = ", ".join(sorted(f"{item.entry.model} on {item.gpu_type.name}" for item in chosen))
        return _mixed(moved, _beside_words(f"scaled from the library: {words}", max(map(len, steps))))

    def _steps(self, item: Placed, to: GpuType, here: Sequence[tuple[str, ShapePrior]]) -> list[float]:
        """How much longer each takes here than those who measured this entry say, by the logarithm."""
        found = []
        for name, measured in here:
            told = [np.array(it.entry.parameters) for it in self._entries_of(name) if _alike(it, item)]
            if told:
                moved = np.mean(told, axis=0) + shift(item.gpu_type, to)
                found.append(_typical(measured.mean) - _typical(moved))
        return found

    def _like(self, model: str, to: GpuType, known: Known) -> ShapePrior | None:
        variant = self._variant(model)
        prior = None if variant is None else self._by_size(variant, to)
        if prior is None:
            return None
        steps = [
            _typical(measured.mean) - _typical(told.mean)
            for name, of, measured in self._placed(known)
            if (like := self._variant(name)) is not None and (told := self._by_size(like, of)) is not None
        ]
        return _with_step(prior, steps, surer=True)

    def _variant(self, model: str) -> ModelVariant | None:
        name = spelled(model, self.facts.models)
        return None if name is None else self.facts.models[name]

    def _by_size(self, variant: ModelVariant, to: GpuType) -> ShapePrior | None:
        likeness = self.likeness(to)
        if likeness is None:
            return None
        mean, covariance, words = likeness.law.by_size(variant)
        return ShapePrior(
            mean=mean + shift(likeness.common, to),
            covariance=covariance + spread(likeness.common, to),
            origin=Origin.SCALED,
            source=_words(words),
        )


def _alike(one: Placed, other: Placed) -> bool:
    """Whether both are of the same source and GPU type."""
    return (one.entry.source, one.gpu_type.name) == (other.entry.source, other.gpu_type.name)


def _moved(prior: ShapePrior, of: GpuType, to: GpuType) -> ShapePrior:
    return replace(prior, mean=prior.mean + shift(of, to), covariance=prior.covariance + spread(of, to))


def _mixed(priors: Sequence[ShapePrior], words: str) -> ShapePrior:
    """One belief out of several about the same thing: those that are surer weigh more, and where they differ the
    result is as wide as they differ. They are not independent, so their number makes nothing surer.
    """
    weights = np.array([1.0 / np.trace(prior.covariance[forms.TIMES, forms.TIMES]) for prior in priors])
    weights /= weights.sum()
    mean = np.einsum("i,ij->j", weights, np.stack([prior.mean for prior in priors]))
    apart = np.stack([prior.mean for prior in priors]) - mean
    within = np.einsum("i,ijk->jk", weights, np.stack([prior.covariance for prior in priors]))
    between = np.einsum("i,ij,ik->jk", weights, apart, apart)
    return ShapePrior(mean=mean, covariance=within + between, origin=Origin.SCALED, source=_words(words))


def _typical(parameters: Floats) -> float:
    return float(np.mean(forms.log_latency(parameters, _TYPICAL_BATCHES, 1.0)))


def _with_step(prior: ShapePrior, steps: Sequence[float], *, surer: bool) -> ShapePrior:
    """What others here take longer than is told of them, this one takes longer, too; `surer`: that is then known."""
    if not steps:
        return prior
    part = len(steps) / (len(steps) + _OTHERS_USUAL)
    mean = prior.mean + part * float(np.median(steps)) * ALL_TIMES
    removable = 0.9 / float(ALL_TIMES @ np.linalg.solve(prior.covariance, ALL_TIMES)) if surer else 0.0
    covariance = prior.covariance - part * min(_SOFTWARE_COMMON**2, removable) * np.outer(ALL_TIMES, ALL_TIMES)
    return replace(prior, mean=mean, covariance=covariance, source=_beside_words(prior.source, len(steps)))


def _beside_words(words: str, others: int) -> str:
    return _words(f"{words}; beside {others} measured here") if others else words


def _words(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"
