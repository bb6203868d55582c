"""What size and family say of a network's shape, and what a move from one GPU type to another does to it.

A network's shape follows from its size and its family by a linear law over operations, weights and layers, and what a
family has in common beside it, learned from the library or from what was measured on one GPU type; the spread is what
both leave on networks that were held out. Exponents and spreads of a move fit networks measured with the same software
on T4, V100, A30 and A100 (`benchmarks/transfer.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.belief import forms
from solvers.models.belief.forms import joint_covariance
from solvers.models.library import LibraryEntry

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
    return _SPREAD + joint_covariance(_SPREAD_PER_DISTANCE * distance(of, to))


def distance(of: GpuType, to: GpuType) -> float:
    """How far apart the logarithms of two products' rates are."""
    return float(np.linalg.norm(_rates(to) - _rates(of)))


EXAMPLES_MIN = 8
"""Fewer say nothing about others."""
_FAR = 2.0
"""Farther than this, an entry is no example of a GPU type's law, as Hopper's are none of Volta's."""
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


def learned_likeness(entries: Iterable[Placed], models: Mapping[str, ModelVariant], of: GpuType) -> Likeness | None:
    """Learn for a GPU type from library entries on those that are not far from it, if they are enough, else from all;
    None where even these are too few to tell anything.
    """
    every = [(item, models[item.network]) for item in entries if item.network is not None]
    near = [(item, variant) for item, variant in every if distance(item.gpu_type, of) <= _FAR]
    listed = near if len(near) >= EXAMPLES_MIN else every
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
