"""Pods that come one by one: nothing is given twice, what fits is taken, and keeping places for what is expected gives
more of the GPUs away than any rule that looks at one pod alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.arena import loading
from lab.benches.packing.allocation import Asks, EmptyHost, HostRooms, RoomLeft, mix
from lab.benches.packing.bench import RULES, LeastFragments, PodPacking, Reserving, expected
from lab.outcome import RunContender, RunOutcome, check_outcome
from solvers.engines.base import create
from solvers.errors import EngineError, InputError
from solvers.planners.registry import create as planner

ROOT = Path(__file__).resolve().parents[5]
SMALL = ROOT / "examples" / "scenarios" / "openb-small.yaml"


def small() -> PodPacking:
    bench = loading.load(SMALL, None)
    assert isinstance(bench, PodPacking)
    return bench


def ran(bench: PodPacking, name: str, seed: int = 1) -> RunOutcome:
    made = bench.run(
        RunContender(label=name, planners=(name,)), seed, lambda name, _: planner(name), progress=lambda part: None
    )
    check_outcome(made)
    return made


def at(outcome: RunOutcome, mark: int) -> float:
    found = outcome.metric(f"allocated_pct_at_{mark}")
    assert found is not None
    return found


def test_keeping_places_gives_more_away_than_looking_at_one_pod_alone() -> None:
    bench = small()
    ours = ran(bench, "reserving")
    assert ours == ran(bench, "reserving")
    assert ours != ran(bench, "reserving", seed=2)
    means = {name: sum(at(ran(bench, name, seed), 100) for seed in (1, 2, 3)) / 3 for name in RULES}
    assert all(0 < mean <= 100 for mean in means.values())
    assert len(set(means.values())) > 5
    assert means["reserving"] > max(mean for name, mean in means.items() if name not in ("reserving", "packing"))


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(EngineError, match="places no pods"):
        ran(small(), "greedy")


def asks() -> Asks:
    return Asks(
        cpu_milli=np.array([4000, 8000, 16000, 2000]),
        memory_mib=np.array([8192, 8192, 8192, 1024]),
        gpus=np.array([1, 1, 2, 0]),
        gpu_milli=np.array([400, 600, 1000, 0]),
        allowed=np.array([[True, True], [True, False], [True, True], [True, True]]),
    )


def test_a_pod_that_fits_anywhere_is_taken_and_nothing_is_given_twice() -> None:
    hosts = [EmptyHost(0, 32_000, 65_536, 2), EmptyHost(1, 16_000, 65_536, 2), EmptyHost(0, 32_000, 65_536, 2)]
    kinds = asks()
    counts = np.array([4, 4, 1, 2])
    rule = LeastFragments(expected(kinds, counts))
    ours = Reserving(kinds, hosts, mix(kinds, hosts, counts, create("highs")), rule)
    ties, left = np.random.default_rng(1), [[host.cpu_milli, host.memory_mib, 1000 * host.gpus] for host in hosts]
    refused = 0
    for ask in np.random.default_rng(2).permutation(np.repeat(np.arange(4), 6)):
        row = ours.room()
        fits = row.fits(kinds, int(ask)).any()
        host = ours.place(int(ask), ties)
        assert (host is not None) == fits
        if host is None:
            refused += 1
            continue
        assert kinds.allowed[ask][hosts[host].model]
        for part, need in enumerate((kinds.cpu_milli, kinds.memory_mib, kinds.need_milli)):
            left[host][part] -= int(need[ask])
        assert min(left[host]) >= 0
    assert 0 < refused < 24


def test_the_plan_mixes_what_fits_together() -> None:
    hosts = [EmptyHost(0, 32_000, 65_536, 2)] * 4
    counts = np.array([8, 8, 0, 0])
    found = mix(asks(), hosts, counts, create("highs"))
    assert [(sorted(ask for ask, _ in filling), times) for _, filling, times in found] == [([0, 0, 1, 1], 4)]


def test_fragments_are_what_expected_pods_cannot_use() -> None:
    kinds = asks()
    half = expected(kinds, np.array([1, 1, 0, 0]))
    room = RoomLeft(np.array([0, 1]), np.array([6000, 6000]), np.array([1, 1]), np.array([[1000, 500], [1000, 500]]))
    # The larger pod lacks CPU (and may not run on the second model): all room is lost to it.
    assert half.fragments(room.model, room.cpu_milli, room.gpu_milli) == pytest.approx([750.0, 750.0])
    assert half.fragments(room.model, room.cpu_milli + 4000, room.gpu_milli) == pytest.approx([250.0, 750.0])


def test_the_fullest_gpu_that_leaves_no_fragment_is_shared() -> None:
    kinds = asks()
    rooms = HostRooms(kinds, [EmptyHost(0, 64_000, 65_536, 2)], LeastFragments(expected(kinds, np.array([1, 1, 0, 0]))))
    ties = np.random.default_rng(1)
    for ask in (1, 0):
        place = rooms.best(ask, ties)
        assert place is not None
        rooms.take(place, ask)
    assert rooms.row(0)[3:] == (1000, 0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("gpu_models: [v100]", "gpu_models: [h100]", "no host has a h100"),
        ("hosts:\n", "openb: {pods: default}\nhosts:\n", "say hosts and pods, or openb"),
        ("cpus: 64", "cpus: 0", "greater than or equal to 1"),
    ],
)
def test_faults_are_told_by_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    file = tmp_path / "openb-small.yaml"
    file.write_text(SMALL.read_text(encoding="utf-8").replace(before, after, 1), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        loading.load(file, None)
