"""Commands that train what planners have learned: `headroom train inss`, with checkpoints, on the simulated world.

Owns the files of a training (the actor, and beside it the checkpoint it goes on from), its progress line, and that
Ctrl-C loses no finished episode. It refuses to know how learning works; without torch it says which extra brings it.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.files import STANDARD, check_target, read_value, write_bytes, write_text
from lab.learning.packing import packed
from lab.learning.settings import Hyper, TrainingSetting, setting_for, written
from lab.learning.settings import setting as find_setting
from solvers.domain.snapshot import Snapshot
from solvers.errors import InputError
from solvers.planners.tuning import tuned

if TYPE_CHECKING:
    from lab.learning.training import Training
    from solvers.planners.tuning import Scalar

train = typer.Typer(name="train", no_args_is_help=True, help="Train what a planner learns, on the simulated world.")
CHECKPOINT_ROUNDS = 25
"""A checkpoint is written after so many rounds of episodes, at the end, and when interrupted."""
SHOWN = 40
"""The progress line tells means over so many episodes."""


@train.callback()
def _group() -> None:
    """Train what a planner learns, on the simulated world."""


@train.command()
def inss(
    out: Annotated[str, typer.Option("--out", help="Where the trained actor goes.")],
    *,
    fleet: Annotated[
        str | None, typer.Option("--fleet", help="GPUs, as in 2xt4,1xv100:16000, or a snapshot's file.")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option("--models", help="NAME[:LIMIT_MS[:LOW-HIGH]],… in requests/s; a snapshot brings its services."),
    ] = None,
    setting: Annotated[str | None, typer.Option("--setting", help="The paper's: six (the default) or eight.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Write a wheel beside --out that installs the actor under this name.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Default: 1500, or the checkpoint's.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same actor.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint beside --out.")] = False,
    threads: Annotated[int, typer.Option("--threads", min=1, max=256, help="Of torch.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PARAMETER=VALUE", help="A hyper-parameter. Repeatable.")
    ] = None,
) -> None:
    """Train InSS' actor: places and shares by soft actor-critic. The checkpoint lies beside it: OUT.checkpoint."""
    if out == STANDARD:
        raise InputError("--out names a file: the checkpoint lies beside it")
    check_target(out)
    from solvers.policies.inss.actor import NAME, read

    if name is not None and not re.fullmatch(NAME, name):
        raise InputError(f"--name wants small letters, digits and dashes, got {name!r}")
    checkpoint, wanted = Path(out + ".checkpoint"), _setting(fleet, models, setting)
    from lab.learning.training import Training, use_threads

    use_threads(threads)
    changes = dict(_read(text) for text in set_ or ())
    if episodes is not None:
        changes["episodes"] = episodes
    if resume:
        training = _resumed(checkpoint, changes)
        if wanted not in (None, training.setting):
            raise InputError("a training that is resumed keeps its fleet and its networks")
    else:
        training = Training.begin(wanted or find_setting("six"), tuned(Hyper(), changes, "training"), seed)
    _run(training, checkpoint)
    text, last = training.artefact(_software()), training.curve[-1]
    write_text(out, text)
    version = read(text).version
    told = f"trained {len(training.curve)} episodes to a reward of {last.reward:.3f}; wrote {out}, version {version}"
    if name is not None:
        file, content = packed(name, version, text)
        write_bytes(str(Path(out).with_name(file)), content)
        told = f"{told}, and {file}; once that is installed, policies name it {name}@{version}"
    typer.echo(told, err=True)


def _setting(fleet: str | None, models: str | None, name: str | None) -> TrainingSetting | None:
    """What is to be trained for; None where nothing was said."""
    if fleet is None:
        if models is not None:
            raise InputError("--models goes with --fleet")
        return None if name is None else find_setting(name)
    if name is not None:
        raise InputError("--setting brings its own fleet: give --fleet or --setting")
    if Path(fleet).is_file():
        fleet, served = written(read_value(Snapshot, fleet))
        models = models or served
    if not models:
        raise InputError(f"--fleet wants --models, the networks that are served there, or a file: {fleet} is none")
    return setting_for("own", fleet, models)


def _resumed(checkpoint: Path, changes: dict[str, Scalar]) -> Training:
    """What was going on; nothing of it but the number of episodes may change."""
    from lab.learning.training import Training

    if set(changes) - {"episodes"}:
        raise InputError("a training that is resumed keeps its hyper-parameters; only --episodes may change")
    if not checkpoint.is_file():
        raise InputError(f"there is no checkpoint {checkpoint}")
    training = Training.resume(checkpoint.read_bytes())
    if "episodes" in changes:
        training.extend(int(changes["episodes"]))
    return training


def _run(training: Training, checkpoint: Path) -> None:
    """All rounds. What stands in the checkpoint is always the end of a round."""
    begun, first = time.monotonic(), len(training.curve)
    kept = training.checkpoint()
    try:
        for number, _ in enumerate(training.rounds(), start=1):
            kept = training.checkpoint()
            if number % CHECKPOINT_ROUNDS == 0:
                write_bytes(str(checkpoint), kept)
            _show(training, (time.monotonic() - begun) / (len(training.curve) - first))
    finally:
        if sys.stderr.isatty():
            typer.echo("", err=True)
        write_bytes(str(checkpoint), kept)


def _show(training: Training, episode_s: float) -> None:
    """One line that is written over on a terminal; elsewhere a line now and then."""
    done, last = len(training.curve), training.curve[-SHOWN:]
    if not sys.stderr.isatty() and done % SHOWN and done < training.hyper.episodes:
        return
    reward, violated = (sum(getattr(each, name) for each in last) / len(last) for name in ("reward", "violated"))
    left_min = (training.hyper.episodes - done) * episode_s / 60
    line = f"episode {done} of {training.hyper.episodes}: reward {reward:.2f}, late or lost {100 * violated:.2f} %"
    typer.echo(f"{line}, {left_min:.0f} min left", err=True, nl=not sys.stderr.isatty())
    if sys.stderr.isatty():
        typer.echo("   \r", err=True, nl=False)


def _read(text: str) -> tuple[str, Any]:
    """One hyper-parameter as it is written."""
    name, equals, written = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set wants PARAMETER=VALUE, got {text!r}")
    try:
        return name, json.loads(written)
    except ValueError:
        return name, written


def _software() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    def known(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "unknown"

    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: known(name) for name in ("numpy", "torch")}}
