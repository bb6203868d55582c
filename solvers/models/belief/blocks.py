"""A Gaussian belief about weights that lie in named blocks: those that many rows share, and those of few rows' own.

Shared blocks have one mean and covariance together. The others stand apart, in circles: names that met in a row are in
one circle, and what circles know of each other goes through the shared weights alone, which is exact. So what is kept
and computed grows with the number of pairs, not with its square. A circle's weights are `offset + slope · shared`, with
a covariance of their own about that. Rows are learned all at once with the noise estimated, or a few on top. Blocks
never met have their prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.parts.seen import floats_of, ints_of, names_of, part, read

Prior = Callable[[str], tuple[Floats, Floats]]
"""Mean and standard deviation of the weights of a block, by its name."""

Part = tuple[str, np.ndarray[tuple[int], np.dtype[np.intp]], Floats]

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
    the rows and features of every block concerned; several parts may concern one row, but all
    rows of a part are of one circle. `scale` multiplies the noise.
    """

    target: Floats
    scale: Floats
    variance: Floats
    parts: Sequence[Part]

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """Weights of the blocks in `place`: `offset + slope · (shared weights touched)`, with a covariance about that."""

    place: Mapping[str, range] = field(default_factory=dict)
    touched: Whole = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    offset: Floats = field(default_factory=lambda: np.zeros(0))
    slope: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    covariance: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def over(self, touched: Whole) -> Circle:
        """With a slope over these shared weights, among which its own are."""
        slope = np.zeros((len(self.offset), len(touched)))
        slope[:, np.searchsorted(touched, self.touched)] = self.slope
        return replace(self, touched=touched, slope=slope)

    @staticmethod
    def joined(circles: Sequence[Circle]) -> Circle:
        touched = np.unique(np.concatenate([circle.touched for circle in circles]))
        names = [(name, len(place)) for circle in circles for name, place in circle.place.items()]
        ends = np.cumsum([0, *(len(circle.offset) for circle in circles)])
        covariance = np.zeros((ends[-1], ends[-1]))
        for circle, first, end in zip(circles, ends, ends[1:], strict=False):
            covariance[first:end, first:end] = circle.covariance
        return Circle(
            place=_places(names),
            touched=touched,
            offset=np.concatenate([circle.offset for circle in circles]),
            slope=np.concatenate([circle.over(touched).slope for circle in circles]),
            covariance=covariance,
        )

    def to_plain(self) -> Plain:
        return {
            "names": list(self.place),
            "touched": self.touched.tolist(),
            "mean": self.offset.tolist(),
            "slope": self.slope.ravel().tolist(),
            "covariance": self.covariance[np.tril_indices(len(self.offset))].tolist(),
        }

    @staticmethod
    def from_plain(plain: Plain, prior: Prior, shared: int) -> Circle:
        """What `to_plain` wrote, beside so many shared weights. Raises InputError where names and numbers do not belong
        together.
        """
        mean, slope, packed = (read(plain, name, floats_of) for name in ("mean", "slope", "covariance"))
        touched = read(plain, "touched", ints_of)
        try:
            place = _places([(name, len(prior(name)[0])) for name in read(plain, "names", names_of)])
        except (KeyError, ValueError) as error:
            raise InputError("this fitted model has weights of a kind that is not known here") from error
        size = sum(len(each) for each in place.values())
        sizes = (len(mean), len(slope), len(packed))
        if sizes != (size, size * len(touched), size * (size + 1) // 2) or not np.isin(touched, range(shared)).all():
            raise InputError("the weights of this fitted model do not match its names")
        covariance = np.zeros((size, size))
        covariance[np.tril_indices(size)] = packed
        covariance += np.tril(covariance, -1).T
        slope = slope.reshape(size, len(touched))
        return Circle(place=place, touched=touched, offset=mean, slope=slope, covariance=covariance)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parcel:
    """Rows of one circle, as it is before them: features of its own weights and of the shared ones that it touches."""

    rows: Whole
    circle: Circle
    own: Floats
    shared: Floats

    def through(self, circle: Circle) -> Floats:
        """What shared weights mean for these rows, directly and through the circle's."""
        return np.asarray(self.shared + self.own @ circle.slope)

    def told(self, weight: Floats, target: Floats) -> _Said:
        """What the rows say, each counting by its weight (one over its variance)."""
        here, weight = self.circle, weight[self.rows]
        shared, rest = self.through(here), target[self.rows] - self.own @ here.offset
        weighted, heavy = (self.own * weight[:, None]).T, (shared * weight[:, None]).T
        covariance = _inverse(_inverse(here.covariance) + weighted @ self.own)
        gain, across = covariance @ weighted, weighted @ shared
        slope, offset = gain @ shared, gain @ rest
        return _Said(
            circle=replace(here, offset=here.offset + offset, slope=here.slope - slope, covariance=covariance),
            precision=heavy @ shared - across.T @ slope,
            pull=heavy @ rest - across.T @ offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A circle after its rows, and what they say of the shared weights that it touches."""

    circle: Circle
    precision: Floats
    pull: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The belief. `apart` says of a block's name whether it stands in a circle; `shared` holds all others that were
    met, `circles` the circle of every one that does.
    """

    prior: Prior
    apart: Callable[[str], bool]
    noise: float
    shared: Circle = field(default_factory=Circle)
    circles: Mapping[str, Circle] = field(default_factory=dict)

    def local(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Mean and covariance of these blocks' weights, one after another."""
        members: dict[int, tuple[Circle, list[int], list[int]]] = {}
        size = 0
        for name in names:
            home = self.shared if name in self.shared.place else self.circles.get(name) or self._fresh(name)
            _, here, there = members.setdefault(id(home), (home, [], []))
            there.extend(home.place[name])
            here.extend(range(size, size + len(home.place[name])))
            size += len(home.place[name])
        # Every weight as a line over shared ones, and what is its own about that.
        mean, covariance, slope = np.zeros(size), np.zeros((size, size)), np.zeros((size, len(self.shared.offset)))
        for home, here, there in members.values():
            if home is self.shared:
                slope[here, there] = 1.0
                continue
            rows, columns = np.array(here), np.array(there)
            mean[rows] = home.offset[columns]
            slope[rows[:, None], home.touched] = home.slope[columns]
            covariance[rows[:, None], rows] = home.covariance[columns[:, None], columns]
        used = np.flatnonzero(slope.any(axis=0))
        slope, common = slope[:, used], self.shared.covariance[np.ix_(used, used)]
        return mean + slope @ self.shared.offset[used], covariance + slope @ common @ slope.T

    def learned(self, rows: Rows) -> Blocks:
        """All rows at once on top of what is believed, the noise estimated from them in some passes."""
        known, parcels = self._parcels(rows)
        noise, trust = known.noise, np.ones(len(rows))
        found, start = known, _inverse(known.shared.covariance)
        for _ in range(_NOISE_PASSES):
            own = (noise * rows.scale) ** 2
            weight = trust / (own + rows.variance)
            found = known._heard([parcel.told(weight, rows.target) for parcel in parcels], start)
            mean, variance = found._foretold(parcels, len(rows))
            off = rows.target - mean
            # Where latency alone was only believed, part of what is off is that belief's. Rows far off count as far as
            # they are let, so that they do not hide behind the noise that they make.
            part = own / (own + rows.variance)
            near = np.minimum(np.abs(off), _FAR * np.sqrt(own + rows.variance))
            squares = float(((part * near / rows.scale) ** 2 + noise**2 * (1.0 - part)).sum())
            free = max(len(rows) - float(variance @ weight), 0.0)
            noise = float(np.sqrt((known.noise**2 * _NOISE_ROWS + squares) / (_NOISE_ROWS + free)))
            away = np.abs(off) / np.sqrt((noise * rows.scale) ** 2 + rows.variance)
            trust = np.minimum(1.0, _FAR / np.maximum(away, 1e-9))
        return replace(found, noise=noise)

    def without(self, rows: Rows, outs: Sequence[Flags]) -> list[tuple[Floats, Floats]]:
        """Of every set of rows left out: mean and standard deviation (without noise) that the other rows foretell."""
        known, parcels = self._parcels(rows)
        weight = 1.0 / ((known.noise * rows.scale) ** 2 + rows.variance)
        start, said = _inverse(known.shared.covariance), [parcel.told(weight, rows.target) for parcel in parcels]
        found = []
        for out in outs:
            kept, heard = np.where(out, 0.0, weight), list(said)
            concerned = [index for index, parcel in enumerate(parcels) if out[parcel.rows].any()]
            for index in concerned:
                heard[index] = parcels[index].told(kept, rows.target)
            mean, variance = known._heard(heard, start)._foretold([parcels[index] for index in concerned], len(rows))
            found.append((mean[out], np.sqrt(variance[out])))
        return found

    def updated(self, rows: Rows) -> Blocks:
        """A few rows on top, the noise as it is. Costs the square of the weights that are shared or in their circle."""
        known, parcels = self._parcels(rows)
        for parcel in parcels:
            known = known._updated(parcel, rows)
        return known

    def _updated(self, parcel: _Parcel, rows: Rows) -> Blocks:
        circle, common = parcel.circle, self.shared
        through, rest = parcel.through(circle), rows.target[parcel.rows] - parcel.own @ circle.offset
        spread, spread_common = circle.covariance @ parcel.own.T, common.covariance[:, circle.touched] @ through.T
        off = rest - through @ common.offset[circle.touched]
        variance = (self.noise * rows.scale[parcel.rows]) ** 2 + rows.variance[parcel.rows]
        own, whole = parcel.own @ spread, through @ spread_common[circle.touched]
        away = np.abs(off) / np.sqrt(np.diag(own + whole) + variance)
        own += np.diag(variance * np.maximum(1.0, away / _FAR) ** 2)
        gain, pull = np.linalg.solve(own, spread.T).T, np.linalg.solve(own + whole, spread_common.T)
        after = replace(
            circle,
            offset=circle.offset + gain @ rest,
            slope=circle.slope - gain @ through,
            covariance=_even(circle.covariance - gain @ spread.T),
        )
        moved = common.offset + off @ pull
        shared = replace(common, offset=moved, covariance=_even(common.covariance - spread_common @ pull))
        return replace(self, shared=shared, circles={**self.circles, **dict.fromkeys(after.place, after)})

    def _heard(self, said: Sequence[_Said], precision: Floats) -> Blocks:
        """After what all circles said; `precision` is that of the shared weights before."""
        pull, total = precision @ self.shared.offset, precision.copy()
        for one in said:
            total[np.ix_(one.circle.touched, one.circle.touched)] += one.precision
            pull[one.circle.touched] += one.pull
        covariance = _inverse(total)
        circles = {name: one.circle for one in said for name in one.circle.place}
        shared = replace(self.shared, offset=covariance @ pull, covariance=covariance)
        return replace(self, shared=shared, circles={**self.circles, **circles})

    def _foretold(self, parcels: Sequence[_Parcel], count: int) -> tuple[Floats, Floats]:
        """Mean and variance of rows (without noise), by the circles as they are now."""
        mean, variance = np.zeros(count), np.zeros(count)
        for parcel in parcels:
            circle = self.circles[next(iter(parcel.circle.place))] if parcel.circle.place else parcel.circle
            shared, touched = parcel.through(circle), circle.touched
            mean[parcel.rows] = shared @ self.shared.offset[touched] + parcel.own @ circle.offset
            common = self.shared.covariance[np.ix_(touched, touched)]
            both = ((shared, common), (parcel.own, circle.covariance))
            variance[parcel.rows] = sum(((side @ covariance) * side).sum(axis=1) for side, covariance in both)
        return mean, np.maximum(variance, 0.0)

    def _parcels(self, rows: Rows) -> tuple[Blocks, list[_Parcel]]:
        """With all shared blocks of these rows, and the rows by circle."""
        names = dict.fromkeys(name for name, _, _ in rows.parts if not self.apart(name))
        new = [self._fresh(name) for name in names if name not in self.shared.place]
        shared = Circle.joined([self.shared, *new])
        found = []
        for circle, parts in self._circles(rows):
            here = np.unique(np.concatenate([where for _, where, _ in parts]))
            met = [shared.place[name] for name, _, _ in parts if name in shared.place]
            touched = np.unique(np.concatenate([circle.touched, *met])).astype(np.int64)
            own, common = np.zeros((len(here), len(circle.offset))), np.zeros((len(here), len(touched)))
            for name, where, features in parts:
                apart = name in circle.place
                first = circle.place[name].start if apart else np.searchsorted(touched, shared.place[name].start)
                columns = (own if apart else common)[:, first : first + features.shape[1]]
                np.add.at(columns, np.searchsorted(here, where), features)
            found.append(_Parcel(rows=here, circle=circle.over(touched), own=own, shared=common))
        return replace(self, shared=shared), found

    def _circles(self, rows: Rows) -> Iterator[tuple[Circle, list[Part]]]:
        """Circles, in which names are that meet in a row, each with what is about its rows."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        circles = {name: self.circles.get(name) or self._fresh(name) for name, _, _ in rows.parts if self.apart(name)}
        names = dict.fromkeys(each for circle in circles.values() for each in circle.place)
        node = {name: len(rows) + index for index, name in enumerate(names)}
        ties = [(where, np.full(len(where), node[name])) for name, where, _ in rows.parts if name in node]
        ties += [(np.array([node[name]]), np.array([node[each]])) for name in circles for each in circles[name].place]
        ends = [np.concatenate([tie[side] for tie in ties] or [np.zeros(0)]) for side in (0, 1)]
        size = len(rows) + len(names)
        labels = connected_components(coo_array((np.ones(len(ends[0])), ends), shape=(size, size)), directed=False)[1]
        members: dict[int, dict[int, Circle]] = {}
        for name, circle in circles.items():
            members.setdefault(int(labels[node[name]]), {})[id(circle)] = circle
        parts: dict[int, list[Part]] = {}
        for each in rows.parts:
            label = int(labels[each[1][0]])
            parts.setdefault(label if label in members else -1, []).append(each)
        for label, about in parts.items():
            yield Circle.joined([*members[label].values()]) if label in members else Circle(), about

    def _fresh(self, name: str) -> Circle:
        mean, deviation = self.prior(name)
        place, slope = {name: range(len(mean))}, np.zeros((len(mean), 0))
        return Circle(place=place, offset=mean, slope=slope, covariance=np.diag(deviation**2))

    def to_plain(self) -> dict[str, Plain]:
        circles = {id(circle): circle for circle in self.circles.values()}
        shared = self.shared.to_plain()
        return {"noise": self.noise, "shared": shared, "circles": [circle.to_plain() for circle in circles.values()]}

    def with_plain(self, plain: Plain) -> Blocks:
        """What `to_plain` wrote, at this noise. Raises InputError for anything else."""
        shared = Circle.from_plain(part(plain, "shared"), self.prior, 0)
        found = [Circle.from_plain(each, self.prior, len(shared.offset)) for each in read(plain, "circles", list)]
        return replace(self, shared=shared, circles={name: circle for circle in found for name in circle.place})


def _places(sizes: Sequence[tuple[str, int]]) -> dict[str, range]:
    """Where blocks of such sizes lie, one after another."""
    ends = np.cumsum([size for _, size in sizes]).tolist()
    return {name: range(end - size, end) for (name, size), end in zip(sizes, ends, strict=True)}


def _inverse(covariance: Floats) -> Floats:
    return _even(np.asarray(np.linalg.inv(covariance), dtype=np.float64))


def _even(covariance: Floats) -> Floats:
    return np.asarray((covariance + covariance.T) / 2.0, dtype=np.float64)
