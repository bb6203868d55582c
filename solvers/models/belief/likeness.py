"""How a network's shape follows from its size and its family, learned from the built-in library or from what was
measured on one GPU type.

Parameters follow a linear law over operations, weights and layers, and what a family has in common beside it; the
spread is what both leave on networks that were held out. Networks of unknown size have no likeness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.belief import roofline, shape
from solvers.models.library import LibraryEntry, gpu_key, spelled

EXAMPLES_MIN = 8
"""Fewer say nothing about others."""
_LAYERS_USUAL = 60.0
_RIDGE = 0.05
_MEMBERS_USUAL = 1.0
"""A family of so many examples is believed half."""
_REACH = 1.0
"""How far apart in the logarithm of operations members of a family still tell half as much of each other."""
_WIDER_BY_SIZE, _WIDER_IN_FAMILY = 1.25, 1.05
"""What intervals had to be widened by (in standard deviations) to hold what was held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A fitted network of known size; all examples' parameters are as on one GPU type."""

    family: str
    network: str
    features: Floats
    parameters: Floats
    weight: float


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
            return np.zeros(shape.COUNT), ()
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


def learned_likeness(
    entries: Iterable[LibraryEntry], models: Mapping[str, ModelVariant], gpu_types: Mapping[str, GpuType]
) -> Likeness | None:
    """Learn from library entries (GPU types by their key); None where they are too few to tell anything."""
    listed = [
        (entry, models[network], gpu_types[gpu_key(entry.gpu_type)])
        for entry in entries
        if gpu_key(entry.gpu_type) in gpu_types and (network := spelled(entry.model, models)) is not None
    ]
    if len(listed) < EXAMPLES_MIN:
        return None
    common = gpu_types[Counter(gpu_key(gpu_type.name) for _, _, gpu_type in listed).most_common(1)[0][0]]
    per_source = Counter(entry.source for entry, _, _ in listed)
    examples = tuple(
        Example(
            family=variant.family,
            network=variant.name,
            features=size_features(variant),
            parameters=np.array(entry.parameters) + roofline.shift(gpu_type, common),
            weight=per_source[entry.source] ** -0.5,
        )
        for entry, variant, gpu_type in listed
    )
    return Likeness(common=common, law=learned_law(examples))


def learned_law(examples: tuple[Example, ...]) -> Law:
    """The law that these examples follow."""
    features = np.stack([it.features for it in examples])
    parameters = np.stack([it.parameters for it in examples])
    weights = np.array([it.weight for it in examples])
    slopes = _slopes(features, parameters, weights)
    residuals = parameters - features @ slopes
    out_of_sample = residuals / (1.0 - _leverage(features, weights))[:, None]
    bare = Law(
        examples=examples,
        slopes=slopes,
        residuals=residuals,
        spread_by_size=np.eye(shape.COUNT),
        spread_in_family=np.eye(shape.COUNT),
    )
    offsets = [bare._family(it.family, it.features, it.network) for it in examples]
    related = [row for row, (_, names) in enumerate(offsets) if names]
    left = np.array([residuals[row] - offsets[row][0] for row in related]).reshape(-1, shape.COUNT)
    by_size = _spread(out_of_sample, weights) * _WIDER_BY_SIZE**2
    in_family = _spread(left, weights[related]) * _WIDER_IN_FAMILY**2 if len(related) >= EXAMPLES_MIN else by_size
    return Law(
        examples=examples,
        slopes=slopes,
        residuals=residuals,
        spread_by_size=by_size,
        spread_in_family=in_family,
    )


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
