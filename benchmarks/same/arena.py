"""Frozen outcomes of the arena's scenarios: one seed of each, shortened until it costs a few seconds.

Owns by what scenarios are shortened. What happened in words is left out of an outcome: it is told, not compared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.same.frozen import Case, Taken
from lab.arena.contenders import entry_of, tuned_entries
from lab.arena.running import RunOrder, run_task, tasks_of
from lab.outcome import RunOutcome
from solvers.domain.codec import canonical_json
from solvers.errors import InvariantError

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "scenarios"
DATA = Path(os.environ.get("HEADROOM_DATA", "../shared/data"))
OURS = "headroom"
OF_KIND = {"tasks": "added_latency", "packing": "reserving"}
"""Whom we wrote for the kinds that production does not plan."""
UNITS = 150
TOLD = ("cost_usd", "violation_pct", "jobs_done")
READS = r"^(azure|dlrm|inferno|muxserve|openb|traced):|pattern: trace|^ +trace:"
"""What reads public data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """By what a scenario is made cheaper: fields that stand in its file at the start of a line, and the policy's."""

    fields: Sequence[str] = ()
    policy: Sequence[str] = ()

    def text(self, text: str) -> str:
        """The scenario's text with these fields; one that it does not have is added."""
        for field in self.fields:
            name = field.partition(":")[0]
            text, found = re.subn(rf"^{name}:.*$", field, text, flags=re.MULTILINE)
            text += "" if found else f"\n{field}\n"
        return text

    @property
    def told(self) -> str:
        """For the file of what is frozen."""
        return ", ".join((*self.fields, *self.policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A scenario with who runs in it."""

    scenario: str
    contender: str = OURS
    cut: Cut
    dear: bool = False

    @property
    def key(self) -> str:
        """As the file names it."""
        return f"{self.scenario} {self.contender}"

    @property
    def path(self) -> Path:
        """Of the scenario, whole."""
        return FOLDER / f"{self.scenario}.yaml"


WORLD = Cut(fields=("span: 60s", "warmup: 20s"), policy=(f"work_units={UNITS}",))
HURRIED = Cut(fields=("span: 20s", "warmup: 5s"), policy=(f"work_units={UNITS}",))
ROLLING = Cut(policy=("work_units=10",))
TASKS = Cut(fields=("count: 100",))
PACKING = Cut(fields=("arrived_pct: 10",))
CUTS = {
    "gavel-jobs": Cut(fields=("span: 10min",), policy=(f"work_units={UNITS}",)),
    "inferno-scarce": Cut(fields=("inferno: {size: large, capacity: 0.1, loads: [0.5, 1.5]}",), policy=ROLLING.policy),
    "dlrm-days": ROLLING,
    "huge-fluid": Cut(fields=("span: 20s", "warmup: 5s"), policy=("work_units=10",)),
    "openb-small": Cut(),
    **dict.fromkeys(("inss-eight-4", "inss-eight-5", "inss-eight-6", "inss-six", "inss-large"), HURRIED),
}
BY_KIND = {"world": WORLD, "rolling": ROLLING, "tasks": TASKS, "packing": PACKING}
QUICK = frozenset(
    {
        "big-fluid", "bursts-and-faults", "colocation-bert", "colocation-mig", "first", "gavel-jobs",
        "hetsev-cost-resnet50", "hetsev-fluctuating", "inferno-small-fleet", "inss-small", "morak-150w-100ms",
        "mudi-rising", "oltunes-small", "oltunes-tasks-real", "openb-small", "power-budget", "training-in-slack",
        "twitter-autoscaling",
    }
)  # fmt: skip
"""One of each family that is cheap; the others are looked at with everything else."""
OTHERS = (
    Run(scenario="first", contender="hetsev", cut=WORLD),
    Run(scenario="inss-six", contender="inss", cut=HURRIED),
    Run(scenario="morak-150w-100ms", contender="morak", cut=WORLD),
    Run(scenario="colocation-bert", contender="mudi", cut=WORLD),
    Run(scenario="oltunes-tasks-real", contender="oltunes", cut=TASKS),
    Run(scenario="gavel-jobs", contender="gavel_packed", cut=CUTS["gavel-jobs"]),
    Run(scenario="openb-small", contender="fgd", cut=CUTS["openb-small"]),
    Run(scenario="bursts-and-faults", contender="greedy", cut=WORLD),
)
"""The founding planners and a few more, each where it feels at home."""


def cases() -> Iterator[Case]:
    """Ours on every scenario that there is, then the others."""
    for path in sorted(FOLDER.glob("*.yaml")):
        kind = re.search(r"^kind: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        name = kind[1] if kind is not None else "world"
        cut, contender = CUTS.get(path.stem) or BY_KIND[name], OF_KIND.get(name, OURS)
        yield _case(Run(scenario=path.stem, contender=contender, cut=cut, dear=path.stem not in QUICK))
    yield from map(_case, OTHERS)


def _case(run: Run) -> Case:
    reads = re.search(READS, run.path.read_text(encoding="utf-8"), re.MULTILINE)
    return Case(
        key=run.key, take=partial(_take, run), cut=run.cut.told, dear=run.dear, data=DATA if reads is not None else None
    )


def _take(run: Run) -> Taken:
    entries = tuned_entries([entry_of(run.contender)], [], run.cut.policy)
    with TemporaryDirectory() as folder:
        path = Path(folder) / run.path.name
        path.write_text(run.cut.text(run.path.read_text(encoding="utf-8")), encoding="utf-8")
        (task,) = tasks_of(RunOrder(paths=(path,), seeds=1, data=DATA), lambda _: entries)
        record = run_task(task, _unheard).record
    if record.outcome is None:
        raise InvariantError(f"{run.key}: {record.error}")
    return outcome_taken(record.outcome, record.about.goal)


def outcome_taken(outcome: RunOutcome, goal: str) -> Taken:
    """An outcome as a subject."""
    told = {name: outcome.metric(name) for name in dict.fromkeys((goal, *TOLD))}
    numbers = {name: number for name, number in told.items() if number is not None}
    return Taken(text=canonical_json(replace(outcome, deeds=())), numbers=numbers)


def _unheard(part: float) -> None:
    """Nobody waits for progress."""
