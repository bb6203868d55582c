"""Beliefs about what was never measured: the right rung, moved the right way, wider the farther away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from app.library import facts as shipped
from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Origin
from solvers.models.belief import forms, transfer
from solvers.models.belief.forms import ShapePrior, sensitivity
from solvers.models.belief.transfer import Scaling, entry_prior
from tests import builders
from tests.unit.solvers.models.belief.alone import learned

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
    slope: Floats = sensitivity(forms.log_latency, prior.mean, (np.array([batch]), np.array([0.5]), np.ones(1)))
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
        there = transfer.shift(of, FACTS.gpu_types["v100"])
        assert transfer.shift(FACTS.gpu_types["v100"], of) == pytest.approx(-there)
        assert not transfer.spread(of, of).any()


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
