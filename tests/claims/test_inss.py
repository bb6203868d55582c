"""InSS' claims: figures are read off outcomes made by hand, and judges see what is late, poor, slow or misprinted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from lab.claims.claim import ClaimStatus, Effort, Outcomes, varied, world_of
from lab.claims.inss import rules, worlds
from lab.learning.evaluating import Score
from lab.learning.settings import setting
from lab.outcome import RunOutcome, ServiceOutcome, metric
from lab.world.scenario import WorldScenario
from solvers.domain.ids import ServiceId
from solvers.errors import InputError
from solvers.sim.truth.catalogue import gpu_truth
from solvers.sim.truth.truth import Resident, execution_ms

STATED = {"inss": 2897.0, "gpulet": 2000.0, "gslice": 1900.0, "igniter": 900.0, "bda_gpulet": 2250.0, "inss_ni": 2950.0}
VIOLATIONS = {"inss": 0.5, "gpulet": 4.4, "gslice": 4.5, "igniter": 3.8, "bda_gpulet": 4.0, "inss_ni": 2.0}


def outcome(label: str, capacity: float, violation: float) -> RunOutcome:
    numbers = {"capacity_rps": capacity, "throughput_rps": 1000.0, "violation_pct": violation}
    quiet = ServiceOutcome(service=ServiceId("p/quiet"), asked=900.0, completed=900.0, late=0.0, dropped=0.0)
    poor = ServiceOutcome(service=ServiceId("p/poor"), asked=100.0, completed=85.0, late=5.0, dropped=15.0)
    metrics = tuple(metric(name, each) for name, each in numbers.items())
    return RunOutcome(scenario="s", contender=label, seed=0, metrics=metrics, services=(poor, quiet))


ON_SIX = (worlds.capacity_gained, worlds.violations, worlds.gpulet_with_our_batches, worlds.blind_to_neighbours)
Judge = Callable[[dict[str, float], dict[str, float]], list[ClaimStatus]]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judge:
    def judge(capacity: dict[str, float], violation: dict[str, float]) -> list[ClaimStatus]:
        made = {name: outcome(name, capacity[name], violation[name]) for name in capacity}

        def outcomes(scenario: str, contenders: tuple[str, ...], effort: Effort) -> Outcomes:
            return {name: (made[name],) for name in contenders}

        def changed(
            scenario: str, contender: str, change: Callable[[WorldScenario], WorldScenario], seed: int = 0
        ) -> RunOutcome:
            return made[contender]

        monkeypatch.setattr(worlds, "outcomes", outcomes)
        monkeypatch.setattr(worlds, "varied", changed)
        for kept in (worlds._at_once, worlds._without_spare):
            kept.cache_clear()
        found = [judge(Effort(seeds=1)) for judge in ON_SIX]
        assert all("ablation" in each.note for each in found if each.status is ClaimStatus.NOT_REPRODUCED)
        return [each.status for each in found]

    return judge


def test_violations_name_who_is_late_most(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: (outcome(name, 1.0, 2.0),) for name in STATED}
    monkeypatch.setattr(worlds, "outcomes", lambda *_: made)
    monkeypatch.setattr(worlds, "varied", lambda *_: made["inss"][0])
    worlds._at_once.cache_clear()
    assert "p/poor is late or dropped most, 20.0 %" in worlds.violations(Effort(seeds=1)).note


def test_the_printed_figures_pass(judged: Judge) -> None:
    assert judged(STATED, VIOLATIONS) == [ClaimStatus.PASS] * 4


@pytest.mark.parametrize(
    ("capacity", "violation", "missed"),
    [
        ({"gslice": 2100.0}, {}, 0),
        ({}, {"inss": 1.1, "inss_ni": 3.0}, 1),
        ({}, {"igniter": 0.4}, 1),
        ({"bda_gpulet": 2200.0}, {}, 2),
        ({}, {"bda_gpulet": 5.5}, 2),
        ({"inss_ni": 3100.0}, {}, 3),
        ({}, {"inss_ni": 0.4}, 3),
    ],
)
def test_each_figure_can_be_missed(
    judged: Judge, capacity: dict[str, float], violation: dict[str, float], missed: int
) -> None:
    found = judged({**STATED, **capacity}, {**VIOLATIONS, **violation})
    assert [at for at, status in enumerate(found) if status is ClaimStatus.NOT_REPRODUCED] == [missed]


@pytest.mark.parametrize(("four", "status"), [(1500.0, ClaimStatus.PASS), (1250.0, ClaimStatus.NOT_REPRODUCED)])
def test_heavy_load_is_judged_across_fleets(monkeypatch: pytest.MonkeyPatch, four: float, status: ClaimStatus) -> None:
    capacity = {"inss": 2000.0, "gpulet": 1300.0, "gslice": 1200.0, "igniter": 1100.0}

    def outcomes(scenario: str, contenders: tuple[str, ...], effort: Effort) -> Outcomes:
        ours = four if scenario == "inss-eight-4" else capacity["inss"]
        made = {name: outcome(name, ours if name == "inss" else capacity[name], 0.5) for name in contenders}
        return {
            name: (replace(each, metrics=(*each.metrics[:1], metric("throughput_rps", number), each.metrics[2])),)
            for name, each in made.items()
            for number in (each.metrics[0].value,)
        }

    monkeypatch.setattr(worlds, "outcomes", outcomes)
    monkeypatch.setattr(worlds, "varied", lambda *_: outcome("inss", 1.0, 0.1))
    worlds._at_once.cache_clear()
    told = worlds.heavy_load(Effort(seeds=1))
    assert told.status is status
    assert f"capacity_rps: InSS {four:.0f} on four GPUs, 2000 on five" in told.measured


@dataclass(frozen=True, slots=True)
class PublishedLimit:
    """A network's published limit, and how long a batch of it takes on the authors' RTX 2060 Super, in ms."""

    limit_ms: float
    took_ms: float
    share_pct: int = 100
    batch: int = 1
    beside: tuple[str, ...] = ()
    """Batches of four on 18 %."""


PUBLISHED = {
    "alexnet": PublishedLimit(25.0, 1000.0 / 788.641),
    "resnet50": PublishedLimit(80.0, 1000.0 / 215.868),
    "vgg16": PublishedLimit(150.0, 1000.0 / 146.903),
    "mnasnet1_0": PublishedLimit(50.0, 1000.0 / 443.529),
    "mobilenet_v2": PublishedLimit(60.0, 1000.0 / 306.513),
    "efficientnet_b0": PublishedLimit(40.0, 1000.0 / 217.319),
    "resnet18": PublishedLimit(60.0, 5.483, 60, 4, ("mnasnet1_0",)),
    "vgg19": PublishedLimit(200.0, 39.411, 60, 4, ("resnet18", "mnasnet1_0")),
}
"""Of six the throughput alone that rewards are divided by, in their code; of two the widest share in Table 3."""


def translated_ms(model: str) -> float:
    """The limit that is the same multiple of what the same batch takes on the simulated card."""
    told, gpu = PUBLISHED[model], gpu_truth("rtx-2060-super")
    assert gpu is not None
    mine = Resident(model=model, share_pct_sm=told.share_pct, batch=told.batch)
    beside = [Resident(model=name, share_pct_sm=18, batch=4) for name in told.beside]
    return told.limit_ms * execution_ms(gpu, mine, gpu.clock_mhz_sm_max, beside) / told.took_ms


@pytest.mark.parametrize("name", ["inss-six", "inss-eight-4", "inss-eight-5", "inss-eight-6"])
def test_limits_are_published_multiples_of_what_a_network_takes_alone_here(name: str) -> None:
    world = world_of(name).scenario
    limits = {str(each.service.model): each.service.slo.latency_ms for each in world.traffic}
    assert limits == {model: round(translated_ms(model)) for model in limits}


@pytest.mark.parametrize("name", ["six", "eight"])
def test_actors_learn_by_the_limits_that_plans_keep(name: str) -> None:
    learned = {each.model: each.limit_ms for each in setting(name).served}
    assert learned == {model: round(translated_ms(model)) for model in learned}


def test_ablations_run_worlds_that_are_there() -> None:
    with pytest.raises(InputError, match="there is no world nowhere"):
        varied("nowhere", "inss", lambda world: world)


def test_a_misprint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ROWS", {"R": ((10.0,), (11.0,), (9.9,))})
    found = rules.printed_errors(Effort())
    assert found.status is ClaimStatus.FAIL
    assert "10.000" in found.note


SCORE = Score(
    actor=9.6,
    actor_places=9.7,
    programme=9.0,
    bound=10.0,
    actor_violated=0.0,
)
TIMES = worlds.DecisionTimes(batches=9.0, actor=19.0, programme=900.0, models=8, gpus=4)


def curve(rises: int, episodes: int = 1500) -> list[float]:
    """From -50 to 10, there at an episode, with noise."""
    drawn = np.random.default_rng(0).normal(scale=0.2, size=episodes)
    return list(np.minimum(np.linspace(-50.0, -50.0 + 60.0 * episodes / rises, episodes), 10.0) + drawn)


def test_when_a_curve_stays_near_its_end_is_found() -> None:
    there, end, first = worlds.reached(curve(400))
    assert there == pytest.approx(10.0, abs=0.1)
    assert end == pytest.approx(10.0, abs=0.1)
    assert first is not None
    assert 380 < first < 460
    there, _, first = worlds.reached(curve(1200))
    assert there < 0
    assert first is not None
    assert first > 1150


@pytest.mark.parametrize(
    ("rises", "episodes", "score", "words"),
    [
        (400, 1500, SCORE, ""),
        (1200, 1500, SCORE, "seed 1 reaches 95 %"),
        (
            400,
            1500,
            replace(SCORE, actor=9.4),
            "94.0 % of the most there is; with its places and the best division of units it would be 97.0 %",
        ),
        (400, 850, SCORE, "trained for 850 episodes only"),
    ],
)
def test_what_is_not_reached_is_told(
    rises: int, episodes: int, score: Score, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "curves", lambda _: {"1": curve(rises, episodes), "2": curve(300), "3": curve(300)})
    monkeypatch.setattr(worlds, "_score", lambda *_: score)
    found = worlds.trainings(Effort(seeds=1))
    assert found.status is (ClaimStatus.NOT_REPRODUCED if words else ClaimStatus.PASS)
    assert words in found.note
    assert "programme's placements 9.00" in found.measured


def test_fewer_seeds_than_asked_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "curves", lambda _: {"1": curve(300)})
    monkeypatch.setattr(worlds, "_score", lambda *_: SCORE)
    found = worlds.trainings(Effort(seeds=1))
    assert found.status is ClaimStatus.NOT_REPRODUCED
    assert found.note == "trained with 1 of 3 seeds"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (TIMES, ""),
        (replace(TIMES, batches=11.0), "batches takes 11.0 ms"),
        (replace(TIMES, actor=21.0), "actor takes 21.0 ms"),
        (replace(TIMES, programme=1001.0), "ILP takes 1001.0 ms"),
    ],
)
def test_what_is_slow_is_told(seen: worlds.DecisionTimes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "picture", lambda: None)
    monkeypatch.setattr(worlds, "times", lambda _: seen)
    found = worlds.decision_times(Effort())
    assert found.status is (ClaimStatus.NOT_REPRODUCED if words else ClaimStatus.PASS)
    assert words in found.note


def test_a_running_worlds_picture_is_measured_and_placed_by_the_shipped_actor() -> None:
    seen = worlds.times(worlds.picture())
    assert (seen.models, seen.gpus) == (8, 4)
    assert min(seen.batches, seen.actor, seen.programme) > 0


def test_the_shippedcurves_and_actor_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "SECONDS", 3)
    found = worlds.trainings(Effort(seeds=1))
    assert found.status in (ClaimStatus.PASS, ClaimStatus.NOT_REPRODUCED)
    assert "95 % from" in found.measured
    assert "most there is" in found.measured
