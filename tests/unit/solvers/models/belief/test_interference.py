"""Our own interference model on a made world: pairs differ by pressures, by who they are and by a mood of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Answer, Facts, Groups, GroupSamples, ModelSpec, Origin, Quantity, Queries, Samples
from solvers.models.belief import interference
from solvers.models.belief.interference import PressureBelief, load, make
from solvers.models.belief.pressure import HOST_MAX
from solvers.models.suite import Suite, make_interference

# Model: host ms, work ms per input on the whole device, how hard it presses on DRAM.
MODELS = {
    "small": (0.5, 0.1, 0.2),
    "deep": (2.0, 0.6, 0.3),
    "wide": (0.8, 2.0, 0.8),
    "large": (3.0, 4.0, 0.5),
}
NAMES = tuple(MODELS)
PAIRS = [(a, b) for index, a in enumerate(NAMES) for b in NAMES[index + 1 :]]
MOODS = dict(zip(PAIRS, (0.05, -0.04, 0.03, -0.02, 0.01, -0.03), strict=True))
BATCHES = (2.0, 4.0, 8.0, 16.0, 32.0)
SHARES = (20.0, 40.0, 50.0, 60.0, 80.0)
NOISE = 0.004


def alone_ms(queries: Queries) -> Floats:
    rows = np.array([MODELS[queries.models[index]] for index in queries.model]).reshape(-1, 3)
    return np.asarray(rows[:, 0] + rows[:, 1] * queries.batch / (queries.share_pct / 100.0))


@dataclass(frozen=True)
class ExactSolo:
    """Knows the made world's latency alone; `wrong` is by how much it is off."""

    wrong: float = 1.0
    known: bool = True

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(name="exact", version="1", formula="the made world's own")

    def fit(self, samples: Samples) -> ExactSolo:
        return self

    def update(self, samples: Samples) -> ExactSolo:
        return self

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        unknown = Answer.unknown(len(queries))
        if not self.known:
            return unknown
        mean = alone_ms(queries) * self.wrong
        return replace(unknown, mean=mean, std=0.01 * mean)

    def dump(self) -> None:
        return None


SOLO = ExactSolo()


def single_ms(queries: Queries) -> Floats:
    return alone_ms(replace(queries, batch=np.ones(len(queries)), share_pct=np.full(len(queries), 100.0)))


def slowdowns(groups: Groups) -> Floats:
    members = groups.members
    press = np.array([MODELS[name][2] for name in members.models])[members.model] * members.share_pct / 100.0
    pressed = groups.sum_of_others(press * (0.5 + 0.1 * np.log2(members.batch)))
    host = single_ms(members) / alone_ms(members)
    mood = np.zeros(len(members))
    for number in np.unique(groups.group):
        rows = np.flatnonzero(groups.group == number)
        pair = tuple(sorted((members.models[members.model[row]] for row in rows), key=NAMES.index))
        mood[rows] = MOODS.get(pair, 0.0)
    return np.asarray(1.03 + 0.12 * pressed + (0.15 + mood) * host)


def of_pairs(pairs: list[tuple[str, str]]) -> Groups:
    rows = [
        (a, first, share, b, second) for a, b in pairs for share in SHARES for first in BATCHES for second in BATCHES
    ]
    shares = np.array([row[2] for row in rows])
    own = Queries.of([row[0] for row in rows], "V100", [row[1] for row in rows], shares)
    other = Queries.of([row[3] for row in rows], "V100", [row[4] for row in rows], 100.0 - shares)
    return Groups.pairs(own, other)


def measured(groups: Groups, seed: int = 0) -> GroupSamples:
    noise = np.random.default_rng(seed).normal(1.0, NOISE, len(groups))
    return GroupSamples(groups=groups, latency_ms=alone_ms(groups.members) * slowdowns(groups) * noise)


def seen_alone(*, with_use: bool = True) -> Samples:
    rows = [(name, batch, share) for name in NAMES for batch in (1.0, *BATCHES) for share in (*SHARES, 100.0)]
    queries = Queries.of([row[0] for row in rows], "V100", [row[1] for row in rows], [row[2] for row in rows])
    if not with_use:
        return Samples.of(queries, alone_ms(queries))
    use = np.array([MODELS[row[0]][2] * row[2] * 0.5 for row in rows])
    return Samples.of(queries, alone_ms(queries), dram_util_pct=use, l2_util_pct=use / 2)


ALONE = seen_alone()
EVERYTHING = measured(of_pairs(PAIRS))


@cache
def fitted() -> PressureBelief:
    """Taught with everything, when it is first asked for: whoever only collects tests need not wait."""
    return make(Facts(), 0).fit(EVERYTHING, SOLO, ALONE)


def r2(truth: Floats, answered: Floats) -> float:
    return float(1.0 - ((truth - answered) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def covered(truth: Floats, answer: Answer, widths: float = 1.96) -> float:
    return float(np.mean(np.abs(truth - answer.mean) <= widths * answer.std))


def some(count: int, seed: int) -> tuple[GroupSamples, GroupSamples]:
    """So many groups left out, and the rest."""
    numbers = np.unique(EVERYTHING.groups.group)
    out = np.random.default_rng(seed).choice(numbers, count, replace=False)
    return EVERYTHING.take_groups(out), EVERYTHING.take_groups(np.setdiff1d(numbers, out))


def without(pair: tuple[str, str]) -> PressureBelief:
    return make(Facts(), 0).fit(measured(of_pairs([other for other in PAIRS if other != pair])), SOLO, ALONE)


def company(models: list[str], batch: float = 8.0, share: float = 20.0, gpu_type: str = "V100") -> Groups:
    members = Queries.of(models, gpu_type, batch, share)
    return Groups(members=members, group=np.zeros(len(models), dtype=np.int64))


def test_suite_knows_it() -> None:
    assert make_interference("headroom", Facts()).spec == fitted().spec
    assert fitted().spec.online


def test_unseen_cells() -> None:
    held, rest = some(120, seed=1)
    answer = make(Facts(), 0).fit(rest, SOLO, ALONE).predict(held.groups, SOLO)
    truth = held.latency_ms / alone_ms(held.groups.members)
    assert r2(truth, answer.mean) > 0.9
    assert 0.9 <= covered(truth, answer) <= 1.0
    assert np.all(answer.distance > 0.0)
    assert np.all(answer.origin == Origin.MEASURED)


def test_unseen_pairs_are_answered_from_who_their_members_met_and_are_less_certain() -> None:
    truths, means, inside = [], [], []
    for pair in PAIRS:
        held = of_pairs([pair])
        answer = without(pair).predict(held, SOLO)
        known = fitted().predict(held, SOLO)
        assert np.all(answer.std > known.std)
        assert not answer.support.any()
        assert known.support.all()
        assert np.all(answer.origin == Origin.MEASURED)
        truths.append(slowdowns(held))
        means.append(answer.mean)
        inside.append(covered(truths[-1], answer))
    assert r2(np.concatenate(truths), np.concatenate(means)) > 0.3
    assert np.mean(inside) > 0.85


def moody(spread: float, of_pairs: float = 0.0, count: int = 7) -> tuple[Groups, Floats]:
    """Pairs of networks alike in every number, of which each suffers by a level of its own, and each pair by another
    one; with slowdowns.
    """
    random = np.random.default_rng(4)
    level, both = random.normal(1.15, spread, count), random.normal(0.0, of_pairs, (count, count))
    cells = [(a, b, *cell) for a in range(count) for b in range(a) for cell in ((2.0, 8.0), (8.0, 2.0), (8.0, 32.0))]
    own, other = (
        Queries.of([f"net{cell[side]}" for cell in cells], "V100", [cell[2 + side] for cell in cells], 50.0)
        for side in (0, 1)
    )
    members = [number for a, b, *_ in cells for number in (a, b)]
    return Groups.pairs(own, other), level[members] + np.repeat([both[a, b] for a, b, *_ in cells], 2) + random.normal(
        0.0, 0.004, len(members)
    )


class Alike(ExactSolo):
    """Every network takes what `deep` takes."""

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        return super().predict(replace(queries, models=("deep",) * len(queries.models)), quantity)


def moody_error(spread: float) -> tuple[float, PressureBelief]:
    """Root mean square error on three pairs left out, and the belief of the others."""
    groups, slow = moody(spread)
    alike = Alike()
    told = GroupSamples(groups=groups, latency_ms=alike.predict(groups.members).mean * slow)
    out = np.arange(9) + 9
    belief = make(Facts(), 0).fit(told.take_groups(np.setdiff1d(np.arange(len(slow) // 2), out)), alike, ALONE)
    held, rows = groups.take_groups(out)
    return float(np.sqrt(np.mean((belief.predict(held, alike).mean - slow[rows]) ** 2))), belief


def test_how_far_networks_depart_is_chosen_on_pairs_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, belief = moody_error(0.05)
    assert belief.departures[0] > 1.0 or belief.departures[2] > 0.0
    assert moody_error(0.0)[1].departures[0] <= 1.0
    monkeypatch.setattr(interference, "_TRIED", interference._TRIED[:1])
    usual, _ = moody_error(0.05)
    assert chosen < 0.8 * usual


PAIRS_OF_FOUR = [(a, b) for a in range(4) for b in range(a, 4)]


def peculiar(spread: float) -> tuple[Groups, Floats]:
    """Pairs of four networks alike in every number, at three splits of the device: how each suffers, what more of the
    device does to that, and how each presses is its own; with slowdowns.
    """
    random = np.random.default_rng(11)
    suffers, course, presses = (
        random.normal(0.0, spread, 4),
        random.normal(0.0, 4.0 * spread, 4),
        (random.normal(0.0, spread, 4)),
    )
    cells = [(a, b, share) for a, b in PAIRS_OF_FOUR for share in (30.0, 50.0, 70.0)]
    own = Queries.of([f"net{a}" for a, _, _ in cells], "V100", 16.0, [share for _, _, share in cells])
    other = Queries.of([f"net{b}" for _, b, _ in cells], "V100", 16.0, [100.0 - share for _, _, share in cells])
    slow = [
        1.24 + suffers[who] + course[who] * (share / 100.0 - 0.5) + presses[by]
        for a, b, first in cells
        for who, by, share in ((a, b, first), (b, a, 100.0 - first))
    ]
    return Groups.pairs(own, other), np.array(slow) + random.normal(0.0, 0.008, len(slow))


def peculiar_error(spread: float) -> tuple[float, set[float]]:
    """Root mean square error on pairs, each left out in turn, and how far networks were taken to be on their own."""
    groups, slow = peculiar(spread)
    alike, off, own = Alike(), [], set()
    told = GroupSamples(groups=groups, latency_ms=alike.predict(groups.members).mean * slow)
    for pair in range(len(PAIRS_OF_FOUR)):
        out = 3 * pair + np.arange(3)
        belief = make(Facts(), 0).fit(told.take_groups(np.setdiff1d(np.arange(len(slow) // 2), out)), alike, ALONE)
        held, rows = groups.take_groups(out)
        off.append(belief.predict(held, alike).mean - slow[rows])
        own.add(belief.departures[2])
    return float(np.sqrt(np.mean(np.concatenate(off) ** 2))), own


def test_networks_that_each_suffer_and_press_in_their_own_way_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    error, own = peculiar_error(0.03)
    assert own == {1.0}
    assert peculiar_error(0.0)[1] == {0.0}
    monkeypatch.setattr(interference, "_TRIED", tuple(each for each in interference._TRIED if not each[2]))
    assert error < 0.7 * peculiar_error(0.03)[0]


def test_a_model_fitted_before_is_still_read() -> None:
    plain = fitted().dump()
    assert isinstance(plain, dict)
    before = load({**plain, "departures": [1.0, 1.0]}, Facts())
    assert np.array_equal(before.blocks.shared.offset, fitted().blocks.shared.offset)
    assert before.departures == (1.0, 1.0, 0.0)
    assert isinstance(plain["reach"], list)
    unbounded = load({**plain, "reach": plain["reach"][:4]}, Facts())
    assert unbounded.reach == (*fitted().reach[:2], (0.0, HOST_MAX))


def level(groups: Groups) -> Floats:
    """Slowdowns of a world where host work costs nothing, while at one batch it rises with the share, which does."""
    return 1.02 + 0.3 * groups.members.share_pct / 100.0


def at_batch(batch: float) -> Groups:
    rows = [(a, share, b) for a, b in PAIRS for share in SHARES]
    shares = np.array([row[1] for row in rows])
    own = Queries.of([row[0] for row in rows], "V100", batch, shares)
    return Groups.pairs(own, Queries.of([row[2] for row in rows], "V100", batch, 100.0 - shares))


def test_what_one_batch_says_of_host_work_does_not_go_on_to_batches_far_from_it() -> None:
    groups = at_batch(16.0)
    noise = np.random.default_rng(7).normal(1.0, NOISE, len(groups))
    told = GroupSamples(groups=groups, latency_ms=alone_ms(groups.members) * level(groups) * noise)
    belief, asked = make(Facts(), 0).fit(told, SOLO, ALONE), at_batch(1.0)
    answer = belief.predict(asked, SOLO)
    assert np.mean(np.abs(answer.mean - level(asked))) < 0.06
    assert covered(level(asked), answer) > 0.9


def test_intervals_of_pairs_never_met_hold_what_they_promise() -> None:
    groups, slow = moody(0.03, 0.012, 12)
    alike, pairs = Alike(), np.repeat(np.arange(66), 3)
    told, inside = GroupSamples(groups=groups, latency_ms=alike.predict(groups.members).mean * slow), []
    for part in range(4):
        held, rows = groups.take_groups(np.flatnonzero(pairs % 4 == part))
        belief = make(Facts(), 0).fit(told.take_groups(np.flatnonzero(pairs % 4 != part)), alike, ALONE)
        inside.append(covered(slow[rows], belief.predict(held, alike)))
    assert 0.92 <= np.mean(inside) <= 0.97


def test_unmet_models_are_less_certain_still() -> None:
    without_wide = [pair for pair in PAIRS if "wide" not in pair]
    stranger = make(Facts(), 0).fit(measured(of_pairs(without_wide)), SOLO, ALONE)
    held = of_pairs([("deep", "wide")])
    answer = stranger.predict(held, SOLO)
    met = without(("deep", "wide")).predict(held, SOLO)
    assert np.all(answer.origin == Origin.SCALED)
    assert np.mean(answer.std) > np.mean(met.std)
    assert np.all(answer.distance > met.distance)
    assert covered(slowdowns(held), answer) > 0.9


def test_before_anything_was_measured() -> None:
    answer = make(Facts(), 0).predict(of_pairs(PAIRS), SOLO)
    assert np.all((answer.mean >= 1.0) & (answer.mean < 1.4))
    assert np.all(answer.std > 0.05)
    assert np.all(np.isinf(answer.distance))
    assert np.all(answer.origin == Origin.SCALED)
    assert not answer.support.any()
    assert covered(slowdowns(of_pairs(PAIRS)), answer) > 0.9


def test_utilisation_may_be_missing() -> None:
    held, rest = some(120, seed=2)
    answer = make(Facts(), 0).fit(rest, SOLO, seen_alone(with_use=False)).predict(held.groups, SOLO)
    assert r2(held.latency_ms / alone_ms(held.groups.members), answer.mean) > 0.9


@pytest.mark.parametrize("make_belief", [lambda: make(Facts(), 0), fitted], ids=["new", "taught"])
def test_nobody_disturbs_who_is_alone(make_belief: Callable[[], PressureBelief]) -> None:
    belief = make_belief()
    answer = belief.predict(company(["deep"]), SOLO)
    assert answer.mean.tolist() == [1.0]
    assert answer.std.tolist() == [0.0]
    assert answer.support.tolist() == [True]


@pytest.mark.parametrize("share", [20.0, 45.0, 100.0])
def test_another_neighbour_never_helps(share: float) -> None:
    for models in (["small", "deep"], ["deep", "wide", "wide"], ["large", "small", "never met", "deep"]):
        solo = ExactSolo(known="never met" not in models)
        before = fitted().predict(company(models, share=share), solo)
        after = fitted().predict(company([*models, "wide"], share=share), solo)
        assert np.all(before.mean >= 1.0)
        assert np.all(after.mean[: len(models)] >= before.mean)
        assert np.all(np.isfinite(after.std))


def test_what_is_oversold_costs_those_who_share_it() -> None:
    four = fitted().predict(company(["wide"] * 4, batch=32.0, share=100.0), SOLO)
    quarter = fitted().predict(company(["wide"] * 4, batch=32.0, share=25.0), SOLO)
    assert np.all(quarter.mean < 1.6)
    assert np.all((four.mean > 2.5) & (four.mean < 4.5))
    assert np.all(four.std > quarter.std)


def test_groups_of_three_teach_what_each_neighbour_adds() -> None:
    trio = Groups(members=Queries.of(["deep", "wide", "small"], "V100", 8.0, 30.0), group=np.zeros(3, dtype=np.int64))
    slow = np.array([1.4, 1.2, 1.5])
    told = GroupSamples(groups=trio, latency_ms=alone_ms(trio.members) * slow)
    belief = make(Facts(), 0)
    for _ in range(6):
        belief = belief.update(told, SOLO)
    assert belief.predict(trio, SOLO).mean == pytest.approx(slow, abs=0.06)
    pair, _ = Groups.pairs(trio.members.take(np.array([0])), trio.members.take(np.array([1]))).take_groups([0])
    assert 1.05 < belief.predict(pair, SOLO).mean[0] < 1.4


def test_learning_on_top_comes_to_the_same() -> None:
    held, rest = some(60, seed=3)
    whole = fitted().predict(held.groups, SOLO)
    started = make(Facts(), 0).fit(rest, SOLO, ALONE)
    answer = started.update(held, SOLO).predict(held.groups, SOLO)
    assert answer.mean == pytest.approx(whole.mean, abs=0.004)
    assert np.all(answer.distance == 0.0)
    assert np.all(answer.std <= started.predict(held.groups, SOLO).std)


def test_a_single_outcome_moves_its_own_pair_most_and_a_mad_one_little() -> None:
    start = without(("deep", "wide"))
    one, _ = of_pairs([("deep", "wide")]).take_groups([30])
    other, _ = of_pairs([("small", "large")]).take_groups([30])
    before = start.predict(one, SOLO)
    told = start.update(GroupSamples(groups=one, latency_ms=alone_ms(one.members) * (before.mean + 0.05)), SOLO)
    moved = told.predict(one, SOLO).mean - before.mean
    assert np.all(moved > 0.02)
    assert np.abs(told.predict(other, SOLO).mean - start.predict(other, SOLO).mean).max() < 0.2 * moved.min()
    known, _ = of_pairs([("deep", "large")]).take_groups([30])
    mad = start.update(GroupSamples(groups=known, latency_ms=alone_ms(known.members) * 20.0), SOLO)
    assert np.abs(mad.predict(known, SOLO).mean - start.predict(known, SOLO).mean).max() < 0.02


def test_a_few_mad_measurements_do_not_bend_the_fit() -> None:
    latency = EVERYTHING.latency_ms.copy()
    latency[::150] *= 1.8
    bent = make(Facts(), 0).fit(replace(EVERYTHING, latency_ms=latency), SOLO, ALONE)
    difference = bent.predict(EVERYTHING.groups, SOLO).mean - fitted().predict(EVERYTHING.groups, SOLO).mean
    assert np.abs(difference).max() < 0.05
    assert np.abs(difference).mean() < 0.01


def test_a_suite_trusts_what_was_measured_alone_over_the_belief() -> None:
    groups, _ = EVERYTHING.groups.take_groups([40])
    wrong = ExactSolo(wrong=0.9)
    suite = Suite(name="headroom", solo=wrong, interference=make(Facts(), 0).fit(EVERYTHING, wrong, ALONE))
    truth = alone_ms(groups.members) * slowdowns(groups)
    answer = suite.predict_groups(groups)
    assert answer.mean == pytest.approx(truth, rel=0.02)
    assert answer.std / answer.mean == pytest.approx(
        fitted().predict(groups, SOLO).std / fitted().predict(groups, SOLO).mean, rel=0.1
    )
    elsewhere = replace(groups.members, batch=np.array([5.0, 7.0]))
    believed = suite.predict_groups(replace(groups, members=elsewhere))
    assert np.all(believed.mean < 0.95 * alone_ms(elsewhere) * slowdowns(replace(groups, members=elsewhere)))
    assert np.all(believed.std > answer.std / answer.mean * believed.mean)
    single = suite.predict_groups(company(["deep"]))
    assert single.mean == pytest.approx(wrong.predict(company(["deep"]).members).mean)
    assert np.all(single.std > 0.0)


def test_latency_alone_is_believed_where_it_was_not_measured() -> None:
    one = [("deep", 8.0, 40.0)]
    little = Samples.of(Queries.of(one[0][0], "V100", one[0][1], one[0][2]), [4.0 / 3.0 * 10.5])
    held, rest = some(120, seed=4)
    answer = make(Facts(), 0).fit(rest, SOLO, little).predict(held.groups, SOLO)
    assert r2(held.latency_ms / alone_ms(held.groups.members), answer.mean) > 0.85


def test_rows_that_say_nothing_are_left_out() -> None:
    nothing = replace(EVERYTHING, latency_ms=np.full(len(EVERYTHING.latency_ms), np.nan))
    fresh = make(Facts(), 0)
    groups = EVERYTHING.groups
    assert np.array_equal(
        fresh.fit(nothing, SOLO, ALONE).predict(groups, SOLO).std,
        fresh.fit(nothing, SOLO, ALONE).update(nothing, SOLO).predict(groups, SOLO).std,
    )
    assert not fresh.fit(nothing, SOLO, ALONE).encounters.met
    half = EVERYTHING.latency_ms.copy()
    half[1::2] = np.nan
    first = make(Facts(), 0).fit(replace(EVERYTHING, latency_ms=half), SOLO, ALONE)
    assert r2(slowdowns(groups)[::2], first.predict(groups, SOLO).mean[::2]) > 0.9


def test_same_data_same_answers_in_any_order() -> None:
    numbers = np.unique(EVERYTHING.groups.group)
    again = make(Facts(), 7).fit(EVERYTHING, SOLO, ALONE)
    assert np.array_equal(again.predict(EVERYTHING.groups, SOLO).mean, fitted().predict(EVERYTHING.groups, SOLO).mean)
    back = np.concatenate([[2 * number, 2 * number + 1] for number in numbers[::-1]])
    turned = GroupSamples(
        groups=Groups(members=EVERYTHING.groups.members.take(back), group=EVERYTHING.groups.group),
        latency_ms=EVERYTHING.latency_ms[back],
    )
    answer = make(Facts(), 0).fit(turned, SOLO, ALONE).predict(EVERYTHING.groups, SOLO)
    assert answer.mean == pytest.approx(fitted().predict(EVERYTHING.groups, SOLO).mean, abs=1e-6)


@pytest.mark.parametrize("make_belief", [lambda: make(Facts(), 0), fitted], ids=["new", "taught"])
def test_dump_and_load(make_belief: Callable[[], PressureBelief]) -> None:
    belief = make_belief()
    plain = json.loads(json.dumps(belief.dump(), allow_nan=False))
    back = load(plain, Facts())
    for groups in (EVERYTHING.groups, company(["wide", "deep", "small"])):
        before, after = belief.predict(groups, SOLO), back.predict(groups, SOLO)
        for column in ("mean", "std", "support", "distance", "origin"):
            assert np.array_equal(getattr(before, column), getattr(after, column))
    one = EVERYTHING.take_groups([5])
    assert np.allclose(
        back.update(one, SOLO).predict(one.groups, SOLO).mean, belief.update(one, SOLO).predict(one.groups, SOLO).mean
    )


@pytest.mark.parametrize(
    "change",
    [
        {"noise": 0.0},
        {"noise": "much"},
        {"strangeness": None},
        {"departures": [1.0]},
        {"departures": [1.0, -1.0]},
        {"departures": [1.0, 1.0, 2.0]},
        {"departures": [1.0, 1.0, 0.0, 0.0]},
        {"shared": {"names": ["nobody:V100|deep"]}},
        {"circles": 3},
        {"encounters": [["V100", "deep"]]},
        {"encounters": 3},
        {"reach": [0.0, 1.0]},
        {"reach": [0.0, 1.0, 0.0, 1.0, 0.0]},
        {"alone": {}},
    ],
)
def test_what_is_no_dump_is_refused(change: dict[str, Plain]) -> None:
    plain = fitted().dump()
    assert isinstance(plain, dict)
    with pytest.raises(InputError):
        load({**plain, **change}, Facts())
    for name in change:
        with pytest.raises(InputError):
            load({key: item for key, item in plain.items() if key != name}, Facts())


def test_other_gpu_types_are_answered_by_pressures() -> None:
    answer = fitted().predict(company(["deep", "wide"], gpu_type="A100"), SOLO)
    assert np.all(answer.origin == Origin.SCALED)
    assert np.all(np.isinf(answer.distance))
    assert np.all(answer.std > fitted().predict(company(["deep", "wide"]), SOLO).std)


def test_nothing_asked_nothing_answered() -> None:
    none = EVERYTHING.groups.take_groups([])[0]
    assert len(fitted().predict(none, SOLO).mean) == 0


def test_in_a_suite_latency_beside_neighbours_is_above_latency_alone() -> None:
    suite = Suite(name="headroom", solo=SOLO, interference=fitted())
    groups = of_pairs([("small", "wide")])
    assert np.all(suite.predict_groups(groups).mean > alone_ms(groups.members))
