"""Snapshots completed with what is believed: of whom, and of neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app import library
from app.services.beliefs.beliefs import Belief, Beliefs, Evidence, Progress
from app.services.beliefs.completion import Completion
from solvers.domain.device import Offer
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.models.suite import Suite
from tests import builders, chats, laws

V100 = builders.device("a", 0, "v100")
SAMPLES = laws.solo(batches=(1, 8), shares=(20, 100))
PAIRS = laws.measured(laws.pairs([("alex", "res"), ("alex", "vgg")], batches=(2, 8), shares=(20, 60)))


@pytest.fixture(scope="module")
def learned() -> Belief:
    """Knows `alex`, `res` and `vgg` beside each other."""
    suite = Suite.fresh("headroom", laws.facts()).fit(SAMPLES, PAIRS)
    return Belief(suite=suite, evidence=Evidence(facts=laws.facts(), samples=SAMPLES, groups=PAIRS))


class Told(Beliefs):
    """Believes what it is told."""

    def __init__(self, belief: Belief) -> None:
        self.said = belief

    def belief(self) -> Belief:
        return self.said


def world(*names: str, measured: bool = True, **changes: Any) -> Snapshot:
    services = [builders.service(name, model=ModelName(name)) for name in names]
    stored = laws.facts().models
    changes.setdefault("models", tuple(stored.get(name) or builders.model(name) for name in names))
    if not measured:
        changes["profiles"] = ()
    return builders.snapshot([V100], services, **changes)


def known(picture: Snapshot) -> set[str]:
    return {item.model for item in picture.profiles if item.interference is not None}


def test_measured_profiles_learn_how_their_models_press(learned: Belief) -> None:
    before = world("alex", "res", "ssd")
    after = Completion(Told(learned)).complete(before)
    assert known(after) == {"alex", "res"}
    assert [replace(item, interference=None) for item in after.profiles] == list(before.profiles)


def test_believed_profiles_do_too(learned: Belief) -> None:
    after = Completion(Told(learned)).complete(world("alex", "ssd", measured=False))
    assert {item.model for item in after.profiles} == {"alex", "ssd"}
    assert known(after) == {"alex"}


def test_a_model_beyond_all_bounds_takes_nothing_from_the_others(learned: Belief) -> None:
    """Its weights in bytes, where MiB are meant."""
    slip, built_in = builders.model("slip", memory_mib_weights=16e9), library.facts()
    facts = replace(built_in, models={**built_in.models, slip.name: slip})
    belief = replace(learned, suite=Suite.fresh("headroom", facts), evidence=replace(learned.evidence, facts=facts))
    after = Completion(Told(belief)).complete(world("resnet50", slip.name, measured=False, models=(slip,)))
    assert {item.model for item in after.profiles} == {"resnet50"}


def test_what_only_the_picture_declares_is_believed_as_if_it_were_stored(learned: Belief) -> None:
    built_in = library.facts()
    stored = replace(
        learned, suite=Suite.fresh("headroom", built_in), evidence=replace(learned.evidence, facts=built_in)
    )
    fresh = builders.model("fresh", gflop_per_input=4.0)
    larger = replace(built_in.models["resnet50"], memory_mib_weights=9000.0)
    facts = replace(built_in, models={**built_in.models, "fresh": fresh, "resnet50": larger})
    declared = replace(stored, suite=Suite.fresh("headroom", facts), evidence=replace(learned.evidence, facts=facts))
    usual = world("resnet50", measured=False, models=(built_in.models["resnet50"],))
    asked = world("resnet50", "fresh", measured=False, models=(fresh, larger))
    completion = Completion(Told(stored))
    before = completion.complete(usual)
    after = completion.complete(asked)
    assert {item.model for item in after.profiles} == {"resnet50", "fresh"}
    assert after == Completion(Told(declared)).complete(asked)
    assert completion.complete(usual) == before


def test_what_the_operator_said_stays(learned: Belief) -> None:
    mine = Interference(pressure=0.1, sensitivity=0.2)
    before = world("alex")
    before = replace(before, profiles=tuple(replace(item, interference=mine) for item in before.profiles))
    assert Completion(Told(learned)).complete(before) == before


def test_nobody_waits_for_what_is_still_being_learned(learned: Belief) -> None:
    evidence = replace(learned.evidence, facts=library.facts())
    fresh = Belief(suite=Suite.fresh("headroom", library.facts()), evidence=evidence, progress=Progress.LEARNING)
    told = Told(fresh)
    completion = Completion(told)
    first = completion.complete(world("resnet50", measured=False))
    assert {item.model for item in first.profiles} == {"resnet50"}
    assert known(first) == set()
    told.said = replace(learned, progress=Progress.LEARNING)
    assert known(completion.complete(world("alex"))) == {"alex"}
    told.said = learned
    assert known(completion.complete(world("alex"))) == {"alex"}


def test_nobody_waits_for_beliefs_about_llms(learned: Belief) -> None:
    """They are planned from token profiles."""
    picture = builders.snapshot([V100], [chats.service()], profiles=(), models=(chats.model(),))
    told = Told(replace(learned, progress=Progress.LEARNING))
    assert Completion(told).complete(picture) == picture
    assert Completion(Told(learned)).complete(picture) == picture


def test_a_belief_that_hardly_changed_changes_no_numbers(learned: Belief) -> None:
    told = Told(learned)
    completion = Completion(told)
    before = completion.complete(world("alex", "res"))
    same = laws.measured(laws.pairs([("alex", "res")], batches=(4,), shares=(40,)))
    told.said = replace(
        learned, suite=replace(learned.suite, interference=learned.suite.interference.update(same, learned.suite.solo))
    )
    assert completion.complete(world("alex", "res")) == before
    worse = replace(PAIRS, latency_ms=PAIRS.latency_ms * 1.5)
    told.said = replace(
        learned, suite=replace(learned.suite, interference=learned.suite.interference.update(worse, learned.suite.solo))
    )
    assert completion.complete(world("alex", "res")) != before


def test_alternatives_and_offered_types_are_completed_too(learned: Belief) -> None:
    offer = Offer(name="more", gpu_type=GpuTypeName("v100"), count_max=1)
    service = builders.service("alex", model=ModelName("alex"), alternatives=(ModelName("res"),))
    t4 = builders.device("a", 0, "t4")
    bare = builders.snapshot([t4], [service], profiles=(), offers=(offer,))
    types = (builders.gpu_type("t4"), builders.gpu_type("v100"))
    after = Completion(Told(learned)).complete(replace(bare, gpu_types=types))
    assert {(item.model, item.gpu_type) for item in after.profiles} >= {("alex", "v100"), ("res", "v100")}
