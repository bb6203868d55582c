"""Pictures planned one after the other: what stands is met by the next demand, and shortage is what was proven."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.arena import loading
from lab.benches.rolling import bench as bench_module
from lab.benches.rolling.bench import Rolling
from lab.outcome import RunContender, RunOutcome, TuningSetting, check_outcome
from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder, Ports
from solvers.cycle.record import CycleRecord
from solvers.domain.policy import PlannerSetting
from solvers.errors import EngineError, InputError
from solvers.planners import registry
from solvers.planners.base import Planner

ROOT = Path(__file__).resolve().parents[5]
SMALL = ROOT / "examples" / "scenarios" / "inferno-small-fleet.yaml"


def planners(name: str, settings: tuple[TuningSetting, ...]) -> Planner:
    return registry.create(name, {each.name: json.loads(each.value) for each in settings})


def small() -> Rolling:
    bench = loading.load(SMALL, None)
    assert isinstance(bench, Rolling)
    return bench


def ran(bench: Rolling, name: str) -> RunOutcome:
    parts: list[float] = []
    made = bench.run(RunContender(label=name, planners=(name,)), 1, planners, parts.append)
    check_outcome(made)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    return made


def number(outcome: RunOutcome, name: str) -> float:
    found = outcome.metric(name)
    assert found is not None
    return found


def test_nothing_is_interrupted_where_what_starts_serves_at_once() -> None:
    assert small().picture.policy.interruption_over_s == 1e9


def test_what_is_short_is_short_only_where_the_fleet_does_not_suffice() -> None:
    bench = small()
    made = ran(bench, "greedy")
    assert made == ran(bench, "greedy")
    assert [window.violated_rps > 0 for window in made.windows] == [False, False, False, True, False, False]
    assert number(made, "unsound_plans") == 0
    assert number(made, "starts") > number(made, "stops") > 0
    # The service of the highest priority is served whole.
    short = {outcome.service: outcome.dropped for outcome in made.services}
    assert short["peer/search"] == 0 < short["peer/mail"]
    assert number(made, "unserved_weighted_pct") < number(made, "unserved_pct")


def test_cost_is_of_devices_in_use_for_as_long_as_a_step_lasts() -> None:
    bench = small()
    once = replace(bench, rates_rps=bench.rates_rps[:1])
    made = ran(once, "greedy")
    window = made.windows[0]
    assert number(made, "cost_usd") == pytest.approx(window.usd_per_h / 6)
    assert number(made, "gpu_hours") == pytest.approx(window.devices_used / 6)
    again = ran(replace(bench, rates_rps=(bench.rates_rps[0],) * 2), "greedy")
    assert number(again, "cost_usd") == pytest.approx(2 * number(made, "cost_usd"))
    assert number(again, "cycles_held") == 1


def test_planners_are_tuned_as_the_policy_says_where_the_contender_says_nothing() -> None:
    bench = small()
    said = PlannerSetting(planner="hetsev", name="share_pct", value=50.0)
    bench = replace(
        bench, picture=replace(bench.picture, policy=replace(bench.picture.policy, planner_settings=(said,)))
    )
    asked: list[tuple[TuningSetting, ...]] = []

    def heard(name: str, settings: tuple[TuningSetting, ...]) -> Planner:
        asked.append(settings)
        return planners(name, settings)

    own = TuningSetting(name="share_pct", value="80")
    for settings in ((), (own,)):
        contender = RunContender(label="hetsev", planners=("hetsev",), settings=settings)
        bench.run(contender, 1, heard, lambda part: None)
    assert asked == [(), (TuningSetting(name="share_pct", value="50"),), (own,), (own,)]


def test_plans_are_judged_by_what_planners_pursue_where_the_scenario_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[CycleOrder] = []

    def cycle(ports: Ports, order: CycleOrder) -> CycleRecord:
        orders.append(order)
        return run_cycle(ports, order)

    monkeypatch.setattr(bench_module, "run_cycle", cycle)
    file = tmp_path / SMALL.name
    for said in ("", "by_pursuit: true\n"):
        file.write_text(SMALL.read_text(encoding="utf-8") + said, encoding="utf-8")
        made = loading.load(file, None)
        assert isinstance(made, Rolling)
        assert made.about.by_pursuit is bool(said)
        ran(replace(made, rates_rps=made.rates_rps[:1]), "greedy")
    assert [order.by_pursuit for order in orders] == [False, True]


def test_unknown_planners_end_the_run() -> None:
    with pytest.raises(EngineError):
        ran(small(), "nobody")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("gpu_type: small", "gpu_type: smaller", "runs on small, which the fleet does not have"),
        ("rates_rps: [50, 80, ", "rates_rps: [80, ", "as many rates each"),
        ("step: 10min", "step: 10min\npolicy: {colour: 1}", "no such field"),
        (
            "step: 10min",
            "step: 10min\npolicy: {planner_settings: [{planner: hetsev, name: queue, value: 1}]}",
            "hetsev has no parameter queue",
        ),
        (", usd_per_h: 4.0", "", "no such type in the library"),
    ],
)
def test_faults_are_told(tmp_path: Path, before: str, after: str, said: str) -> None:
    file = tmp_path / "inferno-small-fleet.yaml"
    text = SMALL.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        loading.load(file, None)


def test_public_data_that_is_not_there_is_named() -> None:
    for name in ("dlrm-days", "inferno-scarce", "llm-azure-cost"):
        with pytest.raises(InputError, match="HEADROOM_DATA"):
            loading.load(ROOT / "examples" / "scenarios" / f"{name}.yaml", None)
