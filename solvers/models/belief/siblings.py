"""What the models measured on a GPU type say of one more there.

They have three voices, surest first: the library's entry, moved as the other models differ here from theirs, joined
with the size law; the size law among the others alone; what all of them have in common. The caller leaves out the model
itself, so that no model's prior contains its own measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.workload import ModelVariant
from solvers.models.base import Origin
from solvers.models.belief.forms import ShapeFit, ShapePrior
from solvers.models.belief.likeness import EXAMPLES_MIN, Example, learned_law, size_features
from solvers.models.belief.transfer import SOFTWARE, entry_prior
from solvers.models.library import LibraryEntry

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
