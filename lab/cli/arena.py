"""The commands of the arena: run contenders on scenarios, compare and report what came of it, list what there is, judge
the claims of the papers; and how the answers look to people.

A run that failed makes the command fail once all others are done. Claims end with status 0 however they come out,
because the table is the answer; one that could not be judged is in it as failed. What is significant is
`lab.arena.stats`' to say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import DATA, Data
from app.cli.output import CommandError, Format, Output, number, rows, say, show, standard_output_to_error
from app.demo.fleet import examples_path
from solvers.errors import HeadroomError, InputError, NotFoundError

if TYPE_CHECKING:
    from lab.arena.contenders import ContenderEntry
    from lab.arena.running import Hear, RunRecord, RunTask
    from lab.arena.standing import Duel, FamilyPlace, RivalPlace
    from lab.arena.stats import Comparison, MetricCell, Row, Summary
    from lab.arena.store import ResultFolder
    from lab.outcome import About, RunOutcome


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
        int, typer.Option("--seed-from", min=0, help="The first seed: held-out ones are those never used before.")
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
    answer = {"scenarios": to_plain(found), "families": to_plain(by_family), "out_of_date": old}
    show(answer, output, standing_tables(found, by_family))
    _missed(held, old, output)
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
    old = _out_of_date(records)
    _missed([folder], old, output)
    compared = comparisons(records, reference)
    stands = {place.scenario: place for place in places(records)}
    failures = {
        f"{item.scenario} × {item.contender.label}, seed {item.seed}": item.error for item in records if item.error
    }
    answer = {
        "scenarios": to_plain(compared),
        "standing": to_plain(tuple(stands.values())),
        "failures": failures,
        "out_of_date": old,
    }
    failed = [f"failed: {name}: {error}" for name, error in sorted(failures.items())]
    show(answer, output, [*comparison_tables(compared, stands), *failed])
    _caution([len(each.seeds) for each in compared], output)


def _out_of_date(records: Sequence[RunRecord]) -> list[str]:
    """What no longer is as these runs had it, of this software and the scenarios that come with it."""
    from lab.arena.store import out_of_date
    from solvers.domain.codec import bytes_digest

    return list(out_of_date(records, {path.stem: bytes_digest(path.read_bytes()) for path in built_in()}))


def _missed(folders: Sequence[ResultFolder], old: Sequence[str], output: Format) -> None:
    """What is wanting of the results, or no longer so."""
    lacking = sum(folder.lacking() for folder in folders)
    told = [f"{lacking} runs that belong here are not there, or not whole: run them again"] if lacking else []
    for line in (*told, *old) if output.is_for_people else ():
        say(line)


def _caution(seeds: Sequence[int], output: Format) -> None:
    from lab.arena.stats import caution

    told = caution(min(seeds, default=0))
    if told is not None and output.is_for_people:
        say(told)


arena.command(name="claims")(judge)


OTHER_METRICS_MAX = 4
MARGIN = "0.1 points (of what is no percentage, 1 %)"
GUARDS = {"no": "guard", "untold": "guard?"}


def comparison_tables(compared: Sequence[Comparison], stands: Mapping[str, RivalPlace]) -> list[Any]:
    """A table for each scenario, and how ours stands there."""
    parts: list[Any] = []
    for each in compared:
        metrics = shown_metrics(each)
        columns = ("rank", "contender", *(f">{name}" for name in metrics), f">{each.about.goal} vs {each.reference}")
        # A title of the table's own would be folded to its width.
        parts.append(each.about.title)
        parts.append(rows(columns, [_line(row, metrics, each) for row in each.rows]))
        parts.append(f"{_rule(each.about)}; * differs from {each.reference} by more than noise (5 %, Holm)")
        parts.extend(f"{row.contender} leaves out {', '.join(row.left_out)}" for row in each.rows if row.left_out)
        if each.unshared:
            parts.append(f"seeds {', '.join(map(str, each.unshared))} count for nobody: not everybody ran under them")
        duel = stands[each.about.name].all_others if each.about.name in stands else None
        if duel is not None:
            parts.append(duel_line(duel, each.about))
        parts.append("")
    return parts


def shown_metrics(compared: Comparison) -> list[str]:
    """Goal and guard first, then the first others that have a good direction."""
    about = compared.about
    first = [name for name in (about.goal, about.guard) if name is not None]
    known = {cell.metric: cell.better for row in compared.rows for cell in row.cells}
    others = [name for name in sorted(known) if name not in first and known[name].value != "neither"]
    return [name for name in first if name in known] + others[:OTHER_METRICS_MAX]


def duel_line(duel: Duel, about: About) -> str:
    """How ours does against the best of the others, in words."""
    gain, standing = _gain(duel.gain_pct), duel.standing.value.replace("_", " ")
    guard = f"; {about.guard} no worse: {duel.guard_kept.value}" if about.guard is not None else ""
    return f"ours against {duel.against}, by {about.goal}: {gain}, {standing}{guard}"


def standing_tables(found: Sequence[RivalPlace], by_family: Sequence[FamilyPlace]) -> list[Any]:
    """A line for each scenario, one for each family, and the counts."""
    from lab.arena.standing import won

    columns = ("scenario", "goal", ">seeds", ">ours", "best of the five", "", "best of all others", "")
    lines = [
        (
            f"{place.scenario}, by pursuit" if place.by_pursuit else place.scenario,
            f"{place.goal} {'↓' if place.better.value == 'lower' else '↑'}",
            place.seeds,
            _ours(place),
            *_duel(place.founding),
            *_duel(place.all_others),
        )
        for place in found
    ]
    family_lines = [
        (each.family, len(each.scenarios), each.seeds, _gain(each.gain_pct), each.standing.value.replace("_", " "))
        for each in by_family
    ]
    parts: list[Any] = [
        rows(columns, lines),
        "in brackets: the guard, mostly violations in %; ± is the 95 % interval",
        "",
        rows(("family", ">scenarios", ">seeds", ">gain over the best of the five", ""), family_lines),
    ]
    for name, standings in (
        ("the best of the five, by scenario", [place.founding.standing for place in found if place.founding]),
        ("the best of the five, by family", [each.standing for each in by_family]),
        ("the best of all others, by scenario", [place.all_others.standing for place in found if place.all_others]),
    ):
        clear, kept, there = won(standings)
        untold = sum(each.value == "untold" for each in standings)
        best = f"clearly better, or alone in keeping the guard, on {clear} of {there}"
        lost = sum(each.value == "failed" for each in standings)
        rest = f"level or somewhat better on {kept}; untold on {untold}; failed on {lost}"
        parts.append(f"against {name}: {best}; {rest}")
    return parts


def about_table(found: Iterable[About]) -> Any:
    """Scenarios as a list."""
    lines = [
        (each.name, each.kind, f"{each.goal} ({each.better.value})", each.guard, each.seeds, ", ".join(each.planners),
         each.title) for each in found
    ]  # fmt: skip
    return rows(("scenario", "kind", "goal", "guard", ">seeds", "contenders", "what it is"), lines)


def outcome_tables(about: About, outcome: RunOutcome) -> list[Any]:
    """One run in numbers."""
    told = sorted(outcome.metrics, key=lambda item: item.name)
    metrics = [(item.name, item.value, item.better.value) for item in told]
    parts: list[Any] = [
        f"{about.title}: {outcome.contender}, seed {outcome.seed}",
        rows(("metric", ">value", "good is"), metrics),
    ]
    if outcome.services:
        services = [
            (item.service, item.asked, item.violation_pct, item.latency_ms_p50, item.latency_ms_p99, item.attained)
            for item in outcome.services
        ]
        parts += ["", rows(("service", ">asked", ">violation %", ">p50 ms", ">p99 ms", "SLO kept"), services)]
    if outcome.jobs:
        jobs = [(item.job, item.waited_s, item.took_s, 100 * item.done_part, item.evictions) for item in outcome.jobs]
        parts += ["", rows(("job", ">waited s", ">took s", ">done %", ">evicted"), jobs)]
    return parts


def _duel(duel: Duel | None) -> tuple[str, str]:
    if duel is None:
        return "-", "-"
    gain = _gain(duel.gain_pct)
    return f"{duel.against} {_kept(duel.goal, duel.guard)}", f"{gain} {duel.standing.value.replace('_', ' ')}"


def _ours(place: RivalPlace) -> str:
    told = [] if place.ours is None else [_kept(place.ours, place.ours_guard)]
    return ", ".join(told + ([f"{place.failed} failed"] if place.failed else []))


def _kept(goal: Summary, guard: Summary | None) -> str:
    return f"{_mean(goal)}{f' ({number(guard.mean)})' if guard is not None else ''}"


def _mean(summary: Summary) -> str:
    return number(summary.mean) + (f" ± {number(summary.high - summary.mean)}" if summary.high is not None else "")


def _gain(told: Summary | None) -> str:
    if told is None:
        return "-"
    between = f" ({told.low:+.1f} to {told.high:+.1f})" if told.low is not None and told.high is not None else ""
    return f"{told.mean:+.1f} %{between}"


def _line(row: Row, metrics: Sequence[str], compared: Comparison) -> list[object]:
    goal = row.cell(compared.about.goal)
    rank = row.rank if row.rank is not None else "failed" if row.failed else GUARDS.get(row.guard.value, "left out")
    return [
        rank,
        row.contender,
        *(_figure(row.cell(name)) for name in metrics),
        _gain(goal.versus.relative_pct if goal is not None and goal.versus is not None else None),
    ]


def _figure(cell: MetricCell | None) -> str:
    if cell is None:
        return "-"
    return f"{_mean(cell.summary)}{'*' if cell.versus is not None and cell.versus.distinct else ''}"


def _rule(about: About) -> str:
    guard = (
        f" among those shown to have no more {about.guard} than the reference, within {MARGIN}" if about.guard else ""
    )
    return f"ranked by {about.goal} ({about.better.value} is better){guard}; ± is the 95 % interval"
