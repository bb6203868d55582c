"""The command that lists planners: what they decide, what they keep, and what of them can be tuned.

Owns the columns, and the reading of `--set NAME.parameter=value`. It refuses to know any planner: each publishes its
own table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import Format, Output, rows, show
from solvers.errors import InputError

if TYPE_CHECKING:
    from solvers.domain.policy import PlannerSetting
    from solvers.planners.registry import Listing

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME.PARAMETER=VALUE", help="Tune a planner for this plan; may be given again."),
]


def planners(
    name: Annotated[
        str | None, typer.Argument(help="One planner, also of a file: my.py:MyPlanner. Default: all.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """List planners: what each decides and keeps; with a name, what of it can be tuned."""
    from app import own_planners
    from solvers.domain.codec import to_plain
    from solvers.planners import registry

    if name is None:
        table = registry.table()
        show(
            [to_plain(item) for item in table],
            output,
            rows(("planner", "decides", "keeps", "tunable", "what it does"), map(_row, table)),
        )
        return
    if not own_planners.is_own(name) and name not in registry.names():
        raise InputError(f"there is no planner {name}; known are {', '.join(registry.names())}")
    one = registry.listing(own_planners.create(name))
    show(to_plain(one), output, _told(one))


def _row(item: Listing) -> tuple[object, ...]:
    names = ", ".join(each.name for each in item.parameters)
    return item.name, " ".join(knob.value for knob in item.knobs), item.remembers, names, item.about


def _told(item: Listing) -> list[Any]:
    decides = ", ".join(knob.value for knob in item.knobs) or "nothing"
    head = [f"{item.name} {item.version}" + (f": {item.about}" if item.about else ""), f"decides {decides}"]
    if not item.parameters:
        return [*head, "nothing of it can be tuned"]
    lines = ((each.name, str(_plain(each.default)), each.allowed, each.meaning) for each in item.parameters)
    return [*head, rows(("parameter", "default", "may be", "what it means"), lines)]


def _plain(default: object) -> object:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else default


def read_settings(given: Iterable[str]) -> tuple[PlannerSetting, ...]:
    """What `--set` says. Raises InputError for what is not NAME.PARAMETER=VALUE."""
    from solvers.domain.policy import PlannerSetting

    found = []
    for text in given:
        names, equals, written = text.partition("=")
        planner, dot, parameter = names.rpartition(".")
        if not (equals and dot and planner and parameter):
            raise InputError(f"--set {text}: write PLANNER.PARAMETER=VALUE")
        found.append(PlannerSetting(planner=planner, name=parameter, value=_value(written)))
    return tuple(found)


def _value(written: str) -> bool | float | str:
    """JSON where it is a number or a truth value, else the text itself."""
    try:
        read = json.loads(written)
    except ValueError:
        return written
    return read if isinstance(read, bool) else float(read) if isinstance(read, int | float) else written
