"""Where ours stands: whom it is measured against, and when it counts as better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.arena.running import RunRecord
from lab.arena.standing import RivalPlace, RivalStanding, families, places, won
from lab.cli.tables import standing_tables
from lab.outcome import About, Better, RunContender, RunOutcome, ServiceOutcome, metric
from solvers.domain.codec import from_plain, to_plain
from solvers.domain.ids import ServiceId
from tests.unit.lab.arena.fake import folder_of, scenario, tasks

ABOUT = About(
    name="one",
    title="one",
    kind="fake",
    goal="cost_usd",
    better=Better.LOWER,
    guard="violation_pct",
    planners=(),
    seeds=2,
)
SERVED = ServiceOutcome(service=ServiceId("sim/one"), asked=5.0, completed=5.0, late=0.0, dropped=0.0)
NOTHING = ServiceOutcome(service=ServiceId("sim/one"), asked=0.0, completed=0.0, late=0.0, dropped=0.0)
Runs = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]


def place_of(runs: Runs, about: About = ABOUT, left_out: str | None = None) -> RivalPlace:
    return places(records_of(runs, about, left_out))[0]


def records_of(runs: Runs, about: About = ABOUT, left_out: str | None = None) -> list[RunRecord]:
    """By contender the costs and the violations, one of each for every seed; `left_out`: who had nothing of a service
    that all others serve.
    """
    return [
        RunRecord(
            key=f"{label}-{seed}",
            scenario=about.name,
            scenario_digest="-",
            software="-",
            about=about,
            contender=RunContender(label=label, planners=(label,)),
            seed=seed,
            outcome=RunOutcome(
                scenario=about.name,
                contender=label,
                seed=seed,
                metrics=(
                    metric("cost_usd", cost, about.better),
                    metric("violation_pct", violations[seed], Better.LOWER),
                ),
                services=(NOTHING if label == left_out else SERVED,),
            ),
        )
        for label, (costs, violations) in runs.items()
        for seed, cost in enumerate(costs)
    ]


def lost(records: list[RunRecord], label: str, seeds: tuple[int, ...]) -> list[RunRecord]:
    """The same where these runs failed."""
    return [
        replace(each, outcome=None, error="every plan was refuted")
        if each.contender.label == label and each.seed in seeds
        else each
        for each in records
    ]


def standing(ours: tuple[float, ...], theirs: tuple[float, ...], broken: tuple[float, ...] = (0.0, 0.0, 0.0)) -> str:
    found = place_of({"headroom": (ours, broken), "mudi": (theirs, (0.0, 0.0, 0.0))}).founding
    assert found is not None
    return found.standing.value


def test_the_rival_is_the_best_of_those_that_keep_the_guard_as_well() -> None:
    found = place_of(
        {
            "headroom": ((8.0, 8.1, 7.9), (0.0, 0.0, 0.0)),
            "hetsev": ((10.0, 10.1, 9.9), (0.05, 0.02, 0.0)),
            "mudi": ((4.0, 4.1, 3.9), (6.0, 6.0, 6.1)),
            "inss_rl": ((9.5, 9.6, 9.4), (0.0, 0.0, 0.0)),
            "melange": ((8.05, 8.1, 8.0), (0.0, 0.0, 0.0)),
            "headroom_spare": ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
        }
    )
    assert found.founding is not None
    assert found.all_others is not None
    assert (found.founding.against, found.all_others.against) == ("inss_rl", "melange")
    assert found.founding.standing is RivalStanding.CLEARLY_BETTER
    assert found.founding.gain_pct is not None
    assert found.founding.gain_pct.mean == pytest.approx(100 * 1.5 / 9.5, rel=1e-3)
    assert found.all_others.standing is RivalStanding.LEVEL
    assert won([found.founding.standing, found.all_others.standing, RivalStanding.UNTOLD]) == (1, 1, 3)
    assert from_plain(RivalPlace, to_plain(found)) == found


def test_where_nobody_keeps_the_guard_ours_is_alone_unless_that_costs_the_goal() -> None:
    found = place_of({"headroom": ((4.0, 4.0), (0.0, 0.1)), "mudi": ((5.0, 5.0), (6.0, 6.1))})
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.ALONE
    assert won([found.founding.standing]) == (1, 0, 1)
    found = place_of({"headroom": ((8.0, 8.0), (0.0, 0.1)), "mudi": ((5.0, 5.0), (6.0, 6.1))})
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.DEARER
    assert won([found.founding.standing]) == (0, 0, 1)


def test_who_leaves_a_service_out_is_no_rival_and_wins_nothing() -> None:
    runs = {
        "headroom": ((8.0, 8.0), (0.0, 0.0)),
        "mudi": ((4.0, 4.0), (0.0, 0.0)),
        "morak": ((10.0, 10.0), (0.0, 0.0)),
    }
    found = place_of(runs, left_out="mudi").founding
    assert found is not None
    assert (found.against, found.standing) == ("morak", RivalStanding.CLEARLY_BETTER)
    runs["mudi"] = runs["morak"]
    found = place_of(runs, left_out="headroom").founding
    assert found is not None
    assert found.standing is RivalStanding.AT_MORE_GUARD


def test_a_gain_counts_only_where_it_is_shown() -> None:
    assert standing((8.0, 8.1, 7.9), (10.0, 10.0, 10.2)) == "clearly_better"
    assert standing((9.5, 9.6, 9.4), (10.0, 10.0, 10.0)) == "better"
    assert standing((9.99, 9.98, 9.98), (10.0, 10.0, 10.0)) == "level"
    assert standing((9.8, 10.1, 10.2), (10.0, 10.0, 10.0)) == "level"
    assert standing((5.0, 12.0, 10.0), (10.0, 10.0, 10.0)) == "untold"
    assert standing((1.0, 12.0, 1.0), (10.0, 10.0, 10.0)) == "untold"
    assert standing((15.0, 9.0, 18.0), (10.0, 10.0, 10.0)) == "untold"
    assert standing((11.0, 11.0, 11.1), (10.0, 10.0, 10.0)) == "behind"
    assert standing((8.0, 8.1, 7.9), (10.0, 10.0, 10.2), (1.0, 1.1, 1.2)) == "at_more_guard"
    assert standing((8.0, 8.1, 7.9), (10.0, 10.0, 10.2), (0.04, 0.05, 0.05)) == "clearly_better"


def test_one_pair_shows_nothing_however_large_the_gain() -> None:
    assert standing((1.0,), (10.0,)) == standing((10.0,), (1.0,)) == standing((5.0,), (5.0,)) == "untold"
    # Nor is a rival with many violations shown to break anything under one seed.
    found = place_of({"headroom": ((4.0,), (0.0,)), "mudi": ((5.0,), (60.0,))}).founding
    assert found is not None
    assert found.standing is RivalStanding.UNTOLD


def test_whose_promise_broke_under_two_seeds_of_three_wins_nothing() -> None:
    assert standing((8.0, 8.0, 8.0), (10.0, 10.0, 10.0), (0.0, 3.594, 3.62)) == "untold"
    rival = {"headroom": ((8.0, 8.0, 8.0), (0.0, 0.0, 0.0)), "mudi": ((5.0, 5.0, 5.0), (0.0, 3.594, 3.62))}
    found = place_of(rival).founding
    assert found is not None
    # It may be the one to beat, and ours is not alone either.
    assert (found.against, found.standing) == ("mudi", RivalStanding.UNTOLD)


def test_only_the_seeds_of_all_count_for_anybody() -> None:
    """A rival with a lucky seed more is not the best for it."""
    found = place_of(
        {
            "headroom": ((8.0, 8.1, 7.9, 90.0), (0.0,) * 4),
            "mudi": ((10.0, 10.1, 9.9), (0.0,) * 3),
            "morak": ((10.4, 10.5, 10.3, 1.0), (0.0,) * 4),
        }
    )
    assert found.seeds == 3
    assert found.ours.mean == pytest.approx(8.0)
    assert found.founding is not None
    assert (found.founding.against, found.founding.standing) == ("mudi", RivalStanding.CLEARLY_BETTER)


def test_more_can_be_better_and_a_rival_of_nothing_is_beaten() -> None:
    about = About(name="one", title="one", kind="fake", goal="cost_usd", better=Better.HIGHER)
    found = place_of({"headroom": ((12.0, 12.0), (0.0, 0.0)), "morak": ((10.0, 10.0), (0.0, 0.0))}, about)
    assert found.guard is None
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.CLEARLY_BETTER
    assert found.founding.gain_pct is not None
    assert found.founding.gain_pct.mean == pytest.approx(20.0)
    found = place_of({"headroom": ((12.0, 12.1), (0.0, 0.0)), "morak": ((0.0, 0.0), (0.0, 0.0))}, about)
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.BETTER
    found = place_of({"headroom": ((0.0, 0.0), (0.0, 0.0)), "morak": ((0.0, 0.0), (0.0, 0.0))}, about)
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.LEVEL


def of_family(name: str, ours: tuple[float, ...], theirs: tuple[float, ...], broken: float = 0.0) -> RivalPlace:
    runs = {"headroom": (ours, (broken,) * len(ours)), "mudi": (theirs, (0.0,) * len(theirs))}
    return place_of(runs, replace(ABOUT, name=name))


def test_near_copies_of_a_scenario_are_one_family() -> None:
    ten = (10.0, 10.0, 10.0)
    copies = [of_family(f"cost-{number}", (8.0, 8.1, 7.9), ten) for number in range(4)]
    (cost, other) = families([*copies, of_family("other", (9.5, 9.6, 9.4), ten)])
    assert (cost.family, len(cost.scenarios), cost.seeds) == ("cost", 4, 3)
    assert (cost.standing, other.standing) == (RivalStanding.CLEARLY_BETTER, RivalStanding.BETTER)
    single = families(copies[:1])[0].gain_pct
    assert single is not None
    assert copies[0].founding is not None
    assert copies[0].founding.gain_pct is not None
    assert single.mean == pytest.approx(copies[0].founding.gain_pct.mean)
    assert cost.gain_pct is not None
    # Four copies of one thing are no more evidence than one.
    assert (cost.gain_pct.low, cost.gain_pct.high) == pytest.approx((single.low, single.high))
    assert won([cost.standing, other.standing]) == (1, 1, 2)


def test_a_family_is_no_better_than_its_worst_guard_and_needs_seeds() -> None:
    ten = (10.0, 10.0, 10.0)
    (kept, broken) = of_family("a-1", (8.0, 8.1, 7.9), ten), of_family("a-2", (8.0, 8.1, 7.9), ten, broken=5.0)
    assert [each.standing for each in families([kept, broken])] == [RivalStanding.AT_MORE_GUARD]
    mixed = of_family("a-3", (12.4, 12.5, 12.4), ten)
    (both,) = families([kept, mixed])
    assert both.standing is RivalStanding.LEVEL
    (few,) = families([kept, of_family("a-4", (8.0,), (10.0,))])
    assert (few.seeds, few.standing) == (1, RivalStanding.UNTOLD)
    (zero,) = families([kept, of_family("a-5", (0.0, 0.0, 0.0), ten)])
    assert (zero.seeds, zero.gain_pct, zero.standing) == (0, None, RivalStanding.CLEARLY_BETTER)


@pytest.mark.parametrize("seeds", [(1,), (0, 1, 2)])
def test_a_failed_run_of_ours_counts_against_it(seeds: tuple[int, ...]) -> None:
    runs: Runs = {"headroom": ((8.0, 8.1, 7.9), (0.0,) * 3), "mudi": ((10.0, 10.1, 9.9), (0.0,) * 3)}
    (found,) = places(lost(records_of(runs), "headroom", seeds))
    assert found.failed == len(seeds)
    assert (found.ours is None) == (len(seeds) == 3)
    assert found.founding is not None
    assert (found.founding.against, found.founding.standing) == ("mudi", RivalStanding.FAILED)
    assert found.founding.gain_pct is None
    assert won([found.founding.standing]) == (0, 0, 1)
    assert from_plain(RivalPlace, to_plain(found)) == found
    copy = of_family("one-more", (8.0, 8.1, 7.9), (10.0, 10.1, 9.9))
    (family,) = families([replace(found, scenario="one-here"), copy])
    assert family.standing is RivalStanding.FAILED


def test_a_row_says_by_what_its_plans_were_judged() -> None:
    runs: Runs = {"headroom": ((8.0, 8.1), (0.0, 0.0)), "mudi": ((10.0, 10.1), (0.0, 0.0))}
    alike, own = (place_of(runs, replace(ABOUT, by_pursuit=each)) for each in (False, True))
    assert (alike.by_pursuit, own.by_pursuit) == (False, True)
    cells = [str(standing_tables([each], ())[0]) for each in (alike, own)]
    assert ["one, by pursuit" in each for each in cells] == [False, True]


def test_where_everybody_failed_ours_is_told_to_have() -> None:
    records = records_of({"headroom": ((8.0,), (0.0,)), "mudi": ((10.0,), (0.0,))})
    (found,) = places(lost(lost(records, "headroom", (0,)), "mudi", (0,)))
    assert (found.failed, found.ours, found.founding, found.all_others) == (1, None, None, None)


def test_scenarios_without_ours_or_without_rivals_are_told_apart(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "out", tasks([scenario(tmp_path, "one")], ("headroom", "k8s_hpa"), seeds=2))
    (found,) = places(folder.records())
    assert found.founding is None
    assert found.all_others is not None
    assert found.all_others.against == "k8s_hpa"
    assert places(folder.records(), "melange") == ()
