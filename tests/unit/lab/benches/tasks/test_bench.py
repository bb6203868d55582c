"""Tasks on simulated GPUs: everybody ends, the same seed gives the same numbers, neighbours cost time, and the files
that compare schedulers can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.arena import loading
from lab.benches.packing.bench import RULES
from lab.benches.tasks.contract import (
    Config,
    Ended,
    Ending,
    InferenceTask,
    Launch,
    PlacedTask,
    TaskScheduler,
    TaskSeat,
)
from lab.benches.tasks.run import Conduct, TaskLog, TaskRun, cluster
from lab.benches.tasks.scenario import Tasking
from lab.benches.tasks.schedulers import SCHEDULERS
from lab.benches.tasks.work import (
    Coming,
    TaskBurstsForm,
    TaskPoissonForm,
    TaskUniformForm,
    accuracy_lost_pct,
    coming,
    profiled,
    quality_class,
    told,
)
from lab.outcome import RunContender, RunOutcome, TuningSetting, check_outcome
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.workload import QualityClass
from solvers.errors import EngineError, FieldError, InputError
from solvers.planners.registry import create as planner
from solvers.sim.truth.truth import Resident, execution_ms, gpu_truth

ROOT = Path(__file__).resolve().parents[5]
SCENARIOS = ROOT / "examples" / "scenarios"
A100 = GpuTypeName("a100-40gb")
CALM = Conduct(deploy_s=0.1, deploy_failed_pct=0.0)


def bench(name: str, count: int) -> Tasking:
    made = loading.load(SCENARIOS / f"oltunes-tasks-{name}.yaml", None)
    assert isinstance(made, Tasking)
    return replace(made, count=count, profile_rows=168)


def ran(some: Tasking, name: str, settings: tuple[TuningSetting, ...] = ()) -> RunOutcome:
    contender = RunContender(label=name, planners=(name,), settings=settings)
    made = some.run(contender, 1, lambda name, _: planner(name), lambda part: None)
    check_outcome(made)
    return made


def number(outcome: RunOutcome, name: str) -> float:
    found = outcome.metric(name)
    assert found is not None
    return found


class Scripted(TaskScheduler[Any]):
    """Launches what it is told to, when it is told to, and notes what it hears."""

    name = "scripted"

    def __init__(self, *script: tuple[float, Launch]) -> None:
        self.script = list(script)
        self.heard: list[tuple[float, Ended]] = []
        self.seen: list[tuple[TaskSeat, ...]] = []

    @property
    def wake_s(self) -> float | None:
        return self.script[0][0] if self.script else None

    @property
    def waiting(self) -> int:
        return len(self.script)

    def arrive(self, task: InferenceTask, now_s: float) -> None:
        pass

    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:
        self.seen.append(seats)
        due = [launch for at_s, launch in self.script if at_s <= now_s + 1e-9]
        self.script = self.script[len(due) :]
        return tuple(due)

    def ended(self, outcome: Ended, now_s: float) -> None:
        self.heard.append((now_s, outcome))


def launch(tasks: Sequence[Coming], seat: str = "g0001", mib: float = 4096.0) -> Launch:
    config = Config(batch=8, share_pct=100, memory_mib=mib, latency_ms=5.0, throughput_rps=1.0)
    return Launch(seat=DeviceId(seat), group=tuple(PlacedTask(task=each.task, config=config) for each in tasks))


def work(count: int) -> tuple[Coming, ...]:
    return tuple(
        Coming(
            at_s=0.0,
            task=InferenceTask(
                id=f"t{index}", model=ModelName("resnet50"), latency_weight=0.8, deadline_s=1.0, inputs=800
            ),
            kind=0,
            luck=0.0,
        )
        for index in range(count)
    )


def under(scheduler: Scripted, tasks: tuple[Coming, ...], conduct: Conduct = CALM) -> TaskLog:
    return TaskRun(scheduler, conduct, tasks, 1, cluster(((A100, 1),))).go(lambda part: None)


def test_a_task_alone_takes_what_its_batches_take_and_neighbours_make_it_longer() -> None:
    tasks = work(2)
    alone = Scripted((0.0, launch(tasks[:1])))
    log = under(alone, tasks[:1])
    gpu = gpu_truth(A100)
    assert gpu is not None
    batch_ms = execution_ms(gpu, Resident(model="resnet50", share_pct_sm=100, batch=8), gpu.clock_mhz_sm_max)
    entry = log.entries["t0"]
    assert entry.begun_s is not None
    assert entry.ended_s is not None
    assert entry.begun_s > 0.1
    assert entry.ended_s - entry.begun_s == pytest.approx(0.1 * batch_ms)
    assert alone.heard[-1][1].batch_ms == pytest.approx(batch_ms)
    both = under(Scripted((0.0, launch(tasks))), tasks)
    assert (both.entries["t0"].ended_s or 0.0) > 1.2 * entry.ended_s
    assert both.boards[0].utilised_s > log.boards[0].utilised_s


def test_groups_without_room_fail_and_are_told_whole() -> None:
    tasks = work(2)
    again = launch(tasks)
    scheduler = Scripted((0.0, launch(tasks, mib=30_000.0)), (1.0, again))
    log = under(scheduler, tasks)
    assert scheduler.heard[0][1] == Ended(tasks=("t0", "t1"), ending=Ending.FAILED)
    assert (log.failed, log.groups, log.entries["t1"].attempts) == (1, 2, 2)
    assert all(each.ended_s is not None for each in log.entries.values())
    tight = Scripted((0.0, launch(tasks[:1], mib=200.0)))
    under(tight, tasks[:1], replace(CALM, unfinished_after_s=5.0))
    assert tight.heard[0][1].ending is Ending.FAILED, "a limit below what the batch needs"


def test_launches_that_cannot_be_are_refused() -> None:
    tasks = work(1)
    with pytest.raises(EngineError, match="not there"):
        under(Scripted((0.0, launch(tasks, "g9"))), tasks)
    with pytest.raises(EngineError, match="does not wait"):
        under(Scripted((0.0, launch(tasks)), (0.05, launch(tasks))), tasks)


@pytest.mark.parametrize("name", ["added_latency", "oltunes", "orion", "mlaas"])
def test_schedulers_bring_all_tasks_to_their_end_and_repeat_themselves(name: str) -> None:
    some = replace(bench("real", 60), conduct=replace(CALM, deploy_failed_pct=10.0))
    first = ran(some, name)
    assert number(first, "tasks_unfinished") == 0.0
    assert first == ran(some, name)
    queueing, jct = number(first, "queueing_ms_mean"), number(first, "jct_ms_mean")
    assert queueing + jct == pytest.approx(number(first, "latency_ms_mean"))
    assert sum(each.asked for each in first.services) == 60.0


def test_settings_reach_the_scheduler_and_strangers_are_refused() -> None:
    some = bench("poisson", 12)
    alone = ran(some, "oltunes", (TuningSetting(name="group_max", value="1"),))
    assert number(alone, "tasks_per_group") == 1.0
    with pytest.raises(FieldError):
        ran(some, "oltunes", (TuningSetting(name="no_such", value="1"),))
    with pytest.raises(EngineError, match="schedules no tasks"):
        ran(some, "greedy")


def test_tasks_follow_their_pattern_and_are_the_same_for_everybody() -> None:
    kinds = bench("uniform", 1).kinds
    found: tuple[Coming, ...] = ()
    for arrivals in (TaskUniformForm(pattern="uniform"), TaskPoissonForm(pattern="poisson")):
        found = coming(kinds, arrivals, 400, 3)
        assert found == coming(kinds, arrivals, 400, 3)
        assert [each.at_s for each in found] == sorted(each.at_s for each in found)
        assert found[-1].at_s == pytest.approx(400 / sum(kind.rate_per_s for kind in kinds), rel=0.2)
    urgent = sum(each.task.latency_critical for each in found) / len(found)
    assert 0.75 < urgent < 0.92
    assert all(each.task.deadline_s > 0.0 for each in found)
    with pytest.raises(InputError, match="never"):
        coming(kinds, TaskBurstsForm(pattern="bursts", calm_factor=0.0, burst_factor=0.0, calm=1.0, burst=1.0), 10, 1)


def test_profiles_are_of_all_models_and_variants_are_high_or_low_among_themselves() -> None:
    some = bench("uniform", 1)
    samples = profiled(some.kinds, [name for name, _ in some.fleet], 168, 5)
    assert len(samples) > 150
    assert len(samples.queries.models) == len(some.kinds)
    known = told(some.kinds, some.facts, A100)
    high = {name for name in known.models if known.models[name].quality_class.value == "high"}
    assert high == {"yolov5x", "bert-base", "resnet152", "gpt2"}
    assert (known.models["resnet152"].compute_memory_ratio or 0) > (known.models["gpt2"].compute_memory_ratio or 0)
    lost = accuracy_lost_pct(some.kinds)
    assert lost["yolov5n"] == pytest.approx(22.7)
    assert lost["yolov5x"] == lost["gpt2"] == 0.0
    with pytest.raises(InputError, match="nobody has described"):
        told([some.kinds[0].model_copy(update={"model": ModelName("nobody-knows")})], some.facts, A100)


def test_names_of_contenders_are_no_planners_of_services() -> None:
    assert not {"headroom", "joint"} & {*SCHEDULERS, *RULES}
    assert {"oltunes", "oltunes_mf", "oltunes_rfr", "orion", "mlaas"} <= set(SCHEDULERS)


@pytest.mark.parametrize(
    ("was", "now", "complaint"),
    [
        ("model: gpt2", "model: gpt9", "library has no model gpt9"),
        ("gpu_type: a30", "gpu_type: abacus", "no simulated GPU abacus"),
        ("inputs: [10, 28]", "inputs: [28, 10]", "fewest inputs come first"),
        ("name: gpt2", "name: resnet18", "two kinds"),
    ],
)
def test_files_that_cannot_be_run_are_refused_with_the_place(
    was: str, now: str, complaint: str, tmp_path: Path
) -> None:
    text = (SCENARIOS / "oltunes-tasks-uniform.yaml").read_text(encoding="utf-8")
    assert was in text
    file = tmp_path / "wrong.yaml"
    file.write_text(text.replace(was, now), encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        loading.load(file, None)


def test_quality_class_of_the_papers_families() -> None:
    low, high = QualityClass.LOW, QualityClass.HIGH
    resnet, yolo, bert = (20.0, 25.0, 60.2), (2.6, 97.0), (41.0, 110.0)
    assert [quality_class(size, resnet) for size in resnet] == [low, low, high]
    assert [quality_class(size, yolo) for size in yolo] == [low, high]
    assert [quality_class(size, bert) for size in bert] == [low, high]
    assert quality_class(1500.0, ()) is high
    assert quality_class(50.0, (100.0,)) is high
