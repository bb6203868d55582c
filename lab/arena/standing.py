"""Where ours stands: on every scenario, against the best of the five founding policies and the best of all others.

Owns the rule by which ours is better, level or behind, and the count over scenarios. A rival counts if it keeps the
scenario's guard no worse than ours, but for noise, and leaves no service out; among these the best goal is the one to
beat. Where there is none, the best goal of all is looked at: ours is alone if it is no worse, else dearer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lab.arena.running import RunRecord
from lab.arena.stats import DUST, OURS, Summary, Values, Versus, gains, left_out, no_worse, summary, values_of, versus
from lab.outcome import About, Better
from solvers.domain.value import value

FOUNDING = ("hetsev", "inss", "morak", "mudi", "oltunes")
"""The five published policies the product implements; `inss_rl` and the like count as `inss`."""
CLEAR_GAIN_PCT = 10.0
LEVEL_PCT = 1.0
"""Nearer than this is level, whatever the test says."""
GUARD_POINTS = 0.1
"""Less than so much of a percentage is no difference of a guard."""


class RivalStanding(StrEnum):
    CLEARLY_BETTER = "clearly_better"
    """By 10 % or more."""
    BETTER = "better"
    LEVEL = "level"
    """Nearer than 1 %, or not told from noise."""
    BEHIND = "behind"
    AT_MORE_GUARD = "at_more_guard"
    """Level or better, but with more of the guard (violations, say) than the rival."""
    ALONE = "alone"
    """No rival keeps the guard as well as ours, and none of them is better in the goal."""
    DEARER = "dearer"
    """No rival keeps the guard as well as ours, but ours is behind in the goal for it."""


WON = (RivalStanding.CLEARLY_BETTER, RivalStanding.ALONE)


@value
class Duel:
    """Ours against one rival. Gains are of the rival's goal, positive where ours is better, with their interval."""

    against: str
    standing: RivalStanding
    goal: Summary
    guard: Summary | None
    gain_pct: float | None = None
    gain_pct_low: float | None = None
    gain_pct_high: float | None = None
    p: float | None = None


@value
class RivalPlace:
    scenario: str
    goal: str
    better: Better
    guard: str | None
    seeds: int
    ours: Summary
    ours_guard: Summary | None
    founding: Duel | None
    """Against the best of the five; None where none of them ran."""
    all_others: Duel | None


def places(records: Sequence[RunRecord], ours: str = OURS) -> tuple[RivalPlace, ...]:
    """Ours on every scenario where it ran to its end, by name."""
    by_scenario: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.outcome is not None:
            by_scenario.setdefault(record.scenario, []).append(record)
    found = (_place(by_scenario[name], ours) for name in sorted(by_scenario))
    return tuple(each for each in found if each is not None)


def won(duels: Sequence[Duel | None]) -> tuple[int, int, int]:
    """How many were clearly better or alone, how many level or better beside them, and how many there were."""
    real = [duel for duel in duels if duel is not None]
    clear = sum(duel.standing in WON for duel in real)
    kept = sum(duel.standing in (RivalStanding.BETTER, RivalStanding.LEVEL) for duel in real)
    return clear, kept, len(real)


def _place(records: Sequence[RunRecord], ours: str) -> RivalPlace | None:
    about = records[0].about
    values, better = values_of(records)
    own = values.get(ours, {})
    if about.goal not in own:
        return None
    rivals = [name for name in values if not name.startswith(OURS) and name != ours and about.goal in values[name]]
    founding = [name for name in rivals if _is_founding(name)]
    guard = about.guard if about.guard is not None and about.guard in own else None
    field = _Field(about=about, values=values, better=better, left_out=frozenset(left_out(records)))
    return RivalPlace(
        scenario=about.name,
        goal=about.goal,
        better=about.better,
        guard=guard,
        seeds=len(own[about.goal]),
        ours=_summary(own, about.goal),
        ours_guard=_summary(own, guard) if guard is not None else None,
        founding=_duel(field, ours, founding),
        all_others=_duel(field, ours, rivals),
    )


def _is_founding(label: str) -> bool:
    """`mudi`, `inss_rl`, `hetsev+greedy`, `morak hetsev.saturation=0.7`."""
    first = label.split("+", maxsplit=1)[0].split("@", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    return any(first == name or first.startswith(f"{name}_") for name in FOUNDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    about: About
    values: Values
    better: Mapping[str, Better]
    left_out: frozenset[str]
    """Contenders that left a service out."""


def _duel(field: _Field, ours: str, rivals: Sequence[str]) -> Duel | None:
    if not rivals:
        return None
    about, values, guard = field.about, field.values, field.about.guard
    own = values[ours]
    sign = 1.0 if about.better is Better.HIGHER else -1.0

    def keeps(one: str, other: str) -> bool:
        if one in field.left_out and other not in field.left_out:
            return False
        if guard is None or guard not in values[one] or guard not in values[other]:
            return True
        dust = GUARD_POINTS if guard.endswith("_pct") else DUST
        return no_worse(versus(values[one][guard], values[other][guard]), field.better[guard], dust)

    def worth(name: str) -> float:
        return sign * _summary(values[name], about.goal).mean

    fair = [name for name in rivals if keeps(name, ours)]
    rival = max(fair or rivals, key=lambda name: (worth(name), name))
    told = versus(own[about.goal], values[rival][about.goal])
    gain = gains(told, sign)
    standing = _standing(told, gain[0], sign)
    if not fair:
        standing = RivalStanding.DEARER if standing is RivalStanding.BEHIND else RivalStanding.ALONE
    elif standing is not RivalStanding.BEHIND and not keeps(ours, rival):
        standing = RivalStanding.AT_MORE_GUARD
    return Duel(
        against=rival,
        standing=standing,
        goal=_summary(values[rival], about.goal),
        guard=_summary(values[rival], guard) if guard is not None and guard in values[rival] else None,
        gain_pct=gain[0],
        gain_pct_low=gain[1],
        gain_pct_high=gain[2],
        p=told.p_t if told is not None else None,
    )


def _standing(told: Versus | None, gain_pct: float | None, sign: float) -> RivalStanding:
    """By the mean gain; what noise may explain is level: an interval of the paired difference that reaches zero."""
    if told is None or abs(told.difference) <= DUST:
        return RivalStanding.LEVEL
    if gain_pct is None:
        return RivalStanding.BETTER if sign * told.difference > 0.0 else RivalStanding.BEHIND
    noisy = (
        told.difference_low is not None
        and told.difference_high is not None
        and told.difference_low <= 0.0 <= told.difference_high
    )
    if abs(gain_pct) < LEVEL_PCT or (noisy and abs(gain_pct) < CLEAR_GAIN_PCT):
        return RivalStanding.LEVEL
    if gain_pct < 0.0:
        return RivalStanding.BEHIND
    return RivalStanding.CLEARLY_BETTER if gain_pct >= CLEAR_GAIN_PCT and not noisy else RivalStanding.BETTER


def _summary(own: Mapping[str, Mapping[int, float]], metric: str) -> Summary:
    return summary(list(own[metric].values()))
