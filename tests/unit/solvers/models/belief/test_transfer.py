"""What models measured on a GPU type say of one more.

Beliefs about what was never measured: the right rung, moved the right way, wider the farther away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from app.library import facts as shipped
from solvers.domain.arrays import Floats
from solvers.domain.workload import ModelVariant, QualityClass
from solvers.models.base import Facts, Origin
from solvers.models.belief import forms, likeness
from solvers.models.belief.forms import LATENCY, ShapePrior
from solvers.models.belief.likeness import Example, learned_law, shift, size_features
from solvers.models.belief.siblings import Sibling, Told, joined, moved_entry, size_law, voices
from solvers.models.belief.transfer import Scaling, entry_prior
from solvers.models.library import LibraryEntry
from tests import builders
from tests.unit.solvers.models.belief.alone import learned, parameters

FACTS = shipped()
SCALING = Scaling.of(FACTS)
BARE = Scaling.of(Facts(gpu_types=FACTS.gpu_types, models=FACTS.models))
NATURAL = np.array([4.0, 1.0, 0.05, 0.8, 0.4, 0.1, 0.5, 4.0, 8.0, 0.8])
HERE = ShapePrior(mean=learned(NATURAL), covariance=1e-4 * np.eye(forms.COUNT), origin=Origin.MEASURED, source="here")
Known = Mapping[tuple[str, str], ShapePrior]


def latency(prior: ShapePrior | None, batch: float, share: float = 1.0) -> float:
    assert prior is not None
    return float(np.exp(forms.log_latency(prior.mean, batch, share)))


def doubt(prior: ShapePrior | None, batch: float = 8.0) -> float:
    """Standard deviation of log latency, in the middle of the usual shares."""
    assert prior is not None
    slope: Floats = LATENCY.evaluate(prior.mean, *(np.array([batch]), np.array([0.5]), np.ones(1))).slope
    return float(np.sqrt(slope @ prior.covariance @ slope.T)[0, 0])


def test_a_model_measured_here_moves_to_other_gpu_types() -> None:
    known = {("net", "v100"): HERE}
    faster, slower = (BARE.prior("net", name, known) for name in ("a100", "t4"))
    assert latency(faster, 64) < 0.8 * latency(HERE, 64)
    assert 1.4 * latency(HERE, 64) < latency(slower, 64) < 4 * latency(HERE, 64)
    # What the host bounds hardly changes.
    assert 0.7 < latency(faster, 1) / latency(HERE, 1) <= 1
    assert faster is not None
    assert faster.origin is Origin.SCALED
    assert faster.source == "scaled from net measured on v100"


def test_one_input_fills_more_of_a_smaller_gpu() -> None:
    moved = BARE.prior("net", "t4", {("net", "v100"): HERE})
    assert moved is not None
    assert forms.natural(moved.mean)[forms.FILL] == pytest.approx(2 * NATURAL[forms.FILL])


def test_moving_back_and_forth_is_moving_nowhere() -> None:
    for of in FACTS.gpu_types.values():
        there = shift(of, FACTS.gpu_types["v100"])
        assert shift(FACTS.gpu_types["v100"], of) == pytest.approx(-there)
        assert not likeness.spread(of, of).any()


def test_several_gpu_types_are_mixed_and_disagreement_widens() -> None:
    twice = ShapePrior(mean=HERE.mean.copy(), covariance=HERE.covariance, origin=HERE.origin, source=HERE.source)
    twice.mean[forms.TIMES] += np.log(4.0)
    one = BARE.prior("net", "a30", {("net", "v100"): HERE})
    both = BARE.prior("net", "a30", {("net", "v100"): HERE, ("net", "v100-16gb"): twice})
    assert latency(one, 8) < latency(both, 8)
    assert doubt(both) > doubt(one) + 0.2


def test_spelling_does_not_matter() -> None:
    assert BARE.prior("Net", "NVIDIA A100-SXM4-80GB", {("net", "Tesla V100"): HERE}) is not None


def test_the_library_answers_where_nothing_was_measured() -> None:
    assert FACTS.library is not None
    entry = FACTS.library.entry("resnet50", "v100")
    assert entry is not None
    found = SCALING.prior("ResNet-50", "V100", {})
    assert found is not None
    assert found.origin is Origin.LIBRARY
    assert found.mean == pytest.approx(entry_prior(entry).mean)
    assert "RaPP" in found.source
    assert 0.25 < doubt(found) < 0.7


def test_only_measurements_here_are_sure() -> None:
    rungs = [
        BARE.prior("resnet50", "a30", {("resnet50", "a100"): HERE}),
        SCALING.prior("resnet50", "v100", {}),
        SCALING.prior("resnet50", "l4", {}),
        SCALING.prior("swin_b", "l4", {}),
    ]
    assert [prior.source.split()[0] for prior in rungs if prior] == ["scaled", "library:", "scaled", "scaled"]
    doubts = [doubt(prior) for prior in rungs]
    assert doubts[0] < 0.3
    assert all(0.35 < wide < 1.2 for wide in doubts[1:])
    assert doubts[3] == max(doubts)


def test_family_comes_before_size_and_says_so() -> None:
    by_family = SCALING.prior("efficientnet_b3", "v100", {})
    by_size = SCALING.prior("swin_t", "v100", {})
    assert by_family is not None
    assert by_size is not None
    assert by_family.source.startswith("scaled from the family efficientnet: efficientnet_b0")
    assert by_size.source == "scaled by size: 4.49 GFLOP, 28.29 M parameters"
    # Like its neighbours in the family, which take longer than their operations say.
    smaller, larger = (SCALING.prior(name, "v100", {}) for name in ("mnasnet0_5", "efficientnet_b6"))
    assert latency(smaller, 8, 0.2) < latency(by_family, 8, 0.2) < latency(larger, 8, 0.2)


def test_more_work_takes_longer() -> None:
    swins = [SCALING.prior(name, "v100", {}) for name in ("swin_t", "swin_s", "swin_b")]
    times = [latency(prior, 32, 0.3) for prior in swins]
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]


def test_other_models_measured_here_tell_about_this_host() -> None:
    alone = SCALING.prior("swin_t", "v100", {})
    known = {}
    for name in ("vit_b_16", "resnet50", "vgg16"):
        prior = SCALING.prior(name, "v100", {})
        assert prior is not None
        mean = prior.mean.copy()
        mean[forms.TIMES] -= np.log(3.0)
        known[name, "v100"] = ShapePrior(mean=mean, covariance=HERE.covariance, origin=Origin.MEASURED, source="here")
    beside = SCALING.prior("swin_t", "v100", known)
    assert latency(beside, 8) < 0.6 * latency(alone, 8)
    assert doubt(beside) < doubt(alone)
    assert beside is not None
    assert beside.source.endswith("beside 3 measured here")
    assert np.all(np.linalg.eigvalsh(beside.covariance) > 0)


def test_what_the_library_knows_elsewhere_is_moved_as_others_differ_here() -> None:
    """An H200's graphs at half precision took a third of what those who measured networks on a V100 foretold."""
    alone = SCALING.prior("googlenet", "h200", {})
    assert alone is not None
    assert alone.source == "scaled from the library: googlenet on v100"

    def beside(name: str, gpu_type: str) -> ShapePrior:
        told = next(it for it in SCALING.entries if it.key == name and it.gpu_type.name == "v100")
        moved = np.array(told.entry.parameters) + shift(told.gpu_type, SCALING.gpu_types["h200"])
        mean = moved - np.log(3.0) * forms.ALL_TIMES
        faster = ShapePrior(mean=mean, covariance=HERE.covariance, origin=Origin.MEASURED, source="here")
        found = SCALING.prior("googlenet", "h200", {(name, gpu_type): faster})
        assert found is not None
        return found

    # Others have measured vgg19 on an A100 and an H200; they did not measure the network that is asked about.
    here = beside("vgg19", "h200")
    part = 1 / 1.7
    assert latency(here, 8) == pytest.approx(latency(alone, 8) / 3.0**part, rel=1e-6)
    # How each differs by itself is not known any better.
    assert np.array_equal(here.covariance, alone.covariance)
    assert here.source.endswith("beside 1 measured here")
    # What was measured on another GPU type says nothing of this host.
    assert latency(beside("vgg19", "h100"), 8) == latency(alone, 8)


def test_the_library_has_what_our_own_boards_told() -> None:
    """Medians of ResNet-50 at half precision as a CUDA graph, in tests/recordings."""
    recorded = {"h100": {1: 1.14, 4: 1.38, 16: 2.48, 64: 7.43}, "h200": {1: 1.11, 4: 1.38, 16: 2.36, 64: 6.84}}
    for gpu_type, medians in recorded.items():
        prior = SCALING.prior("resnet50", gpu_type, {})
        assert prior is not None
        assert prior.origin is Origin.LIBRARY
        assert "Headroom's own recordings" in prior.source
        for batch, median_ms in medians.items():
            assert latency(prior, batch) == pytest.approx(median_ms, rel=0.12)


def test_entries_on_far_gpu_types_are_no_examples_of_a_law() -> None:
    """Graphs on Hopper say little of what a Volta's host makes of a network."""
    near = [it for it in SCALING.entries if it.gpu_type.name not in ("h100", "h200")]
    without = Scaling(facts=FACTS, gpu_types=SCALING.gpu_types, entries=tuple(near))
    for gpu_type, alike in {"v100": True, "t4": True, "h100": False}.items():
        said = [one.prior("swin_b", gpu_type, {}) for one in (SCALING, without)]
        assert (latency(said[0], 8) == latency(said[1], 8)) is alike


def test_where_nothing_is_known_nothing_is_guessed() -> None:
    assert SCALING.prior("nobody-knows-this", "v100", {}) is None
    assert SCALING.prior("swin_t", "no-such-gpu", {}) is None
    assert Scaling.of(Facts()).prior("resnet50", "v100", {}) is None
    assert BARE.prior("swin_t", "v100", {}) is None


def test_a_declared_model_needs_no_measurement() -> None:
    declared = builders.model("my-net", family="mine", parameters_million=30.0, gflop_per_input=5.0)
    facts = Facts(gpu_types=FACTS.gpu_types, models={**FACTS.models, "my-net": declared}, library=FACTS.library)
    prior = Scaling.of(facts).prior("my-net", "t4", {})
    assert prior is not None
    assert prior.source.startswith("scaled by size")
    assert 2 < latency(prior, 8) < 200


def test_covariances_are_proper() -> None:
    for model in ("resnet50", "swin_b", "efficientnet_b3", "resnet50-int8"):
        for gpu_type in ("v100", "h100", "p4"):
            prior = SCALING.prior(model, gpu_type, {})
            assert prior is not None
            assert prior.covariance == pytest.approx(prior.covariance.T)
            assert np.all(np.linalg.eigvalsh(prior.covariance) > 0)
            assert len(prior.source) <= 200


SIZES = (0.5, 0.8, 1.2, 2.0, 3.0, 4.5, 7.0, 9.0, 12.0)


def variant(size: float) -> ModelVariant:
    return ModelVariant(
        name=f"net{size:g}",
        family="nets" if size > 1 else "others",
        parameters_million=10 * size,
        memory_mib_weights=40 * size,
        memory_mib_per_input=10.0,
        gflop_per_input=size,
        quality_class=QualityClass.LOW,
    )


def entry(size: float) -> LibraryEntry:
    return LibraryEntry(
        model=f"net{size:g}",
        gpu_type="v100",
        parameters=tuple(parameters(size).tolist()),
        spread=(0.1,) * forms.COUNT,
        error_pct_mean=3.0,
        points=40,
        source="a test",
        licence="MIT",
    )


def told(size: float, step: float = 0.0) -> Told:
    times = np.zeros(forms.COUNT)
    times[forms.TIMES] = step
    belief = ShapePrior(
        mean=parameters(size) + times, covariance=0.01 * np.eye(forms.COUNT), origin=Origin.MEASURED, source="here"
    )
    return Told(sibling=Sibling(variant=variant(size), entry=entry(size)), belief=belief)


def everybody(step: float = 0.0) -> dict[str, Told]:
    return {f"net{size:g}": told(size, step) for size in SIZES}


def spread(prior: ShapePrior) -> Floats:
    return np.asarray(np.sqrt(np.diag(prior.covariance)))


def test_a_models_size_says_how_much_it_works() -> None:
    law = size_law(Sibling(variant=variant(5.0)), everybody())
    assert law is not None
    assert law.mean[forms.WORK] == pytest.approx(parameters(5.0)[forms.WORK], abs=0.15)
    assert law.mean[0] == pytest.approx(parameters(5.0)[0], abs=0.05)
    assert "9 models measured here" in law.source


def test_too_few_or_unknown_models_say_nothing() -> None:
    few = dict(list(everybody().items())[:7])
    assert size_law(Sibling(variant=variant(5.0)), few) is None
    assert voices(Sibling(), everybody()) == ()
    assert voices(Sibling(variant=variant(5.0)), {}) == ()


def test_an_entry_is_moved_as_the_others_differ_from_theirs_and_surer_where_they_agree() -> None:
    asked = Sibling(entry=entry(5.0))
    alone, moved = moved_entry(asked, {}), moved_entry(asked, everybody(0.7))
    assert alone is not None
    assert moved is not None
    assert moved.origin is Origin.LIBRARY
    assert (moved.mean - alone.mean)[0] == pytest.approx(0.63, abs=0.02)
    assert (moved.mean - alone.mean)[forms.FILL] == pytest.approx(0.0)
    assert (spread(moved) < spread(alone)).all()


def test_an_entry_stays_doubtful_where_the_others_differ_each_in_its_own_way() -> None:
    others = {
        name: replace(one, belief=replace(told(size, (-1) ** index * 1.0).belief))
        for index, (size, (name, one)) in enumerate(zip(SIZES, everybody().items(), strict=True))
    }
    found = moved_entry(Sibling(entry=entry(5.0)), others)
    assert found is not None
    assert spread(found)[0] > 0.9


def test_joined_beliefs_lie_between_and_are_surer() -> None:
    one, two = entry_prior(entry(1.0)), entry_prior(entry(4.0))
    both = joined(one, two)
    assert one.mean[forms.WORK] < both.mean[forms.WORK] < two.mean[forms.WORK]
    assert (spread(both) < spread(one)).all()


def test_the_surest_voice_comes_first() -> None:
    found = voices(Sibling(variant=variant(5.0), entry=entry(5.0)), everybody())
    assert [prior.origin for prior in found] == [Origin.LIBRARY, Origin.SCALED]
    assert (spread(found[0]) < spread(found[1])).all()


@pytest.mark.parametrize("family", ["nets", "others"])
def test_hosts_that_differ_widen_what_is_believed_of_yet_another(family: str) -> None:
    """Each source's networks lie on one line, and lines of four sources a factor apart: left out one by one, nothing
    differs from what the rest of its own source says.
    """
    steps = {"a": -1.2, "b": -0.4, "c": 0.4, "d": 1.2}

    def doubts(steps: Mapping[str, float]) -> Floats:
        times = np.zeros(forms.COUNT)
        times[forms.TIMES] = 1.0
        law = learned_law(
            tuple(
                Example(
                    family="nets",
                    network=f"net{size:g}",
                    features=size_features(variant(size)),
                    parameters=parameters(size) + step * times,
                    weight=1.0,
                    source=source,
                )
                for source, step in steps.items()
                for size in SIZES
            )
        )
        _, covariance, words = law.by_size(replace(variant(5.0), family=family))
        assert ("family" in words) == (family == "nets")
        return np.sqrt(np.diag(covariance))[forms.TIMES]

    # A source left out differs from the mean of the others by up to 1.6.
    apart = np.sqrt(np.mean(np.square([step * 4 / 3 for step in steps.values()])))
    assert np.all(doubts(steps) > 0.9 * apart)
    assert np.all(doubts(dict.fromkeys(steps, 0.0)) < 0.3)
