"""Training with torch: it learns, goes on from checkpoints as if never stopped, and numpy does what torch did."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.learning.settings import Entropy, Hyper, setting, setting_for
from lab.learning.world import Batch
from solvers.errors import InputError
from solvers.policies.inss.actor import read
from tests.unit.solvers.policies.inss.test_actor import SHAPE, STORED

pytestmark = pytest.mark.rl

SHORT = Hyper(episodes=6, steps=8, lanes=2, minibatch=16, replay=40, hidden_first=32, hidden_second=16)
SIX = setting("six")


def begin(hyper: Hyper = SHORT, seed: int = 5) -> Any:
    from lab.learning.training import Training, use_threads

    use_threads(1)
    return Training.begin(SIX, hyper, seed)


def finished(training: Any) -> Any:
    for _ in training.rounds():
        pass
    return training


def test_a_resumed_training_is_the_one_that_ran_through() -> None:
    from lab.learning.training import Training

    whole = finished(begin())
    part = begin()
    rounds = part.rounds()
    next(rounds)
    next(rounds)
    resumed = finished(Training.resume(part.checkpoint()))
    assert resumed.curve == whole.curve
    assert resumed.updates == whole.updates > 0
    assert resumed.artefact({}) == whole.artefact({})


def test_the_seed_decides_everything() -> None:
    first, same, other = finished(begin()), finished(begin()), finished(begin(seed=6))
    assert first.artefact({}) == same.artefact({})
    assert first.curve != other.curve


@pytest.mark.parametrize("content", [b"", b"PK", b"nothing at all"])
def test_what_is_no_checkpoint_is_refused(content: bytes) -> None:
    from lab.learning.training import Training

    with pytest.raises(InputError, match="checkpoint"):
        Training.resume(content)


def test_numpy_does_what_torch_does() -> None:
    import torch

    training = finished(begin())
    artefact = read(training.artefact({"torch": "any"}))
    states = np.random.default_rng(0).normal(size=(20, artefact.shape.state_size)).astype(np.float32)
    with torch.inference_mode():
        wanted = training.learner.actor(torch.from_numpy(states)).numpy()
    assert artefact.actor.logits(states) == pytest.approx(wanted, abs=1e-5)


def test_what_torch_made_of_the_stored_actor_is_what_is_stored(request: pytest.FixtureRequest) -> None:
    import torch

    from lab.learning.training import InssLearner

    hyper = Hyper(hidden_first=8, hidden_second=6)
    learner = InssLearner(hyper, SHAPE.state_size, SHAPE.heads, 7)
    states = np.random.default_rng(1).normal(size=(5, SHAPE.state_size)).astype(np.float32)
    with torch.inference_mode():
        outputs = learner.actor(torch.from_numpy(states)).numpy()
    layers = [{"weights": one.weights.tolist(), "bias": one.bias.tolist()} for one in learner.trained().layers]
    made = {"layers": layers, "states": states.tolist(), "outputs": outputs.tolist()}
    if request.config.getoption("--golden-rewrite"):
        STORED.write_text(json.dumps(made) + "\n", encoding="utf-8")
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    actor = [np.array(each["weights"], np.float32) for each in stored["layers"]]
    with torch.inference_mode():
        for linear, each, weights in zip((0, 2, 4), stored["layers"], actor, strict=True):
            learner.actor[linear].weight.copy_(torch.from_numpy(weights))
            learner.actor[linear].bias.copy_(torch.tensor(each["bias"]))
        again = learner.actor(torch.tensor(stored["states"])).numpy()
    assert again == pytest.approx(np.array(stored["outputs"]), abs=1e-5)


def taught(hyper: Hyper, updates: int) -> Any:
    """A learner of a game of one state where the last choice of both heads pays; its last entropy and temperature."""
    from lab.learning.training import InssLearner

    learner, random = InssLearner(hyper, 1, (2, 3), 0), np.random.default_rng(0)
    for _ in range(updates):
        states = np.ones((32, 1), dtype=np.float32)
        actions = np.stack([random.integers(0, 2, 32), random.integers(0, 3, 32)], axis=1)
        rewards = ((actions[:, 0] == 1) + 2.0 * (actions[:, 1] == 2)).astype(np.float32)
        last = learner.update(Batch(states, actions, rewards, states))
    return learner, last


GAME = Hyper(learning_rate=0.003, discount=0.0, hidden_first=16, hidden_second=16)


def test_it_learns_what_pays_and_the_printed_entropy_is_never_reached() -> None:
    learner, (_, temperature) = taught(GAME, 600)
    states = np.ones((200, 1), dtype=np.float32)
    drawn = learner.draw(states, np.random.default_rng(3))
    assert (drawn[:, 0] == 1).mean() > 0.9
    assert (drawn[:, 1] == 2).mean() > 0.9
    assert learner.aim == pytest.approx(-math.log(6))
    assert temperature < 0.4


def test_the_corrected_entropy_is_kept() -> None:
    corrected = replace(GAME, entropy=Entropy.HEADS, entropy_part=0.5)
    learner, (entropy, _) = taught(corrected, 1500)
    assert learner.aim == pytest.approx(0.5 * (math.log(2) + math.log(3)))
    assert entropy == pytest.approx(learner.aim, rel=0.15)


def test_an_own_fleet_is_resumed_by_itself() -> None:
    from lab.learning.training import Training

    own = setting_for("own", "1xt4,1xl4", "resnet50:80,bert-base")
    part = Training.begin(own, SHORT, 5)
    next(part.rounds())
    resumed = Training.resume(part.checkpoint())
    assert resumed.setting == own
    found = read(finished(resumed).artefact({}))
    assert found.shape.models == ("resnet50", "bert-base")
    assert found.shape.gpu_types == ("t4", "l4")
    assert found.record["world"]["served"][0]["limit_ms"] == 80.0


def headroom(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app", "train", "inss", *arguments]


@pytest.fixture
def _heard() -> Iterator[None]:
    """Ctrl-C is heard: a shell that works in the background has its children, and theirs, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_the_command_trains_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "actor.json"
    small = [f"--set={each}" for each in ("steps=5", "hidden_first=32", "hidden_second=16", "lanes=2")]
    again = headroom("--out", str(out), "--episodes", "4000", *small)
    with subprocess.Popen(again, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        assert "episode 40 of 4000" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not out.exists()
    done = subprocess.run(
        headroom("--out", str(out), "--episodes", "120", "--resume"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    artefact = read(out.read_text(encoding="utf-8"))
    assert artefact.record["episodes"] >= 120
    assert artefact.record["hyper"]["steps"] == 5
    refused = subprocess.run(
        headroom("--out", str(out), "--resume", "--set=penalty=1"), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "keeps its hyper-parameters" in refused.stderr
