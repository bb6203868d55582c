"""A curve compiled for answering: posterior at the nodes of a lattice, made monotone, ready to be looked up.

Nodes are usual ones and measured ones, within a budget. Latency is close to linear in batch, in 1/share and in
slowness, so the axes are these and interpolation is linear, which keeps what is monotone monotone. The posterior at
nodes is projected on what the form allows (a mixture of the tightest monotone surfaces above and below, so that no
answer ever moves against physics). A single measurement is appended in well under a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.models.belief import curve as curves
from solvers.models.belief import intake
from solvers.models.belief.curve import Curve, Sight, sight
from solvers.models.belief.intake import Points
from solvers.models.parts.lattice import monotone_bounds

Axes = tuple[Floats, Floats, Floats]
"""Batch, 1/share and slowness, each rising."""

_POWERS: Floats = np.exp2(np.arange(13, dtype=np.float64))
_BATCHES = np.unique(np.concatenate([_POWERS, 1.5 * _POWERS[1:-1]]))
_SHARES = np.concatenate([np.arange(1, 5), np.arange(5, 101, 5)]) / 100
_SHARES_CLOCKED = np.array([1, 2, 3, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100]) / 100
_SLOWNESSES = np.array([1.0, 1.3, 2.0, 4.0, 10.0])
_NODES_MAX = 3000
_AXIS_MAX = (36, 20, 12)
_ON_NODE = 1e-6


def axes_for(points: Points, *, shared: bool, clocked: bool) -> Axes:
    """The axes for a curve with these points; without shares or clocks, those have one node."""
    if not shared:
        return _axis(_BATCHES, points.batch, _NODES_MAX), np.ones(1), np.ones(1)
    if clocked:
        narrow = _axis(_SHARES_CLOCKED, points.share, _AXIS_MAX[1])
        slow = _axis(_SLOWNESSES, points.slowness, _AXIS_MAX[2])
        usual = _POWERS
    else:
        narrow, slow, usual = _axis(_SHARES, points.share, _AXIS_MAX[0]), np.ones(1), _BATCHES
    room = max(len(usual) + 2, _NODES_MAX // (len(narrow) * len(slow)))
    return _axis(usual, points.batch, room), np.sort(1 / narrow), slow


def _axis(usual: Floats, seen: Floats, limit: int) -> Floats:
    """Usual nodes and those measured; of too many, measured ones are thinned evenly."""
    own = np.unique(seen.round(9))
    room = max(2, limit - len(usual))
    if len(own) > room:
        own = own[np.unique(np.linspace(0, len(own) - 1, room).round().astype(np.int64))]
    return np.unique(np.concatenate([usual, own]))


def configurations_of(of: Axes, wanted: Whole | slice) -> tuple[Floats, Floats, Floats]:
    """Batch, share and slowness of some nodes."""
    grid = np.meshgrid(*of, indexing="ij")
    return grid[0].ravel()[wanted], 1 / grid[1].ravel()[wanted], grid[2].ravel()[wanted]


def nearest_nodes(of: Axes, points: Points) -> Whole:
    found = np.zeros(len(points), dtype=np.int64)
    for axis, wanted in zip(of, (points.batch, 1 / points.share, points.slowness), strict=True):
        found = found * len(axis) + np.abs(np.log(axis / wanted[:, None])).argmin(axis=1)
    return found


def interpolated(of: Axes, table: Floats, at: tuple[Floats, Floats, Floats]) -> tuple[Floats, Flags]:
    """Rows of a table with a row per node, interpolated at configurations (batch, share, slowness), and which of them
    are nodes. Beyond the largest batch the last step goes on; narrower shares and slower clocks than the last node's
    are answered as the last.
    """
    index, parts, strides = np.zeros(len(at[0]), dtype=np.int64), [], []
    on_node = np.ones(len(at[0]), dtype=np.bool_)
    sizes = [len(axis) for axis in of]
    for number, (axis, values) in enumerate(zip(of, (at[0], 1 / at[1], at[2]), strict=True)):
        if len(axis) == 1:
            continue
        cell = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
        part = (values - axis[cell]) / (axis[cell + 1] - axis[cell])
        on_node &= (np.abs(part) < _ON_NODE) | (np.abs(part - 1) < _ON_NODE)
        stride = int(np.prod(sizes[number + 1 :]))
        index += cell * stride
        parts.append(np.clip(part, 0.0, np.inf if number == 0 else 1.0))
        strides.append(stride)
    found = np.zeros((len(at[0]), table.shape[1]))
    for corner in range(2 ** len(parts)):
        weight, node = np.ones(len(at[0])), index
        for number, (part, stride) in enumerate(zip(parts, strides, strict=True)):
            upper = corner >> number & 1
            weight = weight * (part if upper else 1 - part)
            node = node + upper * stride
        found += weight[:, None] * table[node]
    return found, on_node


# --- The surface


_LOG_STD_MIN, _LOG_STD_MAX = 0.003, 1.5
_FAR_MAX = 1e6
_WILD = 9.0
_FREEDOM = 4.0
_CONFIRMATIONS, _SURE = 2, 0.01
_STEEP = 0.05
_LEANS = np.linspace(0.0, 1.0, 9)
_SAME = 1e-3
"""Grid steps within which two configurations are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """`homes` are the points' nearest nodes, all else has an entry per node. `given` and `late` hold what fitted and
    appended points told, a row for each; `own` is prior variance that no other node shares; `mean` and
    `variance` are of the logarithm, before projection; `smooth` is variance without what is peculiar to a node. `table`
    has value, std beside the node, distance, and by how much std is less at the very node.
    """

    curve: Curve
    axes: Axes
    at: tuple[Floats, Floats, Floats]
    homes: Whole
    sight: Sight
    given: Floats
    late: Floats
    own: Floats
    mean: Floats
    variance: Floats
    smooth: Floats
    widening: tuple[float, float]
    table: Floats
    far: Floats
    inside: Floats


def compiled(curve: Curve, widening: tuple[float, float], *, clocked: bool) -> Surface:
    """The surface of a curve. `widening` multiplies the standard deviation inside and outside the measured box."""
    fitted = curve.points.take(np.arange(curve.fitted))
    axes = axes_for(fitted, shared=curve.form.rises[1] != 0, clocked=clocked)
    at = configurations_of(axes, slice(None))
    seen = sight(curve, at)
    told = _Told(
        given=np.zeros((0, len(at[0]))), gained=np.zeros(len(at[0])), own=curves.lasting(seen.scatter),
        smooth=seen.variance(curve.kernel),
    )  # fmt: skip
    if len(fitted):
        told = _condition(curve, fitted, seen, axes)
    surface = Surface(
        curve=replace(curve, points=fitted, extra=curve.extra[: curve.fitted]),
        axes=axes,
        at=at,
        homes=nearest_nodes(axes, fitted),
        sight=seen,
        given=told.given,
        late=np.zeros((0, len(at[0]))),
        mean=seen.value + told.gained,
        own=told.own,
        variance=seen.variance(curve.kernel) + told.own - (told.given**2).sum(axis=0),
        smooth=told.smooth,
        widening=widening,
        table=np.zeros((0, 4)),
        far=intake.distance(at, fitted),
        inside=intake.within(at, fitted).astype(np.float64),
    )
    surface = _tabulated(surface)
    for row in range(curve.fitted, len(curve.points)):
        surface = appended(surface, curve.points.take(np.array([row])))
    return surface


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What fitted points tell the nodes: a row for each point, the change of mean, and the variances of `Surface`."""

    given: Floats
    gained: Floats
    own: Floats
    smooth: Floats


def _condition(curve: Curve, fitted: Points, seen: Sight, axes: Axes) -> _Told:
    """The mean follows the form at the curve's parameters and the residual about it, never the form's straight line,
    which may leave the form far behind; covariances follow both.
    """
    from scipy.linalg import cho_factor, cho_solve, solve_triangular

    there, extra = sight(curve, fitted.at), curve.extra[: curve.fitted]
    scatter = np.diag(curves.scattered(there.scatter, fitted.count) + extra)
    root = np.linalg.cholesky(there.covariance(there, curve.kernel) + scatter)
    given = solve_triangular(root, there.covariance(seen, curve.kernel), lower=True)
    smooth = seen.variance(curve.kernel) - (given**2).sum(axis=0)
    # What is peculiar to a configuration is shared by its points and its node.
    node = nearest_nodes(axes, fitted)
    same = intake.distance_between(configurations_of(axes, node), fitted.at) < _SAME
    own = curves.lasting(seen.scatter)
    own[node[same]] += curves.peculiar(extra)[same]
    shared = np.zeros((len(fitted), int(same.sum())))
    shared[np.flatnonzero(same), np.arange(shared.shape[1])] = own[node[same]]
    given[:, node[same]] += solve_triangular(root, shared, lower=True)
    unexplained = cho_factor(curves.covariance(curve.kernel, there.places, there.places) + scatter)
    weights = cho_solve(unexplained, fitted.log_value - there.value)
    gained = weights @ curves.covariance(curve.kernel, there.places, seen.places)
    gained[node[same]] += weights @ shared
    return _Told(given=given, gained=gained, own=own, smooth=smooth)


def _tabulated(surface: Surface) -> Surface:
    """Fill the table: project, widen, and turn logarithms into values."""
    shape = tuple(len(axis) for axis in surface.axes)
    free = surface.mean.reshape(shape)
    # Along the second axis 1/share rises, so what rises with share falls there.
    rises = surface.curve.form.rises
    above, below = monotone_bounds(free, (rises[0], -rises[1], rises[2]))
    bound = above + _lean(surface, (above, below)) * (below - above)
    moved = (bound - free).ravel()
    widening = np.where(surface.inside > 0, surface.widening[0], surface.widening[1])
    value, scatter = np.exp(bound.ravel()), surface.sight.scatter
    variances = (surface.smooth + scatter, surface.variance + curves.passing(scatter))
    beside, at_node = (
        value * np.clip(np.hypot(np.sqrt(np.maximum(variance, 0.0)) * widening, moved), _LOG_STD_MIN, _LOG_STD_MAX)
        for variance in variances
    )
    far = np.minimum(surface.far, _FAR_MAX)
    return replace(surface, table=np.stack([value, beside, far, np.maximum(beside - at_node, 0.0)], axis=1))


def _lean(surface: Surface, both: tuple[Floats, Floats]) -> float:
    """Where between the surfaces above and below the measured points lie: every mixture of the two is monotone."""
    above, below = both
    points, apart = surface.curve.points, float((above - below).max())
    if apart < _STEEP or not len(points):
        return 0.5
    high, low = above.ravel()[surface.homes], below.ravel()[surface.homes]
    errors = [np.abs(np.expm1(high + lean * (low - high) - points.log_value)).mean() for lean in _LEANS]
    return float(_LEANS[int(np.argmin(errors))])


def lookup(surface: Surface, at: tuple[Floats, Floats, Floats]) -> Floats:
    """Value, std and distance of every configuration, one row each."""
    found, on_node = interpolated(surface.axes, surface.table, at)
    found[:, 1] -= np.where(on_node, found[:, 3], 0.0)
    return found[:, :3]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """One more point, the node nearest to it, and by how much (of the logarithm) it surprises there."""

    point: Points
    node: int
    surprise: float


def _arrival(surface: Surface, point: Points) -> _Arrival:
    """A point beside its node is carried there as the surface slopes."""
    node = int(nearest_nodes(surface.axes, point)[0])
    slope = float(np.log(lookup(surface, point.at)[0, 0] / surface.table[node, 0]))
    return _Arrival(point=point, node=node, surprise=float(point.log_value[0] - surface.mean[node]) - slope)


def appended(surface: Surface, point: Points) -> Surface:
    """The surface after one more measurement. A wild one counts little, until it has been confirmed: then its
    configuration has changed.
    """
    arrival = _arrival(surface, point)
    node, squared = arrival.node, arrival.surprise**2
    scatter = float(curves.passing(surface.sight.scatter[node]) / point.count[0])
    usual = max(float(surface.variance[node]), 0.0) + scatter
    if squared < _WILD * usual:
        return _conditioned(surface, arrival, 0.0)
    here = surface.curve
    late = np.flatnonzero((surface.homes[here.fitted :] == node) & (here.extra[here.fitted :] > 0)) + here.fitted
    alike = (here.points.log_value[late] - point.log_value[0]) ** 2 < 2 * _WILD * max(scatter, _SURE**2)
    if alike.sum() < _CONFIRMATIONS:
        return _conditioned(surface, arrival, (squared - usual) / (1 + _FREEDOM))
    changed = np.zeros(len(surface.own))
    changed[node] = squared
    freed = replace(surface, own=surface.own + changed, variance=surface.variance + changed)
    return _conditioned(freed, arrival, 0.0)


def _conditioned(surface: Surface, arrival: _Arrival, extra: float) -> Surface:
    """Condition on one point, as if it were at its node with the same surprise."""
    node, point, here = arrival.node, arrival.point, surface.curve
    one = surface.sight.take(slice(node, node + 1))
    joint = surface.sight.covariance(one, here.kernel)[:, 0]
    joint -= surface.given[:, node] @ surface.given + surface.late[:, node] @ surface.late
    joint[node] = max(joint[node] + surface.own[node], 0.0)
    total = float(joint[node] + curves.passing(one.scatter)[0] / point.count[0]) + extra
    root = np.sqrt(max(total, 1e-12))
    gain = joint / root
    # The smooth part of the node itself learns what remains after its own peculiarity.
    gain_smooth = gain.copy()
    gain_smooth[node] = min(gain[node], surface.smooth[node] / root)
    far = np.minimum(surface.far, intake.distance(surface.at, point))
    grown = replace(
        surface,
        curve=replace(here, points=here.points.joined(point), extra=np.append(here.extra, extra)),
        homes=np.append(surface.homes, node),
        late=np.concatenate([surface.late, gain[None]]),
        mean=surface.mean + gain * (arrival.surprise / root),
        variance=surface.variance - gain**2,
        smooth=np.maximum(surface.smooth - gain_smooth**2, 0.0),
        far=far,
        inside=np.maximum(surface.inside, (far < _SAME).astype(np.float64)),
    )
    return _tabulated(grown)
