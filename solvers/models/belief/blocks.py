"""A Gaussian belief about weights that lie in named blocks: those all rows share and those of single names.

Mean and covariance are joint; blocks are added when a name is first met. Rows are learned exactly, all at once with the
noise estimated, or a few on top. Blocks never met have their prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.errors import InputError

Prior = Callable[[str], tuple[Floats, Floats]]
"""Mean and standard deviation of the weights of a block, by its name."""

_NOISE_PASSES = 10
_NOISE_ROWS = 10.0
"""The first guess of the noise counts like so many rows."""
_FAR = 4.0
"""Rows further off than so many standard deviations of the noise count for less, so that a few bad ones do not bend
everything.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Linear equations: `weights of blocks · features = target`, with known variance beside the noise. `parts` gives
    the rows and features of every block concerned; several parts may concern one row. `scale` multiplies the noise.
    """

    target: Floats
    scale: Floats
    variance: Floats
    parts: Sequence[tuple[str, np.ndarray[tuple[int], np.dtype[np.intp]], Floats]]

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The belief. `start` holds the first index of every block that was met."""

    prior: Prior
    noise: float
    start: Mapping[str, int]
    mean: Floats
    covariance: Floats

    @staticmethod
    def fresh(prior: Prior, noise: float) -> Blocks:
        """Nothing met. `noise` is the first guess of its standard deviation."""
        return Blocks(prior=prior, noise=noise, start={}, mean=np.zeros(0), covariance=np.zeros((0, 0)))

    def meeting(self, names: Sequence[str]) -> Blocks:
        """With these blocks, too."""
        new = [name for name in dict.fromkeys(names) if name not in self.start]
        if not new:
            return self
        start, priors = dict(self.start), [self.prior(name) for name in new]
        size = len(self.mean)
        for name, (mean, _) in zip(new, priors, strict=True):
            start[name] = size
            size += len(mean)
        covariance = np.zeros((size, size))
        known = len(self.mean)
        covariance[:known, :known] = self.covariance
        deviations = np.concatenate([deviation for _, deviation in priors])
        covariance[range(known, size), range(known, size)] = deviations**2
        mean = np.concatenate([self.mean, *(mean for mean, _ in priors)])
        return replace(self, start=start, mean=mean, covariance=covariance)

    def local(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Mean and covariance of these blocks' weights, one after another."""
        priors = [self.prior(name) for name in names]
        mean = np.concatenate([mean for mean, _ in priors])
        covariance = np.diag(np.concatenate([deviation for _, deviation in priors]) ** 2)
        here: list[int] = []
        there: list[int] = []
        offset = 0
        for name, (part, _) in zip(names, priors, strict=True):
            if name in self.start:
                here.extend(range(offset, offset + len(part)))
                there.extend(range(self.start[name], self.start[name] + len(part)))
            offset += len(part)
        if here:
            mean[here] = self.mean[there]
            covariance[np.ix_(here, here)] = self.covariance[np.ix_(there, there)]
        return mean, covariance

    def learned(self, rows: Rows, passes: int = _NOISE_PASSES) -> Blocks:
        """All rows at once on top of what is believed, the noise estimated from them in so many passes."""
        known = self.meeting([name for name, _, _ in rows.parts])
        design = known._design(rows)
        precision = np.linalg.inv(known.covariance)
        pull = precision @ known.mean
        noise, trust = known.noise, np.ones(len(rows))
        mean, covariance = known.mean, known.covariance
        for _ in range(passes):
            own = (noise * rows.scale) ** 2
            weight = trust / (own + rows.variance)
            gram = (design.T * weight) @ design
            covariance = np.asarray(np.linalg.inv(precision + gram), dtype=np.float64)
            mean = covariance @ (pull + design.T @ (weight * rows.target))
            off = rows.target - design @ mean
            # Where latency alone was only believed, part of what is off is that belief's. Rows far off count as far as
            # they are let, so that they do not hide behind the noise that they make.
            part = own / (own + rows.variance)
            near = np.minimum(np.abs(off), _FAR * np.sqrt(own + rows.variance))
            squares = float(((part * near / rows.scale) ** 2 + noise**2 * (1.0 - part)).sum())
            used = float((covariance * gram).sum())
            noise = float(
                np.sqrt((known.noise**2 * _NOISE_ROWS + squares) / (_NOISE_ROWS + max(float(len(rows)) - used, 0.0)))
            )
            away = np.abs(off) / np.sqrt((noise * rows.scale) ** 2 + rows.variance)
            trust = np.minimum(1.0, _FAR / np.maximum(away, 1e-9))
        return replace(known, noise=noise, mean=mean, covariance=(covariance + covariance.T) / 2.0)

    def updated(self, rows: Rows) -> Blocks:
        """A few rows on top, the noise as it is. Costs the square of the number of weights met."""
        known = self.meeting([name for name, _, _ in rows.parts])
        design = known._design(rows)
        spread = known.covariance @ design.T
        off = rows.target - design @ known.mean
        variance = (known.noise * rows.scale) ** 2 + rows.variance
        inside = np.einsum("ij,ji->i", design, spread)
        away = np.abs(off) / np.sqrt(inside + variance)
        variance = variance * np.maximum(1.0, away / _FAR) ** 2
        gain = np.linalg.solve(design @ spread + np.diag(variance), spread.T)
        covariance = known.covariance - spread @ gain
        return replace(known, mean=known.mean + off @ gain, covariance=(covariance + covariance.T) / 2.0)

    def _design(self, rows: Rows) -> Floats:
        design = np.zeros((len(rows), len(self.mean)))
        for name, where, features in rows.parts:
            start = self.start[name]
            np.add.at(design[:, start : start + features.shape[1]], where, features)
        return design

    def packed(self) -> list[float]:
        """The covariance's lower half, row by row."""
        return [float(value) for value in self.covariance[np.tril_indices(len(self.mean))]]

    @staticmethod
    def unpacked(prior: Prior, noise: float, names: Sequence[str], mean: Floats, packed: Floats) -> Blocks:
        """From the names in the order they were met, the mean and what `packed` gave. Raises InputError where they do
        not belong together.
        """
        try:
            sizes = [len(prior(name)[0]) for name in names]
        except (KeyError, ValueError) as error:
            raise InputError("this fitted model has weights of a kind that is not known here") from error
        size = sum(sizes)
        if len(mean) != size or len(packed) != size * (size + 1) // 2:
            raise InputError("the weights of this fitted model do not match its names")
        start = {name: sum(sizes[:index]) for index, name in enumerate(names)}
        covariance = np.zeros((size, size))
        covariance[np.tril_indices(size)] = packed
        covariance = covariance + np.tril(covariance, -1).T
        return Blocks(prior=prior, noise=noise, start=start, mean=mean, covariance=covariance)
