"""The world of the training does what the simulated world does, and its reward is the paper's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lab.learning.settings import Gpu, Hyper, ServedNetwork, setting, setting_for, written
from lab.learning.world import Deployment, Environment, Truth
from solvers.errors import InputError
from solvers.policies.inss.actor import NOWHERE
from solvers.policies.inss.belief import task_latency_ms
from solvers.sim.truth.truth import Resident, execution_ms, gpu_truth, memory_mib, serve
from tests import builders

SIX = setting("six")


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth.of(SIX)


def world(truth: Truth, seed: int = 0, penalty: float = 100.0) -> Environment:
    return Environment.of(truth, penalty, np.random.default_rng(seed))


def test_the_setting_is_the_papers(truth: Truth) -> None:
    assert truth.shape.units == (17, 17, 15, 15)
    assert truth.shape.state_size == 4 + 6 * (1 + 1 + 4)
    assert sum(truth.shape.heads) == 6 * (4 + 17)
    gpu = gpu_truth("rtx-2060-super")
    assert gpu is not None
    alone = Resident(model="resnet50", share_pct_sm=100)
    assert truth.highest_rps()[1] == pytest.approx(1000.0 / execution_ms(gpu, alone, gpu.clock_mhz_sm_max))
    with pytest.raises(InputError, match="six, eight"):
        setting("seven")


def test_times_beside_neighbours_are_the_simulated_worlds(truth: Truth) -> None:
    places, units = (0, 0, 0, 1, 2, 3), (4, 6, 7, 17, 15, 15)
    deployed = Deployment.of(truth, places, units, (100.0, 100.0, 50.0, 100.0, 100.0, 100.0))
    gpu = gpu_truth("rtx-2060-super")
    assert gpu is not None
    shares = [-(-100 * each // 17) for each in units[:3]]
    residents = [
        Resident(model=one.model, share_pct_sm=share - 1, batch=batch)
        for one, share, batch in zip(SIX.served, shares, deployed.batches, strict=False)
    ]
    for model, resident in enumerate(residents):
        others = [other for other in residents if other is not resident]
        mine = replace(resident, share_pct_sm=shares[model])
        took = execution_ms(gpu, mine, gpu.clock_mhz_sm_max, others)
        # Neighbours' shares differ by a percent of rounding here, so that they do not overlap.
        assert 1000.0 * deployed.batches[model] / deployed.throughput_rps[model] == pytest.approx(took, rel=0.01)


def test_batches_keep_limit_and_rate_beside_the_very_neighbours(truth: Truth) -> None:
    drawn, sized = np.random.default_rng(3), 0
    for _ in range(40):
        places = [int(place) for place in drawn.integers(0, 4, 6)]
        units = truth.shape.granted(places, [int(level) for level in drawn.integers(0, 17, 6)])
        rates = [float(drawn.uniform(one.low_rps, one.high_rps)) for one in SIX.served]
        deployed = Deployment.of(truth, places, units, rates)
        for gpu, room in enumerate(truth.shape.units):
            mine = [model for model in range(6) if places[model] == gpu]
            assert sum(units[model] for model in mine) == (room if mine else 0)
            held = sum(memory_mib(SIX.served[model].model, deployed.batches[model]) for model in mine)
            assert deployed.used_mib[gpu] == pytest.approx(held)
            # One alone never meets other neighbours than those it was sized beside.
            for model in mine if len(mine) == 1 else []:
                took = 1000.0 * deployed.batches[model] / deployed.throughput_rps[model]
                latency = task_latency_ms(deployed.batches[model], 1, took, rates[model], took)
                assert deployed.served[model] == (
                    latency <= SIX.served[model].limit_ms and deployed.throughput_rps[model] >= rates[model]
                )
                sized += deployed.served[model]
    assert sized > 5


def test_the_reward_is_throughput_less_what_is_late_or_lost(truth: Truth) -> None:
    env = world(truth)
    rates = list(env.rates_rps)
    outcome = env.step([0, 1, 2, 3, 3, 0], [3, 9, 9, 5, 5, 5])
    lost = []
    for model, runs in enumerate(outcome.deployed.runs):
        assert runs is not None
        extra = runs.neighbours * truth.launching_ms(model, runs.kind)
        alone = truth.alone_ms(model, runs.kind, runs.units)[: runs.batch]
        times = [each * round(runs.factor * 50) / 50 + extra for each in alone]
        seen = serve(0.0, rates[model], 1.0, times, SIX.served[model].limit_ms)
        lost.append((seen.violated + seen.dropped) / (seen.completed + seen.dropped))
        assert env.queues[model] == seen.queue
    normalised = sum(rps / high for rps, high in zip(outcome.deployed.throughput_rps, truth.highest_rps(), strict=True))
    assert outcome.reward == pytest.approx(normalised - 100.0 * sum(lost))


def test_who_finds_no_memory_is_not_placed_and_loses_everything() -> None:
    tight = replace(SIX, gpus=(Gpu(gpu_type="rtx-2060", memory_mib=1500.0),))
    env = world(Truth.of(tight))
    outcome = env.step([0] * 6, [0] * 6)
    placed = [place != NOWHERE for place in outcome.deployed.places]
    assert 0 < sum(placed) < 6
    assert outcome.deployed.used_mib[0] <= 1500.0
    assert outcome.reward < outcome.normalised - 100.0 * (6 - sum(placed)) + 1e-9
    assert list(env.places) == list(outcome.deployed.places)


def test_rates_walk_in_steps_between_their_ends_and_follow_the_seed(truth: Truth) -> None:
    def walked(seed: int) -> list[tuple[float, ...]]:
        env = world(truth, seed)
        found = []
        for _ in range(300):
            env.step([0, 1, 2, 3, 0, 1], [5] * 6)
            found.append(tuple(env.rates_rps))
        return found

    rates = walked(4)
    assert rates == walked(4)
    assert rates != walked(5)
    for before, after in itertools.pairwise(rates):
        changes = {abs(new - old) for old, new in zip(before, after, strict=True)}
        assert changes <= {0.0, 20.0, 10.0}
    moments = [at for at, (before, after) in enumerate(itertools.pairwise(rates), start=2) if before != after]
    assert moments
    assert all(at % 10 == 0 for at in moments)
    for model, one in enumerate(SIX.served):
        assert all(one.low_rps <= each[model] <= one.high_rps for each in rates)


def test_the_state_says_memory_rates_queues_and_places(truth: Truth) -> None:
    env = world(truth)
    first = env.state()
    assert first.dtype == np.float32
    assert not first[:4].any()
    assert not first[16:].any()
    outcome = env.step([0, 0, 1, 1, 2, 3], [8] * 6)
    state = env.state()
    assert state[:4] == pytest.approx(np.array(outcome.deployed.used_mib) / truth.shape.memory_mib, rel=1e-6)
    highest = [one.high_rps for one in SIX.served]
    assert state[4:10] == pytest.approx(np.array(env.rates_rps) / highest, rel=1e-6)
    assert state[16:].reshape(6, 4).argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 3]


def test_hyper_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="discount"):
        Hyper(discount=1.0)


def test_any_fleet_and_any_networks_make_a_setting() -> None:
    made = setting_for("own", "2xT4,1xa100:40000", "resnet50:80:100-400,bert-base:250.5,my-own-net")
    assert [(gpu.gpu_type, gpu.memory_mib) for gpu in made.gpus] == [("t4", 15360.0)] * 2 + [("a100", 40000.0)]
    resnet, bert, mine = made.served
    assert resnet == ServedNetwork(model="resnet50", limit_ms=80.0, low_rps=100.0, high_rps=400.0)
    assert (bert.limit_ms, bert.high_rps) == (250.5, pytest.approx(4 * bert.low_rps))
    assert mine.limit_ms > 0.0
    env = world(Truth.of(made))
    outcome = env.step((0, 1, 2), (3, 3, 3))
    assert outcome.violated < 0.01
    assert outcome.reward > 0.0


@pytest.mark.parametrize(
    ("fleet", "models", "said"),
    [
        ("2xabacus", "resnet50", "is no GPUs to train for"),
        ("t4", "resnet50", "written 2xt4"),
        ("0xt4", "resnet50", "written 2xt4"),
        ("2xt4", "resnet50:80:400-100", "rates that rise"),
        ("2xt4", "resnet50:0", "limit above 0"),
        ("2xt4", "resnet50:fast", "is no network to train for"),
        ("2xt4", "", "is no network to train for"),
        ("2xt4", "bert,bert", "each network once"),
        ("2xt4:100", "bert-base", "fits on none"),
        ("1xt4", ",".join(f"net-{number}" for number in range(21)), "has 20 units"),
    ],
)
def test_what_nothing_can_be_trained_for_is_refused(fleet: str, models: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        setting_for("own", fleet, models)


def test_a_picture_says_its_own_fleet_and_services() -> None:
    devices = [builders.device("a", 0, "t4"), builders.device("a", 1, "v100")]
    services = [builders.service("one", model="bert", slo=builders.slo(90.0), rate_rps_declared=40.0)]
    made = setting_for("own", *written(builders.snapshot(devices, services)))
    assert [gpu.gpu_type for gpu in made.gpus] == ["t4", "v100"]
    (bert,) = made.served
    assert (bert.model, bert.limit_ms) == ("bert", 90.0)
    assert bert.high_rps == pytest.approx(7.5 * bert.low_rps)
    assert bert.low_rps < 40.0 < bert.high_rps
