"""Gavel's table: what classes, sharing and dealing leave true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gavel import ungrouped, violation
from lab.gavel.planner import share, share_part
from lab.gavel.problem import Allocation, ThroughputTable, deal, nobodys, progress


def table(seed: int, kinds: int = 4, jobs: int = 12) -> ThroughputTable:
    """Random kinds of random counts; half of the couples go well together."""
    rng = np.random.default_rng(seed)
    count = 1 + rng.multinomial(jobs - kinds, np.full(kinds, 1 / kinds))
    speed = rng.uniform(0.2, 3.0, (kinds, 3))
    speed[0, 0] = 0.0
    pairs = np.array([(a, b) for a in range(kinds) for b in range(a, kinds) if a != b or count[a] >= 2])
    pair_speed = speed[pairs].transpose(0, 2, 1) * rng.uniform(0.2, 1.0, (len(pairs), 3, 2))
    pair_speed = np.where((pairs[:, 0] == pairs[:, 1])[:, None, None], pair_speed.mean(2, keepdims=True), pair_speed)
    able = (pair_speed > 0).all(axis=2, keepdims=True)
    return ThroughputTable(
        speed=speed,
        gpus=rng.choice([1, 2], size=kinds),
        count=count.astype(np.int64),
        weight=rng.choice([1.0, 2.0], size=kinds),
        devices=np.array([3.0, 2.0, 4.0]),
        pairs=pairs,
        pair_speed=np.where(able, pair_speed, 0.0),
    )


def one_gpu(pair_speed: float) -> ThroughputTable:
    """Two jobs of one kind and a single GPU."""
    return ThroughputTable(
        speed=np.array([[2.0]]),
        gpus=np.array([1]),
        count=np.array([2]),
        weight=np.ones(1),
        devices=np.ones(1),
        pairs=np.array([[0, 0]]),
        pair_speed=np.full((1, 1, 2), pair_speed),
    )


def test_two_jobs_share_a_gpu_by_turns_or_together() -> None:
    assert share(one_gpu(1.6).alone()).least == pytest.approx(0.5)
    assert share(one_gpu(1.6)).least == pytest.approx(0.8)
    assert share(one_gpu(0.9)).least == pytest.approx(0.5)


def test_who_gains_most_from_the_fast_type_gets_it() -> None:
    mixed = ThroughputTable(
        speed=np.array([[3.0, 1.0], [1.0, 1.0]]),
        gpus=np.ones(2, dtype=np.int64),
        count=np.ones(2, dtype=np.int64),
        weight=np.ones(2),
        devices=np.ones(2),
        pairs=np.zeros((0, 2), dtype=np.int64),
        pair_speed=np.zeros((0, 2, 2)),
    )
    shared = share(mixed, spread=True)
    assert shared.least == pytest.approx(1.0)
    assert shared.allocation.single[0, 0] == pytest.approx(1.0, abs=1e-5)
    assert progress(mixed, shared.allocation)[0] == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_classes_reach_what_single_jobs_reach(seed: int) -> None:
    asked = table(seed)
    by_class, by_job = share(asked), share(ungrouped(asked))
    assert by_class.least == pytest.approx(by_class.bound, rel=1e-6)
    assert by_job.least == pytest.approx(by_class.least, rel=1e-5)
    assert violation(asked, by_class.allocation) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_the_second_stage_takes_nothing_from_the_worst_off(seed: int) -> None:
    asked = table(seed)
    first, both = share(asked), share(asked, spread=True)
    jobs = asked.count
    assert both.least >= first.least * (1 - 1e-5)
    gained = (progress(asked, both.allocation) * jobs).sum() - (progress(asked, first.allocation) * jobs).sum()
    assert gained >= -1e-5
    assert violation(asked, both.allocation) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_parts_hold_every_job_once_and_reach_no_more_than_the_whole(seed: int) -> None:
    asked = table(seed)
    classes = np.repeat(np.arange(len(asked.count)), asked.count)
    dealt = deal(len(classes), 3, np.random.default_rng(seed))
    assert sorted(np.concatenate(dealt)) == list(range(len(classes)))
    parts = [share_part(asked, classes[members], 3) for members in dealt]
    together = Allocation(
        single=np.sum([part.allocation.single for part in parts], axis=0),
        paired=np.sum([part.allocation.paired for part in parts], axis=0),
    )
    assert violation(asked, together) < 1e-6
    assert min(part.least for part in parts) <= share(asked).least + 1e-6


def test_what_breaks_a_rule_is_seen() -> None:
    asked = one_gpu(1.6)
    nothing = nobodys(asked)
    assert violation(asked, nothing) == 0.0
    assert violation(asked, replace(nothing, single=np.array([[1.5]]))) == pytest.approx(0.5)
    assert violation(replace(asked, devices=np.array([4.0])), replace(nothing, paired=np.array([[1.5]]))) > 0.49
    assert violation(asked, replace(nothing, single=np.array([[-0.2]]))) == pytest.approx(0.2)
