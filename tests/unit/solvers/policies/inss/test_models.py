"""InSS from its profiling plan: sixteen runs alone, five in company.

InSS' running term at the fixtures of the catalogue (A2), and its tables' errors (AC-INS-01).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from solvers.models.base import Groups, GroupSamples, Queries, Samples
from solvers.models.parts.curves import Rows
from solvers.policies.inss import models
from solvers.policies.inss.models import l2_lines, profiling_plan, run_ms
from tests import laws

# Observed ms, predicted ms, printed error in percent; Table 2 (by batch 1, 4, 8, 16), then Table 3 (by share 6, 24,
# 42, 60 %).
TABLES = (
    (8.690, 8.905, 2.474), (23.285, 23.888, 2.588), (43.422, 43.405, 0.041), (71.456, 71.396, 0.084),
    (2.848, 2.894, 1.620), (5.674, 5.750, 1.327), (8.898, 8.975, 0.868), (10.191, 10.487, 2.909),
    (18.196, 18.207, 0.060), (62.009, 59.984, 3.265), (120.382, 117.064, 2.756), (176.308, 170.879, 3.080),
    (13.686, 13.185, 3.659), (4.241, 4.101, 3.316), (3.468, 3.461, 0.214), (3.409, 3.395, 0.413),
    (43.016, 41.909, 2.574), (11.446, 11.586, 1.228), (7.422, 7.136, 3.861), (5.483, 5.433, 0.910),
    (358.270, 355.554, 0.758), (91.690, 90.465, 1.336), (53.947, 53.071, 1.624), (39.411, 38.279, 2.870),
    (15.515, 16.108, 3.818), (16.170, 16.416, 1.522), (16.958, 16.725, 1.372), (17.516, 17.114, 2.294),
)  # fmt: skip


def test_errors_of_the_tables_recompute() -> None:
    observed, predicted, printed = (np.array(column) for column in zip(*TABLES, strict=True))
    errors = 100.0 * np.abs(predicted - observed) / observed
    assert len(errors) == 28
    assert np.abs(errors - printed).max() <= 0.02
    assert round(float(errors.max()), 3) == 3.853
    assert round(float(errors.mean()), 3) == 1.886


def test_the_running_term_of_the_fixtures() -> None:
    assert run_ms(np.array([20.0]), np.array([0.6]), np.array([0.12 + 0.10])) == pytest.approx([22.64])


PLAN = {"batches": (1, 4, 16, 32), "shares": (20, 40, 60, 80)}


def plan() -> Samples:
    return laws.solo(**PLAN)


def test_sixteen_runs_tell_the_rest_within_four_percent() -> None:
    model = models.ALONE.make(laws.facts()).fit(plan())
    asked = laws.solo(batches=(2, 8, 12, 24), shares=(30, 50, 70)).queries
    answer = model.predict(asked)
    wrong = np.abs(answer.mean / laws.latency_ms(asked) - 1.0)
    assert wrong.mean() < 0.04
    assert np.mean(np.abs(answer.mean - laws.latency_ms(asked)) <= 1.96 * answer.std) > 0.9


@pytest.mark.parametrize(
    ("batches", "shares", "planned"),
    [
        (range(1, 33), range(10, 101, 10), ((1, 3, 10, 32), (10, 40, 70, 100))),
        ((1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32), (6, 36, 66, 72, 100), ((1, 4, 10, 32), (6, 36, 66, 100))),
        ((1, 8, 64), (50, 100), ((1, 8, 64), (50, 100))),
    ],
)
def test_runs_are_as_even_as_the_kernel_measures_distance(
    batches: Sequence[int], shares: Sequence[int], planned: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    measured = np.ones((len(shares), len(batches)), dtype=np.bool_)
    rows, columns = np.nonzero(profiling_plan(measured, np.array(shares, float), np.array(batches, float)))
    assert (tuple(np.unique(np.array(batches)[columns])), tuple(np.unique(np.array(shares)[rows]))) == planned
    assert len(rows) == len(planned[0]) * len(planned[1])


def test_a_share_at_which_little_was_tried_costs_no_runs() -> None:
    measured = np.ones((6, 8), dtype=np.bool_)
    measured[[0, 5], 1:] = False
    plan = profiling_plan(measured, np.array([10.0, 20.0, 40.0, 60.0, 80.0, 100.0]), 2.0 ** np.arange(8))
    assert list(plan.sum(axis=1)) == [0, 4, 4, 4, 4, 0]
    assert list(plan.sum(axis=0)) == [4, 0, 4, 0, 0, 4, 0, 4]


def test_a_power_law_is_met_everywhere() -> None:
    queries = plan().take(plan().queries.model == 0).queries
    latency = 3.0 * queries.batch**0.8 / (queries.share_pct / 100.0) ** 0.6
    curve = models.learn_alone(
        Rows(batch=queries.batch, share_pct=queries.share_pct, cycle=np.ones(len(queries)), value=latency)
    )
    found = curve(np.array([2.0, 64.0]), np.array([33.0, 100.0]), np.array([1.0, 2.0]))
    assert found == pytest.approx([3.0 * 2**0.8 / 0.33**0.6, 2.0 * 3.0 * 64**0.8], rel=1e-3)


def test_no_sample_sees_itself_when_the_reach_is_chosen() -> None:
    """What scatters is smoothed: a kernel that saw each sample itself would take the narrowest reach for perfect."""
    rng = np.random.default_rng(2)
    batch, share = (axis.ravel() for axis in np.meshgrid([1.0, 2.0, 4.0, 8.0, 16.0], [20.0, 40.0, 60.0, 80.0, 100.0]))
    law = 3.0 * batch**0.8 / (share / 100.0) ** 0.7
    rows = Rows(batch=batch, share_pct=share, cycle=np.ones(25), value=law * np.exp(rng.normal(0.0, 0.1, 25)))
    plane = models.learn_alone(rows)
    assert plane.reach > models.BANDWIDTHS[0]
    narrowest = replace(plane, reach=models.BANDWIDTHS[0])
    wrong = [np.abs(np.log(each(batch, share, np.ones(25)) / law)).mean() for each in (plane, narrowest)]
    assert wrong[0] < wrong[1]


def test_l2_use_is_a_line_over_the_share() -> None:
    lines = l2_lines(plan())
    assert lines["res", laws.GPU] == pytest.approx((laws.L2["res"], 0.0), abs=1e-9)
    members = Queries.of(["res", "vgg"], laws.GPU, 1, [50, 20])
    told = models.l2_use(members, {("res", laws.GPU): (0.4, 0.1)})
    # Of whom nobody measured, the usual share of the whole device.
    assert told == pytest.approx([0.4 * 0.5 + 0.1, models.L2_PER_SHARE * 0.2])
    bare = Samples.of(Queries.of("res", laws.GPU, 1, 50), [2.0])
    assert l2_lines(bare) == {}


def test_company_is_learnt_from_few_runs() -> None:
    pairs = laws.measured(laws.pairs())
    count = int(pairs.groups.group.max()) + 1
    some = np.random.default_rng(0).permutation(count)[:10]
    solo = models.ALONE.make(laws.facts()).fit(plan())
    model = models.BESIDE.make(laws.facts()).fit(pairs.take_groups(some), solo, laws.solo())
    answer = model.predict(pairs.groups, solo)
    truth = laws.slowdown(pairs.groups)
    ignored = np.abs(1.0 - truth).mean()
    assert np.abs(answer.mean - truth).mean() < 0.5 * ignored


def test_launching_grows_with_the_number_of_models() -> None:
    rows = []
    for size in (2, 3, 4):
        rows += [(model, size, group) for group in range(6) for model in ["alex", "res", "vgg", "ssd"][:size]]
    members = Queries.of([row[0] for row in rows], laws.GPU, [2 ** (row[2] % 3) for row in rows], 20)
    group = np.unique([row[1] * 10 + row[2] for row in rows], return_inverse=True)[1]
    groups = Groups(members=members, group=group.astype(np.int64))
    alone = laws.latency_ms(members)
    truth = 1.0 + 0.2 * (groups.count_of_others()) / alone
    solo = models.ALONE.make(laws.facts()).fit(laws.solo(batches=(1, 2, 4)))
    measured = GroupSamples(groups=groups, latency_ms=alone * truth)
    model = models.BESIDE.make(laws.facts()).fit(measured, solo, laws.solo(batches=(1, 2, 4)))
    assert model.predict(groups, solo).mean == pytest.approx(truth, rel=0.02)
    assert isinstance(model.formula, models.InssTerms)
    assert model.formula.growth == pytest.approx(1.0, abs=0.2)


def test_a_stranger_waits_for_its_kernels() -> None:
    groups = laws.pairs([("res", "vgg")])
    alone = laws.latency_ms(groups.members)
    kernels = np.array([laws.LAYERS[name] for name in groups.members.models])[groups.members.model]
    measured = GroupSamples(groups=groups, latency_ms=alone + 0.01 * kernels)
    solo = models.ALONE.make(laws.facts()).fit(laws.solo())
    model = models.BESIDE.make(laws.facts()).fit(measured, solo, laws.solo())
    assert isinstance(model.formula, models.InssTerms)
    assert model.formula.coefficients(("ssd", laws.GPU)).launch_ms == pytest.approx(0.93, rel=0.1)
    unknown = model.formula.coefficients(("gpt", laws.GPU))
    assert unknown.launch_ms == model.formula.usual.launch_ms
