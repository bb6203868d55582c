"""Where ours stands: whom it is measured against, and when it counts as better."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.arena.running import RunRecord
from lab.arena.standing import RivalPlace, RivalStanding, places, won
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
    """The place of ours: by contender the costs and the violations, one of each for every seed; `left_out`: who had
    nothing of a service that all others serve.
    """
    records = [
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
    return places(records)[0]


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
    assert found.founding.gain_pct == pytest.approx(100 * 1.5 / 9.5)
    assert found.all_others.standing is RivalStanding.LEVEL
    assert won([found.founding, found.all_others, None]) == (1, 1, 2)
    assert from_plain(RivalPlace, to_plain(found)) == found


def test_where_nobody_keeps_the_guard_ours_is_alone_unless_that_costs_the_goal() -> None:
    found = place_of({"headroom": ((4.0, 4.0), (0.0, 0.1)), "mudi": ((5.0, 5.0), (6.0, 6.1))})
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.ALONE
    assert won([found.founding]) == (1, 0, 1)
    found = place_of({"headroom": ((8.0, 8.0), (0.0, 0.1)), "mudi": ((5.0, 5.0), (6.0, 6.1))})
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.DEARER
    assert won([found.founding]) == (0, 0, 1)


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


def test_noise_is_level_and_more_violations_are_no_win() -> None:
    assert standing((8.0, 8.1, 7.9), (10.0, 10.0, 10.2)) == "clearly_better"
    assert standing((9.5, 9.6, 9.4), (10.0, 10.0, 10.0)) == "better"
    assert standing((9.99, 9.98, 9.98), (10.0, 10.0, 10.0)) == "level"
    assert standing((5.0, 12.0, 10.0), (10.0, 10.0, 10.0)) == "level"
    assert standing((1.0, 12.0, 1.0), (10.0, 10.0, 10.0)) == "better"
    assert standing((11.0, 11.0, 11.1), (10.0, 10.0, 10.0)) == "behind"
    assert standing((8.0, 8.1, 7.9), (10.0, 10.0, 10.2), (1.0, 1.1, 1.2)) == "at_more_guard"
    assert standing((8.0, 8.1, 7.9), (10.0, 10.0, 10.2), (0.04, 0.05, 0.05)) == "clearly_better"


def test_more_can_be_better_and_a_rival_of_nothing_is_beaten() -> None:
    about = About(name="one", title="one", kind="fake", goal="cost_usd", better=Better.HIGHER)
    found = place_of({"headroom": ((12.0,), (0.0,)), "morak": ((10.0,), (0.0,))}, about)
    assert found.guard is None
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.CLEARLY_BETTER
    assert found.founding.gain_pct == pytest.approx(20.0)
    found = place_of({"headroom": ((12.0,), (0.0,)), "morak": ((0.0,), (0.0,))}, about)
    assert found.founding is not None
    assert found.founding.standing is RivalStanding.BETTER


def test_scenarios_without_ours_or_without_rivals_are_told_apart(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "out", tasks([scenario(tmp_path, "one")], ("headroom", "k8s_hpa"), seeds=2))
    (found,) = places(folder.records())
    assert found.founding is None
    assert found.all_others is not None
    assert found.all_others.against == "k8s_hpa"
    assert places(folder.records(), "melange") == ()
