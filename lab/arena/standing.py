"""Where ours stands: on every scenario and family of scenarios, against the best of the five founding policies and the
best of all others.

Owns the rule by which ours is better, level or behind, and the count over scenarios. Whatever speaks for ours must be
shown: a gain by its interval, a guard within the margin. A rival counts unless it is shown to break the scenario's
guard beside ours, or leaves a service out; among these the best goal is the one to beat. Where there is none, the best
goal of all is looked at: ours is alone if it is no worse, else dearer. What one seed or wide intervals leave open is
untold. A family is what the first word of a scenario's name says: near-copies of one scenario count once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from lab.arena.running import RunRecord
from lab.arena.stats import (
    DUST,
    OURS,
    GuardKept,
    Summary,
    Values,
    Versus,
    guard_kept,
    in_percent,
    left_out,
    log_ratios,
    summary,
    turned,
    values_of,
    versus,
)
from lab.outcome import About, Better
from solvers.domain.value import value

FOUNDING = ("hetsev", "inss", "morak", "mudi", "oltunes")
"""The five published policies the product implements; `inss_rl` and the like count as `inss`."""
CLEAR_GAIN_PCT = 10.0
LEVEL_PCT = 1.0
"""Nearer than this is neither better nor behind, whatever the test says."""


class RivalStanding(StrEnum):
    """From the best for ours to the worst."""

    CLEARLY_BETTER = "clearly_better"
    """By 10 % or more, and the whole interval is a gain."""
    ALONE = "alone"
    """Every rival is shown to break the guard beside ours, and none of them is better in the goal."""
    BETTER = "better"
    LEVEL = "level"
    """The whole interval is nearer than 10 %, and the gain nearer than 1 % or not told from none."""
    UNTOLD = "untold"
    """More seeds would tell: the interval holds both no gain and a clear one, or who keeps the guard is open."""
    BEHIND = "behind"
    DEARER = "dearer"
    """Every rival breaks the guard beside ours, but ours is behind in the goal for it."""
    AT_MORE_GUARD = "at_more_guard"
    """Level or better, but shown to have more of the guard (violations, say) than the rival."""
    FAILED = "failed"
    """A run of ours failed: whoever has no plan here is not better for the seeds that it did finish."""


WON = (RivalStanding.CLEARLY_BETTER, RivalStanding.ALONE)
_WORST_LAST = tuple(RivalStanding)
_SPREADS = (RivalStanding.AT_MORE_GUARD, RivalStanding.DEARER, RivalStanding.ALONE, RivalStanding.FAILED)
"""What one scenario makes of its family."""


@value
class SeedGain:
    """Ours against the rival under one seed: the logarithm of the ratio of goals, positive where ours is better."""

    seed: int
    log: float


@value
class Duel:
    """Ours against one rival. Gains are of the rival's goal, positive where ours is better, with their interval."""

    against: str
    standing: RivalStanding
    goal: Summary
    guard: Summary | None
    gain_pct: Summary | None = None
    p: float | None = None
    guard_kept: GuardKept = GuardKept.YES
    """Whether ours has no more of the guard than the rival."""
    log_gains: tuple[SeedGain, ...] = ()


@value
class RivalPlace:
    scenario: str
    goal: str
    better: Better
    guard: str | None
    seeds: int
    ours: Summary | None
    """None where no run of ours was finished."""
    ours_guard: Summary | None
    founding: Duel | None
    """Against the best of the five; None where none of them ran."""
    all_others: Duel | None
    failed: int = 0
    """So many runs of ours."""
    by_pursuit: bool = False
    """Whether plans were judged by what their planners pursue; if not, a rival may have been held to what it does not.
    """


@value
class FamilyPlace:
    """Ours against the best of the five on all scenarios of a family taken together."""

    family: str
    scenarios: tuple[str, ...]
    seeds: int
    standing: RivalStanding
    gain_pct: Summary | None = None
    """Mean over scenarios, seed by seed; as of costs where the family's goals differ in direction."""


def places(records: Sequence[RunRecord], ours: str = OURS) -> tuple[RivalPlace, ...]:
    """Ours on every scenario where it ran, by name; where it failed it is told to have."""
    by_scenario: dict[str, list[RunRecord]] = {}
    for record in records:
        by_scenario.setdefault(record.scenario, []).append(record)
    found = (_place(by_scenario[name], ours) for name in sorted(by_scenario))
    return tuple(each for each in found if each is not None)


def families(found: Sequence[RivalPlace]) -> tuple[FamilyPlace, ...]:
    """Places against the five by family, by name."""
    members: dict[str, list[RivalPlace]] = {}
    for place in found:
        if place.founding is not None:
            members.setdefault(place.scenario.partition("-")[0], []).append(place)
    return tuple(_family(name, members[name]) for name in sorted(members))


def _family(name: str, members: Sequence[RivalPlace]) -> FamilyPlace:
    duels = [place.founding for place in members if place.founding is not None]
    worst = max((duel.standing for duel in duels), key=_WORST_LAST.index)
    by_seed = [{gain.seed: gain.log for gain in duel.log_gains} for duel in duels]
    seeds = sorted(set.intersection(*(set(each) for each in by_seed)))
    place = FamilyPlace(
        family=name, scenarios=tuple(each.scenario for each in members), seeds=len(seeds), standing=worst
    )
    if not seeds:
        return place
    sign = 1.0 if all(each.better is Better.HIGHER for each in members) else -1.0
    logs = summary([sign * fmean(each[seed] for each in by_seed) for seed in seeds])
    gain = turned(in_percent(logs), sign)
    standing = _by_gain(gain)
    if len(members) == 1 or worst in _SPREADS:
        standing = worst
    elif any(duel.guard_kept is not GuardKept.YES for duel in duels):
        standing = RivalStanding.UNTOLD
    return replace(place, standing=standing, gain_pct=gain)


def won(standings: Sequence[RivalStanding]) -> tuple[int, int, int]:
    """How many were clearly better or alone, how many level or better beside them, and how many there were."""
    kept = sum(each in (RivalStanding.BETTER, RivalStanding.LEVEL) for each in standings)
    return sum(each in WON for each in standings), kept, len(standings)


def _place(records: Sequence[RunRecord], ours: str) -> RivalPlace | None:
    about = next((record.about for record in records if record.outcome is not None), records[0].about)
    values, better = values_of(records)
    own = values.get(ours, {})
    lost = sum(record.contender.label == ours and record.outcome is None for record in records)
    if about.goal not in own and not lost:
        return None
    failed = frozenset(record.contender.label for record in records if record.outcome is None)
    rivals = [
        name
        for name, told in values.items()
        if not name.startswith(OURS) and name != ours and about.goal in told and name not in failed
    ]
    founding = [name for name in rivals if _is_founding(name)]
    guard = about.guard if about.guard is not None and about.guard in own else None
    field = _Field(about=about, values=values, better=better, left_out=frozenset(left_out(records)), failed=failed)
    return RivalPlace(
        scenario=about.name,
        goal=about.goal,
        better=about.better,
        guard=guard,
        seeds=len(own.get(about.goal, ())),
        ours=_summary(own, about.goal) if about.goal in own else None,
        ours_guard=_summary(own, guard) if guard is not None else None,
        founding=_duel(field, ours, founding),
        all_others=_duel(field, ours, rivals),
        failed=lost,
        by_pursuit=about.by_pursuit,
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
    failed: frozenset[str]
    """Contenders with a run that failed, which are no rivals."""


def _duel(field: _Field, ours: str, rivals: Sequence[str]) -> Duel | None:
    if not rivals:
        return None
    about, values, guard = field.about, field.values, field.about.guard
    own = values.get(ours, {})
    sign = 1.0 if about.better is Better.HIGHER else -1.0

    def kept(one: str, other: str) -> GuardKept:
        if one in field.left_out and other not in field.left_out:
            return GuardKept.NO
        if guard is None or guard not in values[one] or guard not in values[other]:
            return GuardKept.YES
        return guard_kept(guard, versus(values[one][guard], values[other][guard]), field.better[guard])

    def worth(name: str) -> float:
        return sign * _summary(values[name], about.goal).mean

    if ours in field.failed:
        return _lost(field, max(rivals, key=lambda name: (worth(name), name)))
    keeping = {name: kept(name, ours) for name in rivals}
    fair = [name for name in rivals if keeping[name] is not GuardKept.NO]
    rival = max(fair or rivals, key=lambda name: (worth(name), name))
    theirs = values[rival][about.goal]
    told = versus(own[about.goal], theirs)
    gain = turned(told.relative_pct, sign) if told is not None and told.relative_pct is not None else None
    standing, ours_kept = _judged(told, sign), kept(ours, rival)
    if not fair:
        alone = {RivalStanding.BEHIND: RivalStanding.DEARER, RivalStanding.UNTOLD: RivalStanding.UNTOLD}
        standing = alone.get(standing, RivalStanding.ALONE)
    elif standing is not RivalStanding.BEHIND and ours_kept is not GuardKept.YES:
        standing = RivalStanding.AT_MORE_GUARD if ours_kept is GuardKept.NO else RivalStanding.UNTOLD
    elif standing in (RivalStanding.LEVEL, RivalStanding.BEHIND) and keeping[rival] is GuardKept.UNTOLD:
        standing = RivalStanding.UNTOLD
    return Duel(
        against=rival,
        standing=standing,
        goal=_summary(values[rival], about.goal),
        guard=_guard(field, rival),
        gain_pct=gain,
        p=told.p if told is not None else None,
        guard_kept=ours_kept,
        log_gains=tuple(
            SeedGain(seed=seed, log=sign * log) for seed, log in log_ratios(own[about.goal], theirs).items()
        ),
    )


def _lost(field: _Field, rival: str) -> Duel:
    return Duel(
        against=rival,
        standing=RivalStanding.FAILED,
        goal=_summary(field.values[rival], field.about.goal),
        guard=_guard(field, rival),
        guard_kept=GuardKept.UNTOLD,
    )


def _guard(field: _Field, contender: str) -> Summary | None:
    guard, own = field.about.guard, field.values[contender]
    return _summary(own, guard) if guard is not None and guard in own else None


def _judged(told: Versus | None, sign: float) -> RivalStanding:
    """By the goal alone."""
    if told is None or told.difference_low is None or told.difference_high is None:
        return RivalStanding.UNTOLD
    if told.relative_pct is not None:
        return _by_gain(turned(told.relative_pct, sign))
    # The rival's goal is nothing, of which no gain is a part.
    low, high = sorted((sign * told.difference_low, sign * told.difference_high))
    if low > DUST:
        return RivalStanding.BETTER
    return RivalStanding.BEHIND if high < -DUST else RivalStanding.LEVEL if high - low <= DUST else RivalStanding.UNTOLD


def _by_gain(gain: Summary) -> RivalStanding:
    if gain.low is None or gain.high is None:
        return RivalStanding.UNTOLD
    if gain.low > 0.0 and gain.mean >= LEVEL_PCT:
        return RivalStanding.CLEARLY_BETTER if gain.mean >= CLEAR_GAIN_PCT else RivalStanding.BETTER
    if gain.high < 0.0 and gain.mean <= -LEVEL_PCT:
        return RivalStanding.BEHIND
    near = gain.low > -CLEAR_GAIN_PCT and gain.high < CLEAR_GAIN_PCT
    return RivalStanding.LEVEL if near else RivalStanding.UNTOLD


def _summary(own: Mapping[str, Mapping[int, float]], metric: str) -> Summary:
    return summary(list(own[metric].values()))
