"""Commands that measure and predict: `fit` and `predict` learn performance models from files and ask them, without a
server; the group `profiles` imports measurements into a control plane, shows them and asks what to measure next;
`profile` has a node measure a service on one of its devices, and follows how it goes.

Numbers go to the named file or to standard output, remarks to standard error. A server's pointers become lines and
columns of the file that was sent; rows are judged by the server, by the same rules as `fit`. What a node measured is in
the profiles as it comes, whether or not anybody follows.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from app.cli.files import (
    STANDARD,
    arithmetic,
    check_target,
    is_json,
    read_measurements,
    read_model,
    read_questions,
    write_model,
    write_text,
)
from app.cli.looking import look_again
from app.cli.options import Server, Token, connect, duration_s
from app.cli.output import CommandError, Exit, Format, Output, listed, show
from headroom_client import ApiError, Client, ClientError, Document
from solvers.errors import InputError

if TYPE_CHECKING:
    from app.services.profiles.forms import Sheet
    from solvers.models.base import Facts


SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out instead of ending there.")]
_DEFAULT_MODEL = "headroom"
_DOCUMENT = re.compile(r"""^[{\s]*["']?kind["']?\s*:""", re.MULTILINE)


def fit(
    solo: Annotated[
        list[str] | None,
        typer.Option("--solo", help="CSV of models measured alone; several may follow.", show_default=False),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option("--pairs", help="CSV of pairs measured side by side; several may follow.", show_default=False),
    ] = None,
    *,
    model: Annotated[str, typer.Option("--model", help="Which performance model to fit.")] = _DEFAULT_MODEL,
    out: Annotated[
        str, typer.Option("--out", help="Where the fitted model goes (.gz: compressed; -: standard output).")
    ],
    seed: Annotated[int, typer.Option("--seed", min=0, help="For models with randomness.")] = 0,
    no_library: Annotated[
        bool, typer.Option("--no-library", help="Learn from these files alone, without the built-in library.")
    ] = False,
    skip_bad: SkipBad = False,
) -> None:
    """Fit a performance model to measurements and write it to a file."""
    if not solo and not pairs:
        raise InputError("name at least one file with --solo or --pairs")
    from app.services.profiles.forms import group_samples_of, samples_of
    from solvers.models.suite import Suite, suites

    if model not in suites():
        raise InputError(f"there is no performance model {model!r}; known are {', '.join(suites())}")
    check_target(out)
    facts = _facts(not no_library)
    alone, together = read_measurements(solo or (), pairs or (), facts, skip_bad=skip_bad)
    fresh = Suite.fresh(model, facts, seed)
    with arithmetic(f"{model} cannot be fitted to these measurements; are they of one kind and in the right units?"):
        suite = fresh.fit(samples_of(alone), group_samples_of(together) if together else None)
    rows, groups = (sum(len(sheet) for sheet in sheets) for sheets in (alone, together))
    write_model(out, suite, library=not no_library, seed=seed, rows=rows, pairs=groups)
    typer.echo(f"fitted {model} to {rows} rows and {groups} pairs", err=True)


def predict(
    model: Annotated[str, typer.Option("--model", help="A file that `headroom fit` wrote.")],
    queries: Annotated[str, typer.Option("--queries", help="CSV of questions (-: standard input).")],
    out: Annotated[str, typer.Option("--out", help="Where the answers go (-: standard output).")] = STANDARD,
    *,
    skip_bad: SkipBad = False,
) -> None:
    """Answer every row of a file of questions with a fitted model."""
    if model == STANDARD and queries == STANDARD:
        raise InputError("standard input can be the model or the questions, not both")
    from app.services.profiles.forms import answers_to, replaced_columns, unknown_rows, written

    check_target(out)
    suite = read_model(model, _facts)
    sheet = read_questions(queries, _facts(False), skip_bad=skip_bad)
    with arithmetic(f"{model} cannot answer these questions"):
        answers = answers_to(sheet, suite)
    write_text(out, written(sheet, answers))
    _remark(sheet, replaced_columns(sheet), unknown_rows(sheet, answers))


def _remark(sheet: Sheet, ignored: tuple[str, ...], unknown: int) -> None:
    if ignored:
        typer.echo(f"not looked at, because they are measured: {', '.join(ignored)}", err=True)
    if unknown:
        typer.echo(f"{unknown} of {len(sheet)} rows stay empty: the model knows nothing of the kind", err=True)


def _facts(library: bool) -> Facts:
    """What is built in; without the library, specifications of GPUs and networks only."""
    from dataclasses import replace

    from app.library import facts

    return facts() if library else replace(facts(), library=None)


profiles = typer.Typer(name="profiles", help="Measurements in a control plane.", no_args_is_help=True)
PAIRS_SHOWN = 500
PART_LENGTH_MAX = 2_000_000
"""Characters of CSV sent at once; servers take four MiB unless told otherwise."""
_SOLO = (
    "model", "gpu_type", "batch", "share_pct_sm", "clock_mhz_sm", "latency_ms", "throughput_rps", "power_w",
    "memory_mib", "l2_util_pct", "dram_util_pct",
)  # fmt: skip
_POINT = (
    "batch", "share_pct_sm", "clock_mhz_sm", "latency_ms_mean", "latency_ms_p99", "memory_mib", "power_w", "origin",
)  # fmt: skip
_PAIR = (
    "model_a", "batch_a", "share_pct_a", "latency_ms_a", "model_b", "batch_b", "share_pct_b", "latency_ms_b",
)  # fmt: skip
_UNLEARNED = {
    "learning": "not everything that is stored has been learned yet; ask again in a minute for better proposals",
    "failed": "no model copes with what is stored (the server's log tells why); this is from what was learned before",
}

Model = Annotated[str, typer.Argument(help="Name of the model.")]
GpuType = Annotated[str, typer.Argument(help="Name of the GPU type.")]


@profiles.command("import")
def import_(
    files: Annotated[list[str], typer.Argument(help="CSV (points, solo or pair form) or JSON (points); - reads CSV.")],
    *,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out instead of ending there.")] = False,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Store measurements; a newer one of the same configuration replaces the older one. What was stored is said,
    however it ends.
    """
    done: dict[int, Document] = {}
    columns = {"file": "file", ">points": "points", ">pairs": "pairs", ">left out": "skipped_count"}
    with connect(server, token) as client:
        try:
            parts = ((at, part) for at, file in enumerate(files) for part in _import(client, file, skip_bad=skip_bad))
            for index, stored in parts:
                done[index] = {"file": files[index], **stored}
        finally:
            if done:
                show([*done.values()], output, listed(columns, [*done.values()]))


@profiles.command("list")
def list_(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """List what was measured, by model and GPU type."""
    with connect(server, token) as client:
        items = list(client.items("profiles"))
    show(items, output, listed(("model", "gpu_type", "points", "imported_at"), items))


@profiles.command("show")
def show_(
    model: Model, gpu_type: GpuType, output: Output = Format.TABLE, server: Server = None, token: Token = None
) -> None:
    """Show every measurement of a model on a GPU type, alone and in pairs."""
    route = f"profiles/{quote(model, safe='')}/{quote(gpu_type, safe='')}"
    with connect(server, token) as client:
        pairs = list(islice(client.items(f"{route}/pairs"), PAIRS_SHOWN))
        points = _points(client, f"/v1/{route}", needed=not pairs)
    tables = [listed(_POINT, points)] if points else []
    tables += [listed(_PAIR, pairs)] if pairs else []
    show({"model": model, "gpu_type": gpu_type, "points": points, "pairs": pairs}, output, tables)


@profiles.command("next-points")
def next_points(
    model: Model,
    gpu_type: GpuType,
    *,
    budget: Annotated[int, typer.Option("--budget", "-n", min=1, max=256, help="How many at most.")] = 16,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the solo form with the measured columns left to fill in.")
    ] = False,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Propose the measurements that would tell most, the best first: `std_pct` is how unsure their latency is."""
    with connect(server, token) as client:
        answer = client.next_points(model, gpu_type, budget)
    found = answer.body["items"]
    if answer.belief in _UNLEARNED:
        typer.echo(_UNLEARNED[answer.belief], err=True)
    if as_csv:
        writer = csv.DictWriter(sys.stdout, _SOLO, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        return
    show(found, output, listed(("batch", "share_pct_sm", "clock_mhz_sm", "std_pct"), found))


def _import(client: Client, file: str, *, skip_bad: bool) -> Iterator[Document]:
    """What of a file is stored, after each of its parts."""
    text = sys.stdin.read() if file == "-" else _text(Path(file))
    if _DOCUMENT.search(text):
        raise InputError(f"{file}: this is a document, and measurements are read here: headroom apply -f {file}")
    if file != "-" and is_json(text):
        yield _send(client, file, {"points": _listed(file, text)}, skip_bad=skip_bad)
        return
    total: Document = {}
    for lines_before, part in _parts(text):
        try:
            answer = _send(client, file, {"csv": part}, lines_before=lines_before, skip_bad=skip_bad)
        except ClientError:
            if total:
                typer.echo(f"{file}: stored up to line {lines_before + 1}; the rest may be sent again", err=True)
            raise
        total = {name: total[name] + answer[name] if total else answer[name] for name in answer}
        yield total


def _send(client: Client, file: str, sent: dict[str, Any], *, lines_before: int = 0, skip_bad: bool) -> Document:
    try:
        answer: Document = client.import_profiles(**sent, skip_bad=skip_bad)
    except ApiError as error:
        if error.status != 422 or not error.pointers:
            raise
        _name_faults(file, lines_before, error.pointers)
        rest = f"nothing from line {lines_before + 2} on" if lines_before else "nothing of it"
        raise CommandError(f"{file}: {rest} was imported (--skip-bad leaves bad rows out)", Exit.USAGE) from None
    told = [(fault, fault["detail"]) for fault in answer["skipped"]]
    told += [(fault, f"doubtful: {fault['detail']}") for fault in answer.get("doubtful", ())]
    _name_faults(file, lines_before, ((str(fault["pointer"]), detail) for fault, detail in told))
    return answer


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """A long text in parts that a server takes, each under the header, with how many of its lines were sent before."""
    if len(text) <= PART_LENGTH_MAX:
        yield 0, text
        return
    header, *lines = text.splitlines(keepends=True)
    start, length = 0, 0
    for index, line in enumerate(lines):
        length += len(line)
        if length > PART_LENGTH_MAX:
            yield start, "".join((header, *lines[start : index + 1]))
            start, length = index + 1, 0
    if length:
        yield start, "".join((header, *lines[start:]))


_ROW = re.compile(r"\brow:(\d+)\b")


def _name_faults(file: str, lines_before: int, faults: Iterable[tuple[str, str]]) -> None:
    def place(row: re.Match[str]) -> str:
        # The header stands above every part, so only the rows below it move.
        return f"{file}:{int(row[1]) + (lines_before if row[1] != '1' else 0)}"

    for pointer, detail in faults:
        row, _, column = pointer.partition("/")
        if pointer.startswith("row:"):
            parts = [_ROW.sub(place, row), column, _ROW.sub(place, detail)]
        else:
            parts = [file, pointer, detail]
        typer.echo(": ".join(part for part in parts if part), err=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _listed(file: str, text: str) -> list[Document]:
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise InputError(f"{file}: {error}") from None
    if not isinstance(plain, list):
        raise InputError(f"{file}: expected a list of points")
    return plain


def _points(client: Client, path: str, *, needed: bool) -> list[Document]:
    try:
        found: list[Document] = client.call("GET", path).body["points"]
    except ApiError as error:
        if error.status != 404 or needed:
            raise
        return []
    return found


LOOK_S = 2.0
ENDED = ("done", "failed", "cancelled")
_RUN_COLUMNS = {
    "id": "id",
    "state": "state",
    "service": "service",
    "beside": "beside",
    "node": "node_id",
    "device": "uuid",
    "measured": "measured",
    "doubtful": "doubtful",
    "detail": "detail",
}


def profile(
    service: Annotated[str | None, typer.Argument(help="PROJECT/NAME of the service to measure.")] = None,
    *,
    node: Annotated[str, typer.Option("--node", help="The node that measures.")],
    budget: Annotated[str, typer.Option("--budget", help="How long it may measure, such as 20m.")] = "20m",
    device: Annotated[str | None, typer.Option("--device", help="UUID; default: the first free one.")] = None,
    pairs: Annotated[str | None, typer.Option("--pairs", help="A,B: measure two services side by side.")] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Take a device with live traffic; its replicas are moved away first.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the run to its end.")] = True,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Run a service's process over the configurations that tell most, and learn from what comes out."""
    measured, beside = _subjects(service, pairs)
    wanted = {"service": measured, "beside": beside, "node": node, "device": device, "drain": drain}
    with connect(server, token) as client:
        run = client.create_profile_run({**wanted, "budget_s": float(duration_s(budget))})
        if wait:
            typer.echo(f"run {run['id']} on {run['uuid']}: ctrl-c stops watching, not the run", err=True)
            for look in _looks(client, run["id"]):
                typer.echo(_progress(look), err=True)
                run = look
    show(run, output, listed(_RUN_COLUMNS, [run]))
    if run["state"] == "failed":
        raise CommandError(f"the run failed: {run['detail']}", Exit.FAILED)


@profiles.command("runs")
def runs(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """List runs that measured or measure, the newest first."""
    with connect(server, token) as client:
        found = list(client.items("profile-runs"))
    show(found, output, listed(_RUN_COLUMNS, found))


@profiles.command("cancel")
def cancel(
    run: Annotated[int, typer.Argument(help="Id of the run.", min=1)],
    server: Server = None,
    token: Token = None,
) -> None:
    """End a run; what it measured stays."""
    with connect(server, token) as client:
        client.delete_profile_run(run)


def _subjects(service: str | None, pairs: str | None) -> tuple[str, str | None]:
    if (service is None) == (pairs is None):
        raise InputError("name one service, or two with --pairs A,B")
    if pairs is None:
        return service or "", None
    parts = [part.strip() for part in pairs.split(",")]
    if len(parts) != 2 or not all(parts):
        raise InputError(f"--pairs {pairs!r}: expected two services with a comma between them")
    return parts[0], parts[1]


def _looks(client: Client, number: int) -> Iterator[Document]:
    """The run whenever something about it is new, up to its end."""
    told, run = None, client.profile_run(number)
    while True:
        now = (run["state"], run["measured"], run["doubtful"], run["detail"])
        if now != told:
            told = now
            yield run
        if run["state"] in ENDED:
            return
        run = look_again(partial(client.profile_run, number), LOOK_S)


def _progress(run: Document) -> str:
    counts = f"{run['measured']} measured" + (f", {run['doubtful']} doubtful" if run["doubtful"] else "")
    return f"{run['state']}: {counts}" + (f"; {run['detail']}" if run["detail"] else "")
