"""How far off each rung of transfer is on what it has not seen, and whether its intervals hold: `python -m
benchmarks.transfer`.

Owns the honest splits: a GPU type left out whole (the same network and software on others is known), a network left
out (its family stays), a family left out (only size stays), a source left out (other software on another host). For
every cell left out it compares log latency with the prior's linearised belief, and prints the median factor off, MAPE
and the part of cells inside the 80 % and 95 % intervals. Weight is by model, not by cell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from app.library import load_gpu_types, load_models
from benchmarks.library_sources import OWN, Measured, Source, entry, fitted, measured
from benchmarks.sources.rows import SourceMissingError, data_folder
from solvers.models.base import Facts, Origin
from solvers.models.belief import forms
from solvers.models.belief.forms import LATENCY, ShapePrior
from solvers.models.belief.transfer import Scaling
from solvers.models.library import Library, LibraryEntry, spelled

DRAWS = 6
"""Of who else was measured."""
NOISE = 0.04
"""Standard deviation of the logarithm that a shape leaves when it is fitted (the library's mean error)."""
MODELS = {model.name: model for model in load_models()}
GPU_TYPES = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}


@dataclass(frozen=True)
class Score:
    """Of one model's cells: mean absolute log error and relative error, and parts inside the intervals."""

    factor: float
    mape: float
    inside_80: float
    inside_95: float


def score(item: Measured, prior: ShapePrior) -> Score:
    """Compare a belief with what was measured."""
    cells = item.cells
    at = (cells.batch, cells.share, cells.slowness)
    slopes = LATENCY.evaluate(prior.mean, *at).slope
    error = forms.log_latency(prior.mean, *at) - np.log(cells.latency_ms)
    std = np.sqrt(np.einsum("ij,jk,ik->i", slopes, prior.covariance, slopes) + NOISE**2)
    return Score(
        factor=float(np.mean(np.abs(error))),
        mape=float(np.mean(np.abs(np.expm1(error)))),
        inside_80=float(np.mean(np.abs(error) < 1.2816 * std)),
        inside_95=float(np.mean(np.abs(error) < 1.96 * std)),
    )


def report(title: str, scores: Iterable[Score]) -> None:
    """One line of the table."""
    listed = list(scores)
    columns = [np.array([getattr(item, name) for item in listed]) for name in Score.__dataclass_fields__]
    print(
        f"{title:44} {len(listed):4}   x{np.exp(np.median(columns[0])):.2f}  {100 * np.mean(columns[1]):6.1f} %"
        f"  {100 * np.mean(columns[2]):6.1f} %  {100 * np.mean(columns[3]):6.1f} %"
    )


Pairs = list[tuple[Measured, LibraryEntry]]


def _facts(entries: Iterable[LibraryEntry]) -> Facts:
    library = Library(
        version="held out",
        shape_version=forms.SHAPE_VERSION,
        population_mean=(0.0,) * forms.COUNT,
        population_covariance=((0.0,) * forms.COUNT,) * forms.COUNT,
        entries=tuple(entries),
    )
    return Facts(gpu_types=GPU_TYPES, models=MODELS, library=library)


def _network(name: str) -> str:
    return spelled(name, MODELS) or name


def _family(name: str) -> str:
    network = spelled(name, MODELS)
    return name if network is None else MODELS[network].family


def same_model_elsewhere(pairs: Pairs, *, here: bool) -> Iterator[Score]:
    """Each model on each GPU type from the same model and software on the others."""
    for item, _ in pairs:
        others = [it for it in pairs if it[0].model == item.model and it[0].gpu_type != item.gpu_type]
        if not others or item.source.words != others[0][0].source.words:
            continue
        known = {(it.model, it.gpu_type): _exact(kept) for it, kept in others} if here else {}
        prior = Scaling.of(_facts([] if here else [kept for _, kept in others])).prior(item.model, item.gpu_type, known)
        if prior is not None:
            yield score(item, prior)


def _exact(kept: LibraryEntry) -> ShapePrior:
    return ShapePrior(
        mean=np.array(kept.parameters),
        covariance=np.diag(np.square(kept.spread)),
        origin=Origin.MEASURED,
        source="measured",
    )


def left_out(pairs: Pairs, alike: Callable[[Measured, Measured], bool]) -> Iterator[Score]:
    """Each model from everything that is not `alike`; nothing is measured here."""
    for item, _ in pairs:
        if spelled(item.model, MODELS) is None:
            continue
        prior = Scaling.of(_facts(kept for it, kept in pairs if not alike(it, item))).prior(
            item.model, item.gpu_type, {}
        )
        if prior is not None:
            yield score(item, prior)


def beside_others(pairs: Pairs, count: int, alike: Callable[[Measured, Measured], bool]) -> Iterator[Score]:
    """Like `left_out` by source, but `count` other models of the same source have been measured here."""
    for number, (item, _) in enumerate(pairs):
        if spelled(item.model, MODELS) is None:
            continue
        mates = [it for it in pairs if it[0].source is item.source and not alike(it[0], item)]
        picked = np.random.default_rng(number).permutation(len(mates))[:count]
        known = {(mates[index][0].model, mates[index][0].gpu_type): _exact(mates[index][1]) for index in picked}
        rest = _facts(kept for it, kept in pairs if it.source is not item.source and not alike(it, item))
        prior = Scaling.of(rest).prior(item.model, item.gpu_type, known)
        if len(known) == count and prior is not None:
            yield score(item, prior)


def known_elsewhere(pairs: Pairs, count: int, only: Source | None = None) -> Iterator[Score]:
    """Each model whose network other sources know on other GPU types alone, beside `count` others measured here."""
    for number, (item, _) in enumerate(it for it in pairs if only is None or it[0].source is only):
        rest = [kept for it, kept in pairs if it.source is not item.source]
        types = {kept.gpu_type for kept in rest if _network(kept.model) == _network(item.model)}
        mates = [
            it
            for it in pairs
            if it[0].source is item.source
            and it[0].gpu_type == item.gpu_type
            and _network(it[0].model) != _network(item.model)
        ]
        if not types or item.gpu_type in types or len(mates) < count:
            continue
        for draw in range(DRAWS):
            picked = np.random.default_rng([number, draw]).permutation(len(mates))[:count]
            known = {(mates[index][0].model, mates[index][0].gpu_type): _exact(mates[index][1]) for index in picked}
            prior = Scaling.of(_facts(rest)).prior(item.model, item.gpu_type, known)
            if prior is not None:
                yield score(item, prior)


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__).parse_args()
    try:
        items = measured(data_folder())
    except SourceMissingError as error:
        print(error, file=sys.stderr)
        return 2
    _, fits = fitted(items)
    pairs = [(item, entry(item, fit)) for item, fit in fits]
    print(f"{'known is':44} {'n':>4}   off    MAPE      in 80 %   in 95 %")
    report("the model here, on other GPU types", same_model_elsewhere(pairs, here=True))
    report("the model in the library, on other GPU types", same_model_elsewhere(pairs, here=False))
    report(
        "the network with other software or host",
        left_out(pairs, lambda one, other: one.model == other.model and one.source is other.source),
    )
    report("the family", left_out(pairs, lambda one, other: _network(one.model) == _network(other.model)))
    report(
        "the family, from other sources only",
        left_out(pairs, lambda one, other: _network(one.model) == _network(other.model) or one.source is other.source),
    )
    report("the size", left_out(pairs, lambda one, other: _family(one.model) == _family(other.model)))
    report(
        "the size, from other sources only",
        left_out(pairs, lambda one, other: _family(one.model) == _family(other.model) or one.source is other.source),
    )
    for count in (1, 4):
        report(
            f"the same and {count} other model(s) here",
            beside_others(pairs, count, lambda one, other: _family(one.model) == _family(other.model)),
        )
    for count in (0, 1, 4):
        report(f"the network elsewhere and {count} other model(s) here", known_elsewhere(pairs, count))
    for count in (0, 1, 3):
        report(f"- of them on our own boards, {count} other(s) here", known_elsewhere(pairs, count, only=OWN))
    return 0


if __name__ == "__main__":
    sys.exit(main())
