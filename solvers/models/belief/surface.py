"""A curve compiled for answering: posterior at the nodes of a lattice, made monotone, ready to be looked up.

The posterior at nodes is projected on what the form allows (a mixture of the tightest monotone surfaces above and
below, so that no answer ever moves against physics). A single measurement is appended in well under a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.models.belief import nodes, residual
from solvers.models.belief import points as measured
from solvers.models.belief.curve import Curve, Sight, sight
from solvers.models.belief.points import Points

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
    axes: nodes.Axes
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
    axes = nodes.axes(fitted, shared=curve.form.rises[1] != 0, clocked=clocked)
    at = nodes.configurations(axes, slice(None))
    seen = sight(curve, at)
    told = _Told(
        given=np.zeros((0, len(at[0]))), gained=np.zeros(len(at[0])), own=residual.lasting(seen.scatter),
        smooth=seen.variance(curve.kernel),
    )  # fmt: skip
    if len(fitted):
        told = _condition(curve, fitted, seen, axes)
    surface = Surface(
        curve=replace(curve, points=fitted, extra=curve.extra[: curve.fitted]),
        axes=axes,
        at=at,
        homes=nodes.nearest(axes, fitted),
        sight=seen,
        given=told.given,
        late=np.zeros((0, len(at[0]))),
        mean=seen.value + told.gained,
        own=told.own,
        variance=seen.variance(curve.kernel) + told.own - (told.given**2).sum(axis=0),
        smooth=told.smooth,
        widening=widening,
        table=np.zeros((0, 4)),
        far=measured.distance(at, fitted),
        inside=measured.within(at, fitted).astype(np.float64),
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


def _condition(curve: Curve, fitted: Points, seen: Sight, axes: nodes.Axes) -> _Told:
    """The mean follows the form at the curve's parameters and the residual about it, never the form's straight line,
    which may leave the form far behind; covariances follow both.
    """
    from scipy.linalg import cho_factor, cho_solve, solve_triangular

    there, extra = sight(curve, fitted.at), curve.extra[: curve.fitted]
    scatter = np.diag(residual.scattered(there.scatter, fitted.count) + extra)
    root = np.linalg.cholesky(there.covariance(there, curve.kernel) + scatter)
    given = solve_triangular(root, there.covariance(seen, curve.kernel), lower=True)
    smooth = seen.variance(curve.kernel) - (given**2).sum(axis=0)
    # What is peculiar to a configuration is shared by its points and its node.
    node = nodes.nearest(axes, fitted)
    same = measured.distance_between(nodes.configurations(axes, node), fitted.at) < _SAME
    own = residual.lasting(seen.scatter)
    own[node[same]] += residual.peculiar(extra)[same]
    shared = np.zeros((len(fitted), int(same.sum())))
    shared[np.flatnonzero(same), np.arange(shared.shape[1])] = own[node[same]]
    given[:, node[same]] += solve_triangular(root, shared, lower=True)
    unexplained = cho_factor(residual.covariance(curve.kernel, there.places, there.places) + scatter)
    weights = cho_solve(unexplained, fitted.log_value - there.value)
    gained = weights @ residual.covariance(curve.kernel, there.places, seen.places)
    gained[node[same]] += weights @ shared
    return _Told(given=given, gained=gained, own=own, smooth=smooth)


def _tabulated(surface: Surface) -> Surface:
    """Fill the table: project, widen, and turn logarithms into values."""
    shape = tuple(len(axis) for axis in surface.axes)
    free = surface.mean.reshape(shape)
    # Along the second axis 1/share rises, so what rises with share falls there.
    rises = surface.curve.form.rises
    above, below = nodes.bounds(free, (rises[0], -rises[1], rises[2]))
    bound = above + _lean(surface, (above, below)) * (below - above)
    moved = (bound - free).ravel()
    widening = np.where(surface.inside > 0, surface.widening[0], surface.widening[1])
    value, scatter = np.exp(bound.ravel()), surface.sight.scatter
    variances = (surface.smooth + scatter, surface.variance + residual.passing(scatter))
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
    found, on_node = nodes.lookup(surface.axes, surface.table, at)
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
    node = int(nodes.nearest(surface.axes, point)[0])
    slope = float(np.log(lookup(surface, point.at)[0, 0] / surface.table[node, 0]))
    return _Arrival(point=point, node=node, surprise=float(point.log_value[0] - surface.mean[node]) - slope)


def appended(surface: Surface, point: Points) -> Surface:
    """The surface after one more measurement. A wild one counts little, until it has been confirmed: then its
    configuration has changed.
    """
    arrival = _arrival(surface, point)
    node, squared = arrival.node, arrival.surprise**2
    scatter = float(residual.passing(surface.sight.scatter[node]) / point.count[0])
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
    one = _at_node(surface.sight, node)
    joint = surface.sight.covariance(one, here.kernel)[:, 0]
    joint -= surface.given[:, node] @ surface.given + surface.late[:, node] @ surface.late
    joint[node] = max(joint[node] + surface.own[node], 0.0)
    total = float(joint[node] + residual.passing(one.scatter)[0] / point.count[0]) + extra
    root = np.sqrt(max(total, 1e-12))
    gain = joint / root
    # The smooth part of the node itself learns what remains after its own peculiarity.
    gain_smooth = gain.copy()
    gain_smooth[node] = min(gain[node], surface.smooth[node] / root)
    far = np.minimum(surface.far, measured.distance(surface.at, point))
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


def _at_node(seen: Sight, node: int) -> Sight:
    rows = slice(node, node + 1)
    places = seen.places._replace(
        log_batch=seen.places.log_batch[rows],
        log_share=seen.places.log_share[rows],
        log_slowness=seen.places.log_slowness[rows],
        share=seen.places.share[rows],
        weight=seen.places.weight[rows],
    )
    return Sight(
        value=seen.value[rows],
        mean=seen.mean[rows],
        doubt=seen.doubt[rows],
        places=places,
        scatter=seen.scatter[rows],
    )
