"""`headroom task`: submit offline tasks, see where they are, cancel them.

Their place in line, their group and what is believed of them are the control plane's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

import typer

from app.cli.options import COUNT_MAX, Server, Token, connect, duration_s, project_and_name, shortened
from app.cli.output import Cell, Format, Output, listed, number, rows, show, warn
from headroom_client import Document
from solvers.errors import InputError

task = typer.Typer(help="Submit offline tasks and see where they are.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(help="PROJECT/NAME of the task.")]
STATES = ("waiting", "running", "done", "late")


@task.command("submit")
def submit(
    model: Annotated[str, typer.Argument(help="The model that is to be run.")],
    *,
    inputs: Annotated[int, typer.Option("--inputs", min=1, help="How many inputs there are.")],
    deadline: Annotated[str | None, typer.Option("--deadline", help="Until when, from now, such as 2h.")] = None,
    min_rate: Annotated[
        float | None,
        typer.Option("--min-rate", min=0, max=1e12, help="Instead of a deadline: inputs a second at least."),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Default: the token's own.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Default: one is made up.")] = None,
    latency_weight: Annotated[
        float | None, typer.Option("--lambda", min=0, max=1, help="From 0 to below 1; above 0.5 latency counts more.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", min=0, max=1000)] = None,
    gpu_types: Annotated[
        list[str] | None, typer.Option("--gpu-type", help="Only on this type; may be repeated.")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Whose it is; may be repeated.")
    ] = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Submit a task: so many inputs of a model, until a deadline or at a rate."""
    wanted: Document = {
        "model": model,
        "inputs_total": inputs,
        "slo": _slo(deadline, min_rate),
        "project": project,
        "name": name,
        "class_lambda": latency_weight,
        "priority": priority,
        "gpu_types_allowed": gpu_types or None,
    }
    if labels:
        wrong = next((said for said in labels if "=" not in said), None)
        if wrong is not None:
            raise InputError(f"--label takes KEY=VALUE, got {shortened(wrong)}")
        wanted["labels"] = [dict(zip(("key", "value"), said.split("=", 1), strict=False)) for said in labels]
    with connect(server, token) as client:
        answer = client.submit_task(wanted)
    warn(answer.warnings)
    made = answer.body
    show(made, output, [f"{made['project']}/{made['name']}"])


@task.command("list")
def list_tasks(
    *,
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    state: Annotated[str | None, typer.Option("--state", help=f"Only these: {', '.join(STATES)}.")] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", min=1, max=COUNT_MAX, help="So many at most; default: all.")
    ] = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """List tasks with their state, across projects."""
    if state is not None and state not in STATES:
        raise InputError(f"--state {state}: there are {', '.join(STATES)}")
    with connect(server, token) as client:
        found = list(islice(client.items("tasks/status", project=project, state=state, limit=limit), limit))
    show(found, output, listed(_COLUMNS, found))


@task.command("show")
def show_task(key: Key, output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Show one task: its place in line or its group, what is believed of it, and why."""
    with connect(server, token) as client:
        found = client.task_status(*project_and_name("task", key))
    show(found, output, [rows(("", ""), _facts(found)), *(f"  {sentence}" for sentence in found["why"])])


@task.command("cancel")
def cancel(key: Key, server: Server = None, token: Token = None) -> None:
    """Cancel a task: its document is deleted, and with it what is known of its progress."""
    project, name = project_and_name("task", key)
    with connect(server, token) as client:
        client.delete("task", project, name)
    typer.echo(f"cancelled {project}/{name}")


def _slo(deadline: str | None, min_rate: float | None) -> dict[str, Any]:
    if (deadline is None) == (min_rate is None):
        raise InputError("give either --deadline or --min-rate")
    if deadline is not None:
        return {"kind": "deadline", "deadline_s": float(duration_s(deadline))}
    return {"kind": "throughput", "throughput_rps_min": min_rate}


def _place(item: Document) -> str:
    group = item["group"]
    if group is None:
        return f"{item['queue_position']}. in line" if item["queue_position"] else ""
    return f"{group['gpu_type'] or '?'} {group['device']}"


def _moment(text: str | None) -> str:
    return "" if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}"


_COLUMNS: Mapping[str, Cell] = {
    "task": "id",
    "state": "state",
    "model": "model",
    ">done %": lambda item: number(min(100.0, 100.0 * item["inputs_done"] / item["inputs_total"])),
    ">priority": "priority",
    "place": _place,
    "deadline": lambda item: _moment(item["deadline_at"]),
    "finish": lambda item: _moment(item["finished_at"] or item["finish_at_predicted"]),
    "kept": "deadline_kept",
}


def _facts(item: Document) -> list[tuple[str, object]]:
    group = item["group"] or {}
    beside = [other for other in group.get("tasks", ()) if other != item["id"]]
    return [
        ("task", item["id"]),
        ("state", item["state"]),
        ("model", item["model"]),
        ("inputs", f"{number(item['inputs_done'])} of {item['inputs_total']}"),
        ("lambda", item["class_lambda"]),
        ("priority", str(item["priority"])),
        ("submitted", _moment(item["submitted_at"])),
        ("deadline", _moment(item["deadline_at"])),
        ("deadline kept", item["deadline_kept"]),
        ("place", _place(item)),
        ("beside", ", ".join(beside)),
        ("batch", str(group["batch"]) if group else ""),
        ("share", f"{group['share_pct_sm']} %" if group else ""),
        ("rate believed", f"{number(item['rate_rps_predicted'])}/s" if item["rate_rps_predicted"] else ""),
        ("a batch believed", _ms(item["latency_ms_predicted"])),
        ("a batch measured", _ms(item["latency_ms_measured"])),
        ("done, as believed", _moment(item["finish_at_predicted"])),
        ("done", _moment(item["finished_at"])),
        (
            "lost its place",
            ("once" if item["evictions"] == 1 else f"{item['evictions']:,} times") if item["evictions"] else "",
        ),
    ]


def _ms(amount: float | None) -> str:
    return "" if amount is None else f"{number(amount)} ms"
