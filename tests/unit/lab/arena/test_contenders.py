"""Contenders as people write them: names, chains, controllers, tuning, and planners of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.arena.contenders import PlannersOf, contender_names, entry_of, tuned_entries
from lab.outcome import TuningSetting
from lab.world.world import policy_of
from solvers.domain.ids import PolicyName
from solvers.domain.policy import DEFAULT_POLICY, Policy
from solvers.errors import EngineError, FieldError, InputError, NotFoundError
from solvers.policies.hetsev.planner import HetSev

OWN = """
from lab.baselines.single_type import StaticPeak
from solvers.planners.base import PlannerSpec

class Mine(StaticPeak):
    spec = PlannerSpec(name="mine", version="1", knobs=())
"""


def test_every_name_makes_a_contender_whose_planners_exist() -> None:
    names = contender_names()
    assert {"headroom", "hetsev", "morak", "clipper_l", "k8s_hpa"} <= set(names)
    for name in names:
        entry = entry_of(name)
        assert entry.contender.label == name
        assert [PlannersOf()(planner, ()).spec.name for planner in entry.contender.planners] == list(
            entry.contender.planners
        )


def test_ours_falls_back_and_controllers_bring_their_planner() -> None:
    assert entry_of("headroom").contender.planners == ("joint", "greedy")
    assert (entry_of("morak").contender.planners, entry_of("morak").contender.governor) == (("morak",), "morak")
    assert (entry_of("dfs").contender.planners, entry_of("dfs").contender.governor) == (("whole_gpu",), "dfs")
    assert entry_of("hetsev").contender.governor is None


def test_chains_and_controllers_can_be_combined() -> None:
    contender = entry_of("hetsev+greedy@morak").contender
    assert (contender.planners, contender.governor) == (("hetsev", "greedy"), "morak")


@pytest.mark.parametrize(
    ("text", "said"),
    [("nobody", "no planner 'nobody'"), ("hetsev@nobody", "no controller 'nobody'"), ("", "no planner ''")],
)
def test_unknown_names_are_refused_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        entry_of(text)
    assert "morak" in raised.value.message


def test_tuning_is_set_by_planner_and_told_on_the_label() -> None:
    entries = [entry_of("hetsev"), entry_of("k8s_hpa")]
    tuned, plain = tuned_entries(entries, ["hetsev.saturation=0.6", "hetsev.engine=cbc"], [])
    assert tuned.contender.label == 'hetsev(engine="cbc", saturation=0.6)'
    assert tuned.contender.settings == (
        TuningSetting(name="engine", value='"cbc"'),
        TuningSetting(name="saturation", value="0.6"),
    )
    assert plain == entries[1]
    made = PlannersOf()("hetsev", tuned.contender.settings)
    assert isinstance(made, HetSev)
    assert (made.parameters.saturation, made.parameters.engine) == (0.6, "cbc")


@pytest.mark.parametrize(("name", "told"), [("utilisation_max", "0.9"), ("demand_lookback_learned", "false")])
def test_a_policy_holds_for_all(name: str, told: str) -> None:
    """Fields that came late, too, which a policy that never mentions them is stored without."""
    for entry in tuned_entries([entry_of("hetsev"), entry_of("greedy")], [], [f"{name}={told}"]):
        assert entry.contender.policy == (TuningSetting(name=name, value=told),)
        assert entry.contender.label.endswith(f"[{name}={told}]")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("hetsev.nothing=1", "no parameter nothing"),
        ("hetsev.saturation=9", "from 0.05 to 1"),
        ("greedy.x=1", "nobody here is called greedy"),
        ("saturation=1", "is no setting"),
        ("hetsev.saturation", "is no setting"),
        ("hetsev.saturation=[0.5]", "saturation"),
    ],
)
def test_what_cannot_be_set_is_refused(setting: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tuned_entries([entry_of("hetsev")], [setting], [])


def test_nothing_is_set_twice_and_a_list_may_be() -> None:
    with pytest.raises(InputError, match="--policy: cooldown_s is said twice"):
        tuned_entries([entry_of("hetsev")], [], ["cooldown_s=1", "objective=[]", "cooldown_s=2"])
    with pytest.raises(InputError, match="--set hetsev: queues is said twice"):
        tuned_entries([entry_of("hetsev")], ["hetsev.queues=1", "hetsev.queues=2"], [])
    (made,) = tuned_entries([entry_of("hetsev")], [], ['objective=["unserved","cost"]'])
    told = policy_of(Policy(name=DEFAULT_POLICY), made.contender).objective
    assert [item.value for item in told] == ["unserved", "cost"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("nothing=1", "--policy: a policy has no field nothing"),
        ("utilisation_max=9", "--policy: utilisation_max must lie between 0.05 and 0.99, got 9.0"),
    ],
)
def test_what_a_policy_cannot_have_is_refused_before_anybody_runs(field: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        tuned_entries([entry_of("hetsev")], [], [field])
    assert raised.value.message == said


def test_ones_own_planner_is_tuned_by_what_it_calls_itself() -> None:
    own = entry_of(f"{Path(__file__).parents[4]}/examples/my_policy.py:MyPlanner")
    (made,) = tuned_entries([own], ["my-policy.headroom=1.3"], [])
    assert made.contender.label == "my_policy.py:MyPlanner(headroom=1.3)"


def test_two_contenders_may_not_share_a_label() -> None:
    with pytest.raises(InputError, match="two contenders are called hetsev"):
        tuned_entries([entry_of("hetsev"), entry_of(" hetsev")], [], [])


def test_a_planner_of_ones_own_travels_as_its_source(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    entry = entry_of(f"{file}:Mine")
    file.unlink()
    assert entry.contender.label == "mine.py:Mine"
    assert entry.contender.planners == ("own.mine.mine",)
    assert PlannersOf(entry.own)("own.mine.mine", ()).spec.name == "mine"
    with pytest.raises(EngineError):
        PlannersOf()("own.mine.mine", ())
    with pytest.raises(FieldError, match="no parameter"):
        PlannersOf(entry.own)("own.mine.mine", (TuningSetting(name="no", value="1"),))


def test_files_that_hold_no_planner_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    with pytest.raises(NotFoundError):
        entry_of(f"{file}:Mine")
    file.write_text(OWN)
    with pytest.raises(InputError, match="no class Yours"):
        entry_of(f"{file}:Yours")


def test_ones_own_planner_has_a_name_that_a_policy_may_hold(tmp_path: Path) -> None:
    file = tmp_path / "My Policy.py"
    file.write_text(
        "from solvers.planners.greedy.planner import Greedy\n"
        "from solvers.planners.base import PlannerSpec\n"
        "class Mine(Greedy):\n    spec = PlannerSpec(name='mine', version='1', knobs=())\n"
    )
    entry = entry_of(f"{file}:Mine+greedy")
    assert entry.contender.label == "My Policy.py:Mine+greedy"
    assert entry.contender.planners == ("own.my-policy.mine", "greedy")
    Policy(name=PolicyName("any"), planners=entry.contender.planners)
    assert PlannersOf(entry.own)("own.my-policy.mine", ()).spec.name == "mine"


def test_what_is_said_of_the_policy_adds_to_what_a_name_brings() -> None:
    entry = entry_of("headroom_spare@morak")
    assert (entry.contender.planners, entry.contender.governor) == (("joint", "greedy"), "morak")
    assert entry.contender.policy == (TuningSetting(name="demand_headroom", value="4"),)
    (tuned,) = tuned_entries((entry,), [], ["utilisation_max=0.8", "demand_headroom=3"])
    assert tuned.contender.policy == (
        TuningSetting(name="demand_headroom", value="3"),
        TuningSetting(name="utilisation_max", value="0.8"),
    )
