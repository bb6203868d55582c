"""What is believed of a model on a GPU type where it was never measured, from what is known of it or its like.

The rungs, nearest first: the model measured here on another GPU type; the built-in library's entry; the library's
entries of the same network on another GPU type or with other software; networks of its family; its size alone. Each
moves parameters by what differs and adds the spread that this left where it was tried (`benchmarks/transfer.py`; its
exponents and spreads fit networks measured with the same software on T4, V100, A30 and A100). Of a model with neither
measurements nor size nothing is believed.

A network's shape follows from its size and its family by a linear law over operations, weights and layers, and what a
family has in common beside it, learned from the library or from what was measured on one GPU type; the spread is what
both leave on networks that were held out.

The models measured on a GPU type have three voices for one more there, surest first: the library's entry, moved as the
other models differ here from theirs, joined with the size law; the size law among the others alone; what all of them
have in common. The caller leaves out the model itself, so that no model's prior contains its own measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Origin
from solvers.models.belief import forms
from solvers.models.belief.forms import ALL_TIMES, ShapeFit, ShapePrior, joint_covariance
from solvers.models.library import LibraryEntry, gpu_key, name_key, spelled

_WORK_GAIN = (0.45, 0.5)
"""How a time falls with the GPU's rate of arithmetic and with its memory bandwidth."""
_WEIGHTS_GAIN = (0.0, 0.9)
_HOST_GAIN = (0.15, 0.1)
"""Newer GPUs stand in newer hosts; that is all a host's time has to do with them."""
_INPUT_GAIN = 0.8


_SPREAD = joint_covariance(0.12, (0.22, 0.22, 0.27, 0.14, 0.22, 0.2, 0.2, 0.15, 0.1, 0.1))
_SPREAD_PER_DISTANCE = 0.1


def _rates(gpu_type: GpuType) -> Floats:
    # Precision is not known here, so the rates of ordinary and of tensor cores count alike.
    matrix = max(gpu_type.fp16_tflops, gpu_type.tf32_tflops or 0.0, gpu_type.fp32_tflops)
    return np.log([np.sqrt(gpu_type.fp32_tflops * matrix), gpu_type.memory_bandwidth_gb_per_s])


def shift(of: GpuType, to: GpuType) -> Floats:
    """What to add to parameters on the learned scale when a model moves."""
    gain = _rates(to) - _rates(of)
    found = np.zeros(forms.COUNT)
    found[0:2] = -gain @ np.array(_HOST_GAIN)
    found[2] = -_INPUT_GAIN * np.log(to.pcie_bandwidth_gb_per_s / of.pcie_bandwidth_gb_per_s)
    found[forms.WORK] = -gain @ np.array(_WORK_GAIN)
    found[forms.WEIGHTS] = -gain @ np.array(_WEIGHTS_GAIN)
    found[forms.FILL] = -np.log(to.sm_count / of.sm_count)
    return found


def spread(of: GpuType, to: GpuType) -> Floats:
    """Covariance that moving adds: none to itself, more between products that have little in common."""
    if of.name == to.name:
        return np.zeros((forms.COUNT, forms.COUNT))
    apart = float(np.linalg.norm(_rates(to) - _rates(of)))
    return _SPREAD + joint_covariance(_SPREAD_PER_DISTANCE * apart)


# --- What size and family say


EXAMPLES_MIN = 8
"""Fewer say nothing about others."""
_LAYERS_USUAL = 60.0
_RIDGE = 0.05
_MEMBERS_USUAL = 1.0
"""A family of so many examples is believed half."""
_REACH = 1.0
"""How far apart in the logarithm of operations members of a family still tell half as much of each other."""
_WIDER_BY_SIZE = 1.1
"""What intervals had to be widened by (in standard deviations) to hold what was held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An entry of the library on a GPU type that is described."""

    gpu_type: GpuType
    entry: LibraryEntry
    key: str
    network: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fitted network of known size; all examples' parameters are as on one GPU type."""

    family: str
    network: str
    features: Floats
    parameters: Floats
    weight: float
    source: str = ""
    """The host and software that it was measured with; empty: those of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What was learned. `residuals` are the examples' parameters less what their size says."""

    examples: tuple[Example, ...]
    slopes: Floats
    residuals: Floats
    spread_by_size: Floats
    spread_in_family: Floats

    def by_size(self, variant: ModelVariant) -> tuple[Floats, Floats, str]:
        """Mean, covariance and words: what size and, where there are any, the family's other members say."""
        features = size_features(variant)
        offset, names = self._family(variant.family, features, variant.name)
        mean = features @ self.slopes + offset
        if names:
            return mean, self.spread_in_family, f"scaled from the family {variant.family}: {', '.join(names)}"
        operations = f"{variant.gflop_per_input:g} GFLOP, " if variant.gflop_per_input else ""
        size = f"{operations}{variant.parameters_million:g} M parameters"
        return mean, self.spread_by_size, f"scaled by size: {size}"

    def _family(self, family: str, features: Floats, network: str) -> tuple[Floats, tuple[str, ...]]:
        rows = [row for row, it in enumerate(self.examples) if it.family == family and it.network != network]
        if not rows:
            return np.zeros(forms.COUNT), ()
        apart = np.array([self.examples[row].features[1] - features[1] for row in rows])
        weights = np.array([self.examples[row].weight for row in rows]) * np.exp2(-np.abs(apart) / _REACH)
        offset = weights @ self.residuals[rows] / (weights.sum() + _MEMBERS_USUAL * weights.mean())
        return offset, tuple(sorted({self.examples[row].network for row in rows}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """The library's law, and the GPU type that it speaks of."""

    common: GpuType
    law: Law


def size_features(variant: ModelVariant) -> Floats:
    """One, and the logarithms of operations, parameters and layers."""
    layers = sum(layer.count for layer in variant.layers) or _LAYERS_USUAL
    operations = variant.gflop_per_input or 2.0 * variant.parameters_million / 1000.0
    return np.array([1.0, np.log(operations), np.log(variant.parameters_million), np.log(layers / _LAYERS_USUAL)])


def learned_likeness(entries: Iterable[Placed], models: Mapping[str, ModelVariant]) -> Likeness | None:
    """Learn from library entries; None where they are too few to tell anything."""
    listed = [(item, models[item.network]) for item in entries if item.network is not None]
    if len(listed) < EXAMPLES_MIN:
        return None
    types = {item.gpu_type.name: item.gpu_type for item, _ in listed}
    common = types[Counter(item.gpu_type.name for item, _ in listed).most_common(1)[0][0]]
    per_source = Counter(item.entry.source for item, _ in listed)
    examples = tuple(
        Example(
            family=variant.family,
            network=variant.name,
            features=size_features(variant),
            parameters=np.array(item.entry.parameters) + shift(item.gpu_type, common),
            weight=per_source[item.entry.source] ** -0.5,
            source=item.entry.source,
        )
        for item, variant in listed
    )
    return Likeness(common=common, law=learned_law(examples))


def learned_law(examples: tuple[Example, ...]) -> Law:
    features = np.stack([it.features for it in examples])
    parameters = np.stack([it.parameters for it in examples])
    weights = np.array([it.weight for it in examples])
    slopes = _slopes(features, parameters, weights)
    law = Law(
        examples=examples,
        slopes=slopes,
        residuals=parameters - features @ slopes,
        spread_by_size=np.eye(forms.COUNT),
        spread_in_family=np.eye(forms.COUNT),
    )
    errors, in_family = _held_out(law)
    related = [row for row, it in enumerate(in_family) if it is not None]
    left = np.array([in_family[row] for row in related]).reshape(-1, forms.COUNT)
    by_size = _spread(errors, weights) * _WIDER_BY_SIZE**2
    enough = len(related) >= EXAMPLES_MIN
    return replace(
        law,
        spread_by_size=by_size,
        spread_in_family=_spread(left, weights[related]) if enough else by_size,
    )


def _held_out(law: Law) -> tuple[Floats, list[Floats | None]]:
    """What size leaves of each example, and what its family does, None without one. Who asks is on a host of its own,
    so that each source is held out whole, where enough is left without it.
    """
    features = np.stack([it.features for it in law.examples])
    weights = np.array([it.weight for it in law.examples])
    errors = law.residuals / (1.0 - _leverage(features, weights))[:, None]
    bases = [law] * len(law.examples)
    for source in sorted({it.source for it in law.examples}):
        rest = tuple(it for it in law.examples if it.source != source)
        if len(rest) < EXAMPLES_MIN:
            continue
        of = np.array([it.source != source for it in law.examples])
        parameters = np.stack([it.parameters for it in law.examples])
        slopes = _slopes(features[of], parameters[of], weights[of])
        left = parameters - features @ slopes
        errors[~of] = left[~of]
        other = replace(law, examples=rest, slopes=slopes, residuals=left[of])
        bases = [base if kept else other for base, kept in zip(bases, of, strict=True)]
    in_family = list[Floats | None]()
    for row, (it, base) in enumerate(zip(law.examples, bases, strict=True)):
        offset, names = base._family(it.family, it.features, it.network)
        before = law.residuals[row] if base is law else errors[row]
        in_family.append(before - offset if names else None)
    return errors, in_family


def _slopes(features: Floats, parameters: Floats, weights: Floats) -> Floats:
    penalty = _RIDGE * weights.sum() * np.diag([0.0] + [1.0] * (features.shape[1] - 1))
    weighted = features.T * weights
    return np.asarray(np.linalg.solve(weighted @ features + penalty, weighted @ parameters))


def _leverage(features: Floats, weights: Floats) -> Floats:
    root = features * np.sqrt(weights)[:, None]
    penalty = _RIDGE * weights.sum() * np.diag([0.0] + [1.0] * (features.shape[1] - 1))
    hat = np.einsum("ij,jk,ik->i", root, np.linalg.inv(root.T @ root + penalty), root)
    return np.asarray(np.minimum(hat, 0.9))


def _spread(errors: Floats, weights: Floats) -> Floats:
    found = (errors.T * weights) @ errors / weights.sum()
    # A little of every parameter's own, so that no combination is ever held for certain.
    return np.asarray(found + np.diag(0.05 * np.diag(found) + 1e-4))


# --- The rungs


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
    likeness: Likeness | None

    @staticmethod
    def of(facts: Facts) -> Scaling:
        """Learn from the library how parameters follow the size of a network."""
        gpu_types = {gpu_key(name): gpu_type for name, gpu_type in sorted(facts.gpu_types.items())}
        entries = facts.library.entries if facts.library is not None else ()
        placed = tuple(
            Placed(gpu_type=gpu_types[key], entry=it, key=name_key(it.model), network=spelled(it.model, facts.models))
            for it in entries
            if (key := gpu_key(it.gpu_type)) in gpu_types
        )
        likeness = learned_likeness(placed, facts.models)
        return Scaling(facts=facts, gpu_types=gpu_types, entries=placed, likeness=likeness)

    def prior(self, model: str, gpu_type: str, known: Known) -> ShapePrior | None:
        """The nearest rung's belief; None where nothing is known of the model or of the GPU type."""
        to = self.gpu_types.get(gpu_key(gpu_type))
        found = self._measured(model, to, known) if to is not None else None
        library = self.facts.library
        if found is None and library is not None and (entry := library.entry(model, gpu_type)) is not None:
            found = entry_prior(entry)
        if found is None and to is not None:
            elsewhere = self._same_network(model, to)
            found = self._like(model, to, known) if elsewhere is None else self._as_others(elsewhere, to, known)
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
        own = name_key(model)
        chosen = [item for item in self.entries if item.key == own]
        if not chosen and (network := spelled(model, self.facts.models)) is not None:
            chosen = [item for item in self.entries if item.network == network]
        if not chosen:
            return None
        words = ", ".join(sorted(f"{item.entry.model} on {item.gpu_type.name}" for item in chosen))
        moved = [_moved(entry_prior(item.entry), item.gpu_type, to) for item in chosen]
        return _mixed(moved, f"scaled from the library: {words}")

    def _as_others(self, prior: ShapePrior, to: GpuType, known: Known) -> ShapePrior:
        """What the library says elsewhere, moved as others that were measured on this GPU type differ from theirs."""
        steps = [
            _typical(measured.mean) - _typical(told.mean)
            for name, of, measured in self._placed(known)
            if of.name == to.name and (told := self._same_network(name, to)) is not None
        ]
        # How each differs by itself is as wide as before.
        return _with_step(prior, steps, surer=False)

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
        return _with_step(prior, steps, surer=True)

    def _variant(self, model: str) -> ModelVariant | None:
        name = spelled(model, self.facts.models)
        return None if name is None else self.facts.models[name]

    def _by_size(self, likeness: Likeness, variant: ModelVariant, to: GpuType) -> ShapePrior:
        mean, covariance, words = likeness.law.by_size(variant)
        return ShapePrior(
            mean=mean + shift(likeness.common, to),
            covariance=covariance + spread(likeness.common, to),
            origin=Origin.SCALED,
            source=_words(words),
        )


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
    return replace(
        prior, mean=mean, covariance=covariance, source=_words(f"{prior.source}; beside {len(steps)} measured here")
    )


def _words(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


# --- What the models measured on the same GPU type say


_ALIKE_USUAL = 1.0
"""So many models with entries say half of how this host and its software differ from the library's."""
_DOUBT = 0.5
"""How much of the others' own doubt about their parameters counts as a difference between models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """What is known of a model beside measurements: its network's description, its entry on this very GPU type."""

    variant: ModelVariant | None = None
    entry: LibraryEntry | None = None


STRANGER = Sibling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A model that was measured, and what its measurements say."""

    sibling: Sibling
    belief: ShapePrior | ShapeFit


def voices(asked: Sibling, others: Mapping[str, Told]) -> tuple[ShapePrior, ...]:
    """What may be believed of a model, surest first; nothing where the others say nothing about it."""
    law = size_law(asked, others)
    entry = moved_entry(asked, others)
    if entry is None or law is None:
        return tuple(prior for prior in (entry, law) if prior is not None)
    return joined(entry, law), law


def size_law(asked: Sibling, others: Mapping[str, Told]) -> ShapePrior | None:
    """What the model's size and family say by the law that the others follow; None where they are too few."""
    examples = tuple(
        Example(
            family=variant.family,
            network=f"{variant.name} {name}",
            features=size_features(variant),
            parameters=told.belief.mean,
            weight=1.0,
        )
        for name, told in sorted(others.items())
        if (variant := told.sibling.variant) is not None
    )
    if asked.variant is None or len(examples) < EXAMPLES_MIN:
        return None
    mean, covariance, words = learned_law(examples).by_size(asked.variant)
    doubt = np.mean([told.belief.covariance for told in others.values()], axis=0)
    return ShapePrior(
        mean=mean,
        covariance=covariance + _DOUBT * doubt,
        origin=Origin.SCALED,
        source=f"{len(examples)} models measured here, by size"
        + (f" and family {asked.variant.family}" if "family" in words else ""),
    )


def moved_entry(asked: Sibling, others: Mapping[str, Told]) -> ShapePrior | None:
    """The library's entry as this host and its software would have it; None without an entry."""
    if asked.entry is None:
        return None
    found = entry_prior(asked.entry)
    apart = [
        told.belief.mean - np.array(told.sibling.entry.parameters)
        for told in others.values()
        if told.sibling.entry is not None
    ]
    if not apart:
        return found
    steps = np.stack(apart)
    count = len(steps) + _ALIKE_USUAL
    step = steps.sum(axis=0) / count
    left = (steps - step).T @ (steps - step) + _ALIKE_USUAL * (SOFTWARE + np.outer(step, step))
    return replace(
        found,
        mean=found.mean + step,
        covariance=found.covariance - SOFTWARE + left / count,
        source=f"{found.source[:150]}; as {len(steps)} others differ here",
    )


def joined(one: ShapePrior, two: ShapePrior) -> ShapePrior:
    """Both beliefs taken together, as if they were independent; named after the first."""
    gain = one.covariance @ np.linalg.inv(one.covariance + two.covariance)
    covariance = one.covariance - gain @ one.covariance
    return replace(one, mean=one.mean + gain @ (two.mean - one.mean), covariance=(covariance + covariance.T) / 2)
