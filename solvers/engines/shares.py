"""How neighbours on one device best divide it: the convex share programme, in closed form for all devices at once.

Owns the programme, its closed form and the rounding to whole steps. On every device

    minimise    sum over members  weight * (fixed_ms + work_ms / share)
    subject to  sum of shares <= room,  least <= share <= most,

so with the rates as weights the shares are those with the least total latency of all requests, `least` being what each
promise and each granted rate needs. The optimum is a water level: share = clip(sqrt(weight * work) * level), with one
level a device, found by bisection and then exactly from the members that no bound holds. `convex.Convex` solves the
same programme through a solver, as a check that shares no code with it. The slowdown among neighbours is taken as it is
(within `fixed_ms` and `work_ms`), so whoever changes shares by this has to judge the device again. It refuses to know
workloads and to move members between devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from solvers.engines.base import Flags, Floats, Whole
from solvers.errors import EngineError

TOLERANCE = 1e-9
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProgram:
    """Arrays are device x place; places that `present` leaves out hold nothing and count nothing. Shares are parts of a
    whole device.
    """

    weight: Floats
    """What a millisecond counts, 0 or more: the member's rate."""
    fixed_ms: Floats
    work_ms: Floats
    """Latency is `fixed_ms + work_ms / share`."""
    least: Floats
    """Above 0."""
    most: Floats
    room: Floats
    """By device: what may be handed out together."""
    present: Flags

    @property
    def pull(self) -> Floats:
        """weight * work, 0 where nobody is."""
        return np.where(self.present, self.weight * self.work_ms, 0.0)

    @property
    def feasible(self) -> Flags:
        """Devices whose members all get their least."""
        crossed = (self.present & (self.least > self.most + TOLERANCE)).any(axis=1)
        needed = np.where(self.present, self.least, 0.0).sum(axis=1)
        return np.asarray(~crossed & (needed <= self.room + TOLERANCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAnswer:
    """Shares of members, 0 at empty places; `nan` on devices that are not feasible."""

    share: Floats
    feasible: Flags
    total: Floats
    """By device: sum of weight * latency."""


class ShareEngine(Protocol):
    """What divides."""

    def divide(self, program: ShareProgram) -> Floats:
        """Shares of the members of feasible devices; what it says elsewhere does not count."""
        ...


def shares(program: ShareProgram, engine: ShareEngine | None = None) -> ShareAnswer:
    """The best shares of every device, by the closed form unless told otherwise. Raises EngineError for nonsense."""
    _refuse_nonsense(program)
    feasible = program.feasible
    divided = (engine or ClosedForm()).divide(program)
    kept = program.present & feasible[:, None]
    share = np.where(kept, np.clip(divided, program.least, np.maximum(program.most, program.least)), 0.0)
    share = np.where(program.present & ~kept, np.nan, share)
    return ShareAnswer(share=share, feasible=feasible, total=total(program, share))


def total(program: ShareProgram, share: Floats) -> Floats:
    """Sum of weight * latency by device."""
    latency = program.fixed_ms + program.work_ms / np.where(program.present, share, 1.0)
    return np.asarray(np.where(program.present, program.weight * latency, 0.0).sum(axis=1))


class ClosedForm:
    """See the module."""

    def divide(self, program: ShareProgram) -> Floats:
        """By water level."""
        slope = np.sqrt(program.pull)
        low = np.where(program.present, program.least, 0.0)
        high = np.where(program.present & (slope > 0), program.most, low)
        # At this level everybody has the most.
        rising = np.where(slope > 0, slope, 1.0)
        above = np.where(slope > 0, high / rising, 0.0).max(axis=1, initial=0.0)
        below = np.zeros(len(above))
        for _ in range(_HALVINGS):
            level = (below + above) / 2
            over = np.clip(slope * level[:, None], low, high).sum(axis=1) > program.room
            above, below = np.where(over, level, above), np.where(over, below, level)
        wanted = slope * below[:, None]
        return self._exact(program, slope, wanted, (low, high))

    @staticmethod
    def _exact(program: ShareProgram, slope: Floats, wanted: Floats, bounds: tuple[Floats, Floats]) -> Floats:
        """The level once it is known whom no bound holds: they divide what the others leave."""
        low, high = bounds
        free = (wanted > low) & (wanted < high)
        held = np.where(free, 0.0, np.clip(wanted, low, high)).sum(axis=1)
        pulls = np.where(free, slope, 0.0).sum(axis=1)
        level = np.maximum(program.room - held, 0.0) / np.where(pulls > 0, pulls, 1.0)
        return np.clip(np.where(free, slope * level[:, None], wanted), low, high)


def least_share(fixed_ms: Floats, work_ms: Floats, limit_ms: Floats) -> Floats:
    """The smallest share at which latency is within the limit; `inf` where no share will do."""
    spare = limit_ms - fixed_ms
    return np.where(spare > 0, work_ms / np.where(spare > 0, spare, 1.0), np.inf)


def hyperbola(share: Floats, latency_ms: Floats) -> tuple[Floats, Floats]:
    """`fixed_ms` and `work_ms` (both 0 or more) nearest to measured latencies (anything x share; `inf` is skipped)."""
    known = np.isfinite(latency_ms)
    inverse, seen = 1 / share, np.where(known, latency_ms, 0.0)
    count = np.maximum(known.sum(axis=-1), 1)
    mean_inverse = (known * inverse).sum(axis=-1) / count
    mean_seen = seen.sum(axis=-1) / count
    spread = known * (inverse - mean_inverse[..., None])
    square = (spread**2).sum(axis=-1)
    work = (spread * (seen - mean_seen[..., None])).sum(axis=-1) / np.where(square > 0, square, 1.0)
    # A line that crosses zero is drawn again through zero, one that falls is flat.
    through = (seen * inverse).sum(axis=-1) / np.maximum((known * inverse**2).sum(axis=-1), TOLERANCE)
    work = np.clip(work, 0.0, through)
    return np.maximum(mean_seen - work * mean_inverse, 0.0), work


def whole_shares(program: ShareProgram, answer: ShareAnswer, step_pct: int = 1) -> tuple[Whole, Flags]:
    """The best shares in whole steps of percent, and the devices where such shares exist; 0 elsewhere. Exact: the
    programme is separable and convex, so where no single step is better with another member, nothing is better.
    """
    unit = 100 / step_pct
    low = np.where(program.present, np.ceil(program.least * unit - TOLERANCE), 0.0)
    high = np.where(program.present, np.floor(program.most * unit + TOLERANCE), 0.0)
    room = np.floor(program.room * unit + TOLERANCE)
    feasible = np.asarray(answer.feasible & (low <= high).all(axis=1) & (low.sum(axis=1) <= room))
    steps = np.clip(np.floor(np.nan_to_num(answer.share) * unit + TOLERANCE), low, high)
    steps = np.where(feasible[:, None], steps, 0.0)
    low, high = (np.where(feasible[:, None], side, 0.0) for side in (low, high))
    while True:
        moved = _step(program.pull, steps, (low, high), room)
        if np.array_equal(moved, steps):
            return (steps * step_pct).astype(np.int64), feasible
        steps = moved


def _step(pull: Floats, steps: Floats, bounds: tuple[Floats, Floats], room: Floats) -> Floats:
    """On every device one step given, taken or moved, whichever it needs next."""
    low, high = bounds
    device = np.arange(len(steps))
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(steps < high, pull / steps - pull / (steps + 1), -np.inf)
        loss = np.where(steps > low, pull / (steps - 1) - pull / steps, np.inf)
    taker, giver = gain.argmax(axis=1), loss.argmin(axis=1)
    spare = room - steps.sum(axis=1)
    most, least = gain[device, taker], loss[device, giver]
    moves = (spare == 0) & (most > least * (1 + TOLERANCE)) & (taker != giver)
    gives = ((spare > 0) & (most > 0)) | moves
    takes = (spare < 0) | moves
    moved = steps.copy()
    moved[device, taker] += gives
    moved[device, giver] -= takes
    return moved


def _refuse_nonsense(program: ShareProgram) -> None:
    arrays = (program.weight, program.fixed_ms, program.work_ms, program.least, program.most, program.present)
    shapes = {item.shape for item in arrays}
    if len(shapes) != 1 or program.weight.ndim != 2 or program.room.shape != program.weight.shape[:1]:
        raise EngineError("the share programme's arrays do not fit each other", engine="shares")
    members = np.stack(arrays[:-1])[:, program.present]
    if not np.isfinite(members).all() or not np.isfinite(program.room).all():
        raise EngineError("a share programme is made of finite numbers", engine="shares")
    if (members[:3] < 0).any() or (members[3] <= 0).any():
        raise EngineError("weights and latencies are not negative, and nobody runs on no share", engine="shares")
