"""The commands of the arena: run contenders on scenarios, compare and report what came of it, list what there is, judge
the claims of the papers; and how the answers look to people.

A run that failed makes the command fail once all others are done. Claims end with status 0 however they come out,
because the table is the answer; one that could not be judged is in it as failed. What is significant is
`lab.arena.stats`' to say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DATA, Data
from app.cli.output import CommandError, Format, Output, rows, say, show, standard_output_to_error
from app.demo.fleet import examples_path
from lab.cli.tables import about_table, comparison_figures, comparison_tables, standing_figures, standing_tables
from solvers.errors import HeadroomError, InputError, NotFoundError

if TYPE_CHECKING:
    from lab.arena.contenders import ContenderEntry
    from lab.arena.running import Hear, RunRecord, RunTask
    from lab.arena.store import ResultFolder
    from lab.outcome import About


def judge(
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="AC-…", help="Claims whose id begins so. Repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of simulated claims.")] = 3,
    examples: Annotated[int, typer.Option(min=1, help="Random cases of properties.")] = 200,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")] = 1,
    results: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Take runs from here, and keep those that are missing.")
    ] = None,
    data: Data = DATA,
    output: Output = Format.TABLE,
) -> None:
    """Judge what the papers state, as far as it is known how: recomputed, tried, or simulated."""
    from lab.claims.catalogue import claims
    from lab.claims.claim import Effort, Judged, judged

    def tell(each: Judged) -> None:
        typer.echo(f"{each['id']}: {each['status']}", err=True)

    effort = Effort(seeds=seeds, examples=examples, jobs=jobs, results=results, data=data)
    chosen = claims([each.upper() for each in only or []])
    with standard_output_to_error():
        found = judged(chosen, effort, tell)
    lines = [
        (each["id"], each["class"], each["status"], each["stated"], each["measured"], each["note"]) for each in found
    ]
    show(found, output, rows(("id", "class", "status", "stated", "measured", "note"), lines))


arena = typer.Typer(
    no_args_is_help=True, help="Policies side by side on the same scenarios, seeds and simulated hardware."
)

SCENARIOS = "scenarios"
SEED_MAX = 2**62
"""Tables of results hold whole numbers of 64 bits."""


class EngineOption(StrEnum):
    """Where runs happen."""

    LOCAL = "local"
    RAY = "ray"


Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at a time. Default: one for each core.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="PLANNER.PARAMETER=VALUE", help="Tune a planner. Repeatable.")
]
PolicyFields = Annotated[
    list[str] | None, typer.Option("--policy", metavar="FIELD=VALUE", help="Override a policy's field. Repeatable.")
]
Reference = Annotated[str | None, typer.Option("--reference", help="Whom the others are tested against.")]


@arena.command()
def run(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO…", help="Files, folders, or names from `list`.")],
    *,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the results; what is there already is not run again.")
    ] = Path("arena-results"),
    planners: Annotated[
        str | None, typer.Option("--planners", metavar="A,B,C", help="Contenders. Default: the scenario's own list.")
    ] = None,
    planner: Annotated[
        list[str] | None,
        typer.Option("--planner", metavar="FILE.py:CLASS", help="One more, such as your own. Repeatable."),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many. Default: the scenario's.")] = None,
    seed_from: Annotated[
        int,
        typer.Option(
            "--seed-from", min=0, max=SEED_MAX, help="The first seed: held-out ones are those never used before."
        ),
    ] = 0,
    jobs: Jobs = None,
    engine: Annotated[
        EngineOption, typer.Option(help="This machine, or the Ray cluster of RAY_ADDRESS.")
    ] = EngineOption.LOCAL,
    settings: Settings = None,
    policy: PolicyFields = None,
    planner_s_max: Annotated[
        float,
        typer.Option("--planner-s-max", min=0.001, help="Seconds on the clock for one plan; beyond, a run fails."),
    ] = 1800.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run all again.")] = False,
    reference: Reference = None,
    data: Data = DATA,
    output: Output = Format.TABLE,
) -> None:
    """Run every contender on every scenario under every seed; resumes where it was left."""
    from lab.arena.running import RunOrder, tasks_of
    from lab.arena.stats import check_reference
    from lab.arena.store import ResultFolder

    paths = scenario_paths(scenarios)
    order = RunOrder(paths=paths, seeds=seeds, seed_from=seed_from, data=data, planner_s_max=planner_s_max)
    tasks = tasks_of(order, contenders_by(planners, planner or [], settings or [], policy or []))
    if not tasks:
        raise InputError("name contenders with --planners: these scenarios propose none")
    folder = ResultFolder(out)
    ran = [record.contender for record in folder.found()]
    check_reference(reference, [*(task.entry.contender for task in tasks), *ran])
    folder.want(tasks)
    _run_all(tasks if fresh else folder.missing(tasks), folder, engine, jobs)
    write_results(folder, reference)
    _print(folder, reference, output)
    keys = {task.key for task in tasks}
    lost = [record for record in folder.records() if record.key in keys and record.error is not None]
    if lost:
        raise CommandError(f"{len(lost)} of {len(tasks)} runs failed; {out}/failures tells where")


@arena.command()
def compare(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results of `arena run`.")],
    reference: Reference = None,
    output: Output = Format.TABLE,
) -> None:
    """Print means with intervals, tests against a reference, and ranks."""
    from lab.arena.store import ResultFolder

    _print(ResultFolder(folder), reference, output)


@arena.command()
def standing(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results of `arena run`.")],
    ours: Annotated[
        str, typer.Option("--ours", metavar="CONTENDER", help="Who stands against the others.")
    ] = "headroom",
    output: Output = Format.TABLE,
) -> None:
    """Ours on every scenario, against the best of the five founding policies and the best of all others."""
    from lab.arena.standing import families, places
    from lab.arena.store import ResultFolder, records_of
    from solvers.domain.codec import to_plain

    held = [ResultFolder(folder) for folder in folders]
    records = records_of(held)
    found = places(records, ours)
    if not found:
        raise NotFoundError(f"{', '.join(map(str, folders))}: no run of {ours!r} that counts")
    by_family, old = families(found), _out_of_date(records)
    lacking = sum(folder.lacking() for folder in held)
    answer = {"scenarios": to_plain(found), "families": to_plain(by_family), "missing": lacking, "out_of_date": old}
    tables = standing_figures if output is Format.CSV else standing_tables
    show(answer, output, tables(found, by_family))
    _missed(lacking, old, output)
    _caution([place.seeds for place in found], output)


@arena.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results of `arena run`.")], reference: Reference = None
) -> None:
    """Write tables and report.html anew from finished runs."""
    from lab.arena.store import ResultFolder

    for path in write_results(ResultFolder(folder), reference):
        say(str(path))


@arena.command(name="list")
def list_(data: Data = DATA, output: Output = Format.TABLE) -> None:
    """What comes with Headroom: scenarios and contenders."""
    from lab.arena.contenders import contender_names
    from lab.arena.running import load_bench
    from solvers.domain.codec import to_plain

    found: list[About] = []
    unread: dict[str, str] = {}
    for path in built_in():
        try:
            found.append(load_bench(str(path), str(data)).about)
        except (HeadroomError, OSError) as error:
            unread[path.stem] = " ".join(str(error).split())
    answer = {"scenarios": [to_plain(about) for about in found], "unread": unread, "contenders": contender_names()}
    lines = [f"{name}: cannot be read here: {why}" for name, why in sorted(unread.items())]
    names = output is Format.NAME
    show(
        answer["scenarios"] if names else answer,
        output,
        [about_table(found), *lines, f"contenders: {', '.join(contender_names())}"],
    )


def built_in() -> list[Path]:
    """Scenarios that this installation brings."""
    return sorted((examples_path() / SCENARIOS).glob("*.yaml"))


def scenario_paths(names: Sequence[str]) -> tuple[Path, ...]:
    """Files, all files of folders, and built-in scenarios by name. Raises NotFoundError."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found += sorted(path.glob("*.yaml"))
        elif path.is_file():
            found.append(path)
        else:
            known = {each.stem: each for each in built_in()}
            if name not in known:
                raise NotFoundError(f"there is no file and no scenario {name}; known are {', '.join(known) or 'none'}")
            found.append(known[name])
    if not found:
        raise NotFoundError(f"there is no scenario in {', '.join(names)}: no file there ends with .yaml")
    return tuple(dict.fromkeys(path.resolve() for path in found))


def contenders_by(
    planners: str | None, more: Sequence[str], settings: Sequence[str], policy: Sequence[str]
) -> Callable[[About], Sequence[ContenderEntry]]:
    """Who runs on a scenario: those named, or whom it proposes, and those named besides."""
    from lab.arena.contenders import entry_of, tuned_entries

    def chosen(about: About) -> Sequence[ContenderEntry]:
        named = about.planners if planners is None else [name.strip() for name in planners.split(",") if name.strip()]
        return tuned_entries([entry_of(name) for name in dict.fromkeys((*named, *more))], settings, policy)

    return chosen


def run_tasks(tasks: Sequence[RunTask], engine: EngineOption, jobs: int | None, hear: Hear) -> None:
    """Run them where they are wanted, each in a process of its own: what ends it ends nothing else."""
    with standard_output_to_error():
        if engine is EngineOption.RAY:
            from lab.arena.workers import run_on_ray

            run_on_ray(tasks, jobs, hear)
        else:
            from lab.arena.workers import run_in_workers

            run_in_workers(tasks, jobs or len(os.sched_getaffinity(0)), hear)


def write_results(folder: ResultFolder, reference: str | None) -> list[Path]:
    """Tables and the report."""
    from lab.arena.report import page_of

    tables = folder.write_tables()
    page = folder.folder / "report.html"
    page.write_text(page_of(folder.records(), reference), encoding="utf-8")
    return [*tables, page]


def _run_all(tasks: Sequence[RunTask], folder: ResultFolder, engine: EngineOption, jobs: int | None) -> None:
    from lab.arena.running import Event, RunEnded
    from lab.arena.workers import teller

    with teller(len(tasks)) as tell:

        def hear(event: Event) -> None:
            if isinstance(event, RunEnded):
                folder.put(event.finished)
            tell(event)

        run_tasks(tasks, engine, jobs, hear)


def _print(folder: ResultFolder, reference: str | None, output: Format) -> None:
    from lab.arena.standing import places
    from lab.arena.stats import comparisons
    from solvers.domain.codec import to_plain

    records = folder.records()
    lacking, old = folder.lacking(), _out_of_date(records)
    _missed(lacking, old, output)
    compared = comparisons(records, reference)
    stands = {place.scenario: place for place in places(records)}
    failures = {
        f"{item.scenario} × {item.contender.label}, seed {item.seed}": item.error for item in records if item.error
    }
    answer = {
        "scenarios": to_plain(compared),
        "standing": to_plain(tuple(stands.values())),
        "failures": failures,
        "missing": lacking,
        "out_of_date": old,
    }
    failed = [f"failed: {name}: {error}" for name, error in sorted(failures.items())]
    told = [*comparison_tables(compared, stands), *failed]
    show(answer, output, comparison_figures(compared) if output is Format.CSV else told)
    _caution([len(each.seeds) for each in compared], output)


def _out_of_date(records: Sequence[RunRecord]) -> list[str]:
    """What no longer is as these runs had it, of this software and the scenarios that come with it."""
    from lab.arena.store import out_of_date
    from solvers.domain.codec import bytes_digest

    return list(out_of_date(records, {path.stem: bytes_digest(path.read_bytes()) for path in built_in()}))


def _missed(lacking: int, old: Sequence[str], output: Format) -> None:
    """What is wanting of the results, or no longer so: beside an answer that programs read, on standard error."""
    runs = "1 run that belongs here is" if lacking == 1 else f"{lacking} runs that belong here are"
    told = [f"{runs} not there, or not whole: run again what is missing"] if lacking else []
    for line in (*told, *old):
        if output.is_for_people:
            say(line)
        else:
            typer.echo(f"headroom: {line}", err=True)


def _caution(seeds: Sequence[int], output: Format) -> None:
    from lab.arena.stats import caution

    told = caution(min(seeds, default=0))
    if told is not None and output.is_for_people:
        say(told)


arena.command(name="claims")(judge)
