"""The program `headroom`: its commands in order and by groups, and the one place where an error becomes a line on
standard error and an exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer

from app.cli.options import ANY_WORDS, plug
from app.cli.output import Exit, Format, Output, exit_code_of, outliving_readers, sentence_of, show
from app.marked import UnreadableError
from solvers.version import VERSION

_ABOUT = """Headroom: the cheapest plan for a mixed GPU fleet that keeps every SLO, explained and enforced.

Exit status: 0 done, 1 failed, 2 wrong usage or input, 3 not found, 4 refused, 5 conflict, 6 unreachable, 7 checked and
found wrong, 8 needs an extra, such as headroom-gpu\\[server], 9 cannot be told, 130 interrupted. A reader that has seen
enough (`| head`) changes none of them.
"""

INTERRUPTED = 130


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headroom {VERSION}")
        raise typer.Exit(Exit.OK)


def headroom(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stands for the program itself."""


# Typer brings its own copy of click or uses the installed one, by release; its exceptions lead to the right base.
_ClickError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_LOCAL, _DECLARE, _PLAN, _WATCH = "One machine and its processes", "Declare", "Plan and explain", "Watch and account"
_MODEL, _COMPARE, _REVIEW = "Measure and predict", "Compare policies", "Review changes"


def version(output: Output = Format.TABLE) -> None:
    """Print the version."""
    show({"version": VERSION}, output, f"headroom {VERSION}")


@dataclass(frozen=True, slots=True)
class CommandAt:
    """Where a command or a group of them is, `module:name` as is its class, which is loaded where it is called."""

    panel: str
    at: str
    group: bool = False
    cls: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def add(self, name: str, app: typer.Typer) -> None:
        more = {"name": name, "rich_help_panel": self.panel, **self.options}
        if self.cls:
            more["cls"] = _loaded(self.cls)
        if self.group:
            app.add_typer(_loaded(self.at), **more)
        else:
            app.command(**more)(_loaded(self.at))


def _loaded(at: str) -> Any:
    module, _, name = at.partition(":")
    return getattr(import_module(f"app.cli.{module}"), name)


_PASSED_ON = {"add_help_option": False, "context_settings": ANY_WORDS}
COMMANDS: dict[str, CommandAt | str] = {
    **{name: CommandAt(_LOCAL, f"processes:{name}") for name in ("up", "down", "serve", "planner")},
    "agent": CommandAt(_LOCAL, "processes:agent", options=_PASSED_ON),
    "agent-helper": CommandAt(_LOCAL, "processes:agent_helper", options=_PASSED_ON),
    "traffic": CommandAt(_LOCAL, "processes:traffic"),
    "migrate": CommandAt(_LOCAL, "processes:migrate", group=True),
    "restore": CommandAt(_LOCAL, "processes:restore"),
    "doctor": CommandAt(_LOCAL, "doctor:doctor", options={"context_settings": {"allow_extra_args": True}}),
    **{name: CommandAt(_DECLARE, f"declare:{name}") for name in ("apply", "get", "edit", "patch", "delete")},
    "task": CommandAt(_DECLARE, "tasks:task", group=True),
    "fit": CommandAt(_MODEL, "modelling:fit", cls="files:FilesCommand"),
    **{name: CommandAt(_MODEL, f"modelling:{name}") for name in ("predict", "profile")},
    "profiles": CommandAt(_MODEL, "modelling:profiles", group=True),
    "train": _MODEL,
    **{name: CommandAt(_PLAN, f"planning:{name}") for name in ("plan", "planners")},
    **{
        name: CommandAt(_REVIEW, f"reviewing:{name}")
        for name in ("plans", "diff", "approve", "reject", "rollback", "resume")
    },
    "explain": CommandAt(_PLAN, "planning:explain"),
    **{name: CommandAt(_PLAN, f"checking:{name}") for name in ("verify", "replay")},
    "simulate": CommandAt(_PLAN, "planning:simulate", cls="planning:AdviseCommand"),
    "snapshot": CommandAt(_PLAN, "checking:snapshot", group=True),
    "arena": _COMPARE,
    **{name: CommandAt(_WATCH, f"watch:{name}") for name in ("status", "top")},
    "open": CommandAt(_WATCH, "access:open_console"),
    "nodes": CommandAt(_WATCH, "watch:nodes", group=True),
    **{name: CommandAt(_WATCH, f"draining:{name}") for name in ("drain", "uncordon")},
    **{name: CommandAt(_WATCH, f"watch:{name}") for name in ("logs", "budget")},
    "report": CommandAt(_WATCH, "watch:report", group=True),
    "routes": CommandAt(_WATCH, "routes:routes", group=True),
    "login": CommandAt(_WATCH, "access:login"),
    **{name: CommandAt(_WATCH, f"access:{name}", group=True) for name in ("context", "token", "webhook")},
    "ca": CommandAt(_LOCAL, "access:ca", group=True),
    "version": CommandAt(_WATCH, "program:version"),
}
"""In order; of what an installed distribution brings the panel alone."""


def program(words: Sequence[str] = ()) -> typer.Typer:
    """The one command that the first word calls, for loading and building all takes longer than most take; all of them
    where it calls none.
    """
    made = typer.Typer(
        name="headroom",
        help=_ABOUT,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(headroom)
    first = "".join(words[:1])
    first = "version" if first in ("--version", "-V") else first
    called = {name: place for name, place in COMMANDS.items() if name == first}
    for name, place in (called or COMMANDS).items():
        if isinstance(place, str):
            plug(made, name, place)
        else:
            place.add(name, made)
    return made


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command. A reader that has seen enough of one that goes on without end is no failure."""
    status: int = Exit.OK
    with outliving_readers():
        status = _ran(arguments)
    return status  # noqa: RET504 - it stands where the reader left


def _ran(arguments: Sequence[str] | None) -> int:
    """Every expected error is one line; only a bug of ours shows a traceback."""
    try:
        called = typer.main.get_command(program(sys.argv[1:] if arguments is None else arguments))
        outcome = called.main(args=arguments, prog_name="headroom", standalone_mode=False)
    except _ClickError as error:
        return _say_usage(error)
    except typer.Exit as error:
        return int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("headroom: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        for line in error.lines if isinstance(error, UnreadableError) else (sentence,):
            typer.echo(f"headroom: {' '.join(line.split())}", err=True)
        return exit_code_of(error)
    return outcome if isinstance(outcome, int) else Exit.OK


def _say_usage(error: Any) -> int:
    """One line and where help is; a group called without a command has printed its help already."""
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if message and type(error).__name__ != "NoArgsIsHelpError":
        usage = f" (see: {context.command_path} --help)" if context is not None else ""
        typer.echo(f"headroom: {message}{usage}", err=True)
    return int(error.exit_code)
