"""Scenarios that need no world: their numbers follow from the contender's name and the seed; a file says of which.

A file holds `name`, and may hold `fails` and `dies`: a contender whose runs raise, or end their process; `asks`: the
planner is asked for a plan, and goes without where that fails, as in worlds; `refuted`: whose plans never were sound.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from lab.arena.contenders import entry_of
from lab.arena.loading import Document, ScenarioForm
from lab.arena.running import RunOrder, RunTask, run_task, tasks_of
from lab.arena.store import ResultFolder
from lab.outcome import (
    About,
    Better,
    JobOutcome,
    Planners,
    ProgressListener,
    RunContender,
    RunEvent,
    RunOutcome,
    RunWindow,
    ServiceOutcome,
    metric,
)
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import JobId, ServiceId
from solvers.errors import EngineError, InputError
from tests import builders

LOADER = "tests.unit.lab.arena.fake:load"
COSTS = {"headroom": 8.0, "hetsev": 10.0, "k8s_hpa": 20.0, "melange": 5.0}
VIOLATIONS_PCT = {"melange": 9.0}


@dataclass(frozen=True)
class FakeBench:
    """One such scenario."""

    name: str
    fails: str | None = None
    dies: str | None = None
    asks: str | None = None
    refuted: str | None = None

    @property
    def about(self) -> About:
        return About(
            name=self.name,
            title=f"A fake called {self.name}",
            kind="fake",
            goal="cost_usd",
            better=Better.LOWER,
            guard="violation_pct",
            planners=("hetsev", "k8s_hpa", "headroom"),
            seeds=2,
        )

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:
        if contender.label == self.dies:
            os._exit(3)
        if contender.label == self.fails:
            raise EngineError(f"{contender.label} cannot run here")
        planner = planners(contender.planners[0], contender.settings)
        if self.asks is not None:
            with suppress(EngineError):
                planner.propose(builders.request(builders.lab([builders.service()])), b"", SilentReporter())
        unsound = RunEvent(at_s=15.0, kind="hold", text="fatal_findings: capacity_short (sim/echo#0)")
        progress(0.5)
        noise = np.random.default_rng([seed, 7]).normal(size=24)
        own = np.random.default_rng([seed, *contender.label.encode()]).normal(size=2)
        cost = COSTS.get(contender.label, 12.0) * (1 + 0.05 * noise[0] + 0.01 * own[0])
        violated_pct = abs(VIOLATIONS_PCT.get(contender.label, 1.0) + 0.02 * own[1])
        windows = tuple(
            RunWindow(
                from_s=60.0 * index,
                until_s=60.0 * index + 60.0,
                asked_rps=100 + 50 * np.sin(index / 4) + noise[index],
                in_time_rps=(100 + 50 * np.sin(index / 4) + noise[index]) * (1 - violated_pct / 100),
                violated_rps=violated_pct,
                devices_used=round(cost),
                replicas=2.0 * round(cost),
                usd_per_h=cost,
                power_w=250.0 * cost,
                utilisation_pct=60.0,
            )
            for index in range(24)
        )
        late = 10.0 * violated_pct
        service = ServiceOutcome(service=ServiceId("echo"), asked=1000, completed=1000, late=late, dropped=0)
        job = JobOutcome(
            job=JobId("train"), waited_s=3.0, took_s=None if seed else 90.0, done_part=0.5 + 0.5 * (not seed)
        )
        return RunOutcome(
            scenario=self.name,
            contender=contender.label,
            seed=seed,
            metrics=(
                metric("cost_usd", cost, Better.LOWER),
                metric("violation_pct", violated_pct, Better.LOWER),
                metric("gpus_mean", round(cost)),
            ),
            services=(service,),
            jobs=(job,),
            windows=windows,
            deeds=(unsound,) if contender.label == self.refuted else (),
        )


def load(path: Path, data: Path) -> FakeBench:
    """Read such a scenario."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return FakeBench(**{name: item for name, item in plain.items() if name != "kind"})
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


class FakeForm(ScenarioForm):
    """Such a scenario as a kind of its own."""

    kind: Literal["fake"]
    name: str
    fails: str | None = None
    dies: str | None = None
    asks: str | None = None
    refuted: str | None = None


FORM = FakeForm


def build(form: FakeForm, document: Document) -> FakeBench:
    """The bench of such a file."""
    return FakeBench(name=form.name, fails=form.fails, dies=form.dies, asks=form.asks, refuted=form.refuted)


def scenario(folder: Path, name: str, **more: str) -> Path:
    """A file of such a scenario."""
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({"kind": "fake", "name": name, **more}), encoding="utf-8")
    return path


def tasks(paths: Sequence[Path], contenders: Sequence[str], seeds: int = 2) -> tuple[RunTask, ...]:
    """Runs of such scenarios, which worker processes can load as well."""
    order = RunOrder(paths=tuple(paths), seeds=seeds, data=Path(), loader=LOADER)
    return tasks_of(order, lambda about: [entry_of(name) for name in contenders])


def folder_of(folder: Path, wanted: Sequence[RunTask]) -> ResultFolder:
    """Their results, run here."""
    kept = ResultFolder(folder)
    kept.want(wanted)
    for task in kept.missing(wanted):
        kept.put(run_task(task, lambda part: None))
    return kept
