"""A curve compiled for answering: posterior at the nodes of a lattice, made monotone, and interpolated.

Owns the nodes, the projection on what the form allows (a mixture of the running highest and lowest, so that no answer
ever moves against physics), fast interpolation that keeps it, and the appending of a single measurement in well under a
millisecond. Latency is close to linear in batch, in 1/share and in slowness, so interpolation is linear in those. It
refuses to fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.models.base import Floats, Ints
from solvers.models.belief import points as measured
from solvers.models.belief import residual
from solvers.models.belief.curve import Curve, Sight, sight
from solvers.models.belief.points import Points

BATCHES = np.unique(np.concatenate([2.0 ** np.arange(13), 3 * 2.0 ** np.arange(11)]))
SHARES = np.concatenate([np.arange(1, 5), np.arange(5, 101, 5)]) / 100
SLOWNESSES = np.array([1.0, 1.15, 1.35, 1.6, 2.0, 3.0, 5.0, 10.0])
_AXIS_MAX = (64, 48, 16)
_LOG_STD_MAX = 1.5
_WILD = 9.0
_FREEDOM = 4.0
_STEEP = 0.05
_LEANS = np.linspace(0.0, 1.0, 9)
_SAME = 0.05
"""Grid steps within which two configurations are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """`axes` are batch, 1/share and slowness, rising; all else has an entry per node. `given` and `late` hold what
    fitted and appended points told, a row for each; `own` is prior variance that no other node shares; `mean` and
    `variance` are of the logarithm, before projection; `table` has the answer's value, std and distance.
    """

    curve: Curve
    axes: tuple[Floats, Floats, Floats]
    sight: Sight
    given: Floats
    late: Floats
    own: Floats
    mean: Floats
    variance: Floats
    widening: tuple[float, float]
    table: Floats
    far: Floats
    inside: Floats


def _axis(usual: Floats, seen: Floats, limit: int) -> Floats:
    """Usual nodes and those measured; of too many, measured ones are thinned evenly."""
    own = np.unique(seen)
    room = max(2, limit - len(usual))
    if len(own) > room:
        own = own[np.unique(np.linspace(0, len(own) - 1, room).round().astype(np.int64))]
    return np.unique(np.concatenate([usual, own]).round(9))


def nodes(points: Points, *, clocked: bool) -> tuple[Floats, Floats, Floats]:
    """The three axes for a curve with these points; without clocks, slowness has one node."""
    batches = _axis(BATCHES, points.batch, _AXIS_MAX[0])
    narrow = np.sort(1 / _axis(SHARES, points.share, _AXIS_MAX[1]))
    if not clocked:
        return batches, narrow, np.ones(1)
    return batches, narrow, _axis(SLOWNESSES, points.slowness, _AXIS_MAX[2])


def compiled(curve: Curve, widening: tuple[float, float], *, clocked: bool) -> Surface:
    """The surface of a curve. `widening` multiplies the standard deviation inside and outside the measured box."""
    fitted = curve.points.take(np.arange(curve.fitted))
    axes = nodes(fitted, clocked=clocked)
    at = _at(axes, slice(None))
    seen = sight(curve, at)
    given, gained = np.zeros((0, len(at[0]))), np.zeros(len(at[0]))
    own = residual.lasting(seen.scatter)
    if len(fitted):
        given, gained, peculiar = _condition(curve, fitted, (seen, axes))
        own += peculiar
    surface = Surface(
        curve=replace(curve, points=fitted, extra=curve.extra[: curve.fitted]),
        axes=axes,
        sight=seen,
        given=given,
        late=np.zeros((0, len(at[0]))),
        mean=seen.mean + gained,
        own=own,
        variance=seen.variance(curve.kernel) + own - (given**2).sum(axis=0),
        widening=widening,
        table=np.zeros((0, 3)),
        far=measured.distance(at, fitted),
        inside=measured.within(at, fitted).astype(np.float64),
    )
    surface = _tabulated(surface)
    for row in range(curve.fitted, len(curve.points)):
        surface = _appended(surface, curve.points.take(np.array([row])), float(curve.extra[row]))
    return surface


def _condition(curve: Curve, fitted: Points, to: tuple[Sight, tuple[Floats, ...]]) -> tuple[Floats, Floats, Floats]:
    """What the points tell the nodes: a row for each, the nodes' change of mean, and variance added to begin with."""
    from scipy.linalg import solve_triangular

    seen, axes = to
    there, extra = sight(curve, fitted.at), curve.extra[: curve.fitted]
    scatter = residual.scattered(there.scatter, fitted.count)
    total = there.covariance(there, curve.kernel) + np.diag(scatter + extra)
    across = there.covariance(seen, curve.kernel)
    # What is peculiar to a configuration is shared by its points and its node.
    node = _nearest(axes, fitted)
    same = measured.distance_between(_at(axes, node), fitted.at) < _SAME
    peculiar = residual.peculiar(extra)[same]
    across[np.flatnonzero(same), node[same]] += residual.lasting(there.scatter[same]) + peculiar
    added = np.zeros(across.shape[1])
    added[node[same]] = peculiar
    root = np.linalg.cholesky(total)
    given = solve_triangular(root, across, lower=True)
    told = solve_triangular(root, fitted.log_value - there.mean, lower=True)
    return given, told @ given, added


def _tabulated(surface: Surface) -> Surface:
    """Fill the table: project, widen, and turn logarithms into values."""
    shape = tuple(len(axis) for axis in surface.axes)
    free = surface.mean.reshape(shape)
    # Along the second axis 1/share rises, so what rises with share falls there.
    rises = surface.curve.form.rises
    above, below = bounds(free, (rises[0], -rises[1], rises[2]))
    bound = above + _lean(surface, (above, below)) * (below - above)
    moved = (bound - free).ravel()
    widening = np.where(surface.inside > 0, surface.widening[0], surface.widening[1])
    spread = np.sqrt(np.maximum(surface.variance, 0.0) + residual.passing(surface.sight.scatter)) * widening
    log_std = np.minimum(np.hypot(spread, moved), _LOG_STD_MAX)
    value = np.exp(bound.ravel())
    return replace(surface, table=np.stack([value, value * log_std, np.minimum(surface.far, 1e6)], axis=1))


def _lean(surface: Surface, both: tuple[Floats, Floats]) -> float:
    """Where between the surfaces above and below the measured points lie: every mixture of the two is monotone."""
    above, below = both
    points, apart = surface.curve.points, float((above - below).max())
    if apart < _STEEP or not len(points):
        return 0.5
    node = _nearest(surface.axes, points)
    high, low = above.ravel()[node], below.ravel()[node]
    errors = [np.abs(np.expm1(high + lean * (low - high) - points.log_value)).mean() for lean in _LEANS]
    return float(_LEANS[int(np.argmin(errors))])


def bounds(values: Floats, rises: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """The lowest monotone surface above and the highest below; both are the surface itself where it is monotone."""
    above, below = values, values
    for axis, way in enumerate(rises):
        if values.shape[axis] < 2:
            continue
        highest = np.flip(above, axis) if way < 0 else above
        lowest = below if way < 0 else np.flip(below, axis)
        highest = np.maximum.accumulate(highest, axis=axis)
        lowest = np.minimum.accumulate(lowest, axis=axis)
        above = np.flip(highest, axis) if way < 0 else highest
        below = lowest if way < 0 else np.flip(lowest, axis)
    return above, below


def lookup(surface: Surface, at: tuple[Floats, Floats, Floats]) -> Floats:
    """Value, std and distance of every configuration (one row each), interpolated between nodes."""
    low, part = [], []
    for axis, values in zip(surface.axes, (at[0], 1 / at[1], at[2]), strict=True):
        if len(axis) == 1:
            continue
        cell = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
        inside = (values - axis[cell]) / (axis[cell + 1] - axis[cell])
        low.append(cell)
        # Beyond the largest batch, the last step goes on; narrower shares and slower clocks than the last are the last.
        part.append(np.clip(inside, 0.0, 1.0 if low[1:] else np.inf))
    strides = [len(surface.axes[1]) * len(surface.axes[2]), len(surface.axes[2]), 1][: len(low)]
    base = sum((cell * stride for cell, stride in zip(low, strides, strict=True)), np.zeros(1, dtype=np.int64))
    found = np.zeros((len(at[0]), 3))
    for corner in range(2 ** len(low)):
        weight, index = np.ones(len(at[0])), base
        for axis_number, (share, stride) in enumerate(zip(part, strides, strict=True)):
            upper = corner >> axis_number & 1
            weight = weight * (share if upper else 1 - share)
            index = index + upper * stride
        found += weight[:, None] * surface.table[index]
    return found


def appended(surface: Surface, point: Points) -> Surface:
    """The surface after one more measurement; a wild one counts little."""
    node = int(_nearest(surface.axes, point)[0])
    scatter = float(residual.passing(surface.sight.scatter[node]) / point.count[0])
    wildness = _innovation(surface, node, point) ** 2 / (max(float(surface.variance[node]), 0.0) + scatter)
    weight = (wildness + _FREEDOM) / (1 + _FREEDOM)
    return _appended(surface, point, 2 * scatter * (weight - 1) if wildness > _WILD else 0.0)


def _nearest(axes: tuple[Floats, ...], points: Points) -> Ints:
    """Number of the node nearest to each point."""
    found = np.zeros(len(points), dtype=np.int64)
    for axis, wanted in zip(axes, (points.batch, 1 / points.share, points.slowness), strict=True):
        found = found * len(axis) + np.abs(np.log(axis / wanted[:, None])).argmin(axis=1)
    return found


def _innovation(surface: Surface, node: int, point: Points) -> float:
    """By how much (of the logarithm) the point differs from what the nearest node says, carried to the point's place as
    the surface slopes there.
    """
    slope = np.log(lookup(surface, point.at)[0, 0] / surface.table[node, 0])
    return float(point.log_value[0] - surface.mean[node] - slope)


def _appended(surface: Surface, point: Points, extra: float) -> Surface:
    """Condition on one point, as if it were at the nearest node with the same surprise."""
    node, kernel = int(_nearest(surface.axes, point)[0]), surface.curve.kernel
    one = _at_node(surface.sight, node)
    joint = surface.sight.covariance(one, kernel)[:, 0]
    joint -= surface.given[:, node] @ surface.given + surface.late[:, node] @ surface.late
    joint[node] = max(joint[node] + surface.own[node], 0.0)
    total = float(joint[node] + residual.passing(one.scatter)[0] / point.count[0]) + extra
    gain = joint / np.sqrt(max(total, 1e-12))
    here = surface.curve
    far = np.minimum(surface.far, measured.distance(_at(surface.axes, slice(None)), point))
    grown = replace(
        surface,
        curve=replace(here, points=here.points.joined(point), extra=np.append(here.extra, extra)),
        late=np.concatenate([surface.late, gain[None]]),
        mean=surface.mean + gain * (_innovation(surface, node, point) / np.sqrt(max(total, 1e-12))),
        variance=surface.variance - gain**2,
        far=far,
        inside=np.maximum(surface.inside, (far < _SAME).astype(np.float64)),
    )
    return _tabulated(grown)


def _at_node(seen: Sight, node: int) -> Sight:
    rows = slice(node, node + 1)
    places = seen.places._replace(
        log_batch=seen.places.log_batch[rows],
        log_share=seen.places.log_share[rows],
        log_slowness=seen.places.log_slowness[rows],
        share=seen.places.share[rows],
        weight=seen.places.weight[rows],
    )
    return Sight(mean=seen.mean[rows], doubt=seen.doubt[rows], places=places, scatter=seen.scatter[rows])


def _at(axes: tuple[Floats, ...], wanted: Ints | slice) -> tuple[Floats, Floats, Floats]:
    """Batch, share and slowness of some nodes."""
    grid = np.meshgrid(*axes, indexing="ij")
    return grid[0].ravel()[wanted], 1 / grid[1].ravel()[wanted], grid[2].ravel()[wanted]
