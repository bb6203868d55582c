"""The program `headroom`: its commands in order and by groups, and the one place where an error becomes a line on
standard error and an exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import copy
from typing import Annotated, Any

import typer

from app.cli import access, checking, declare, draining, modelling, planning, processes, reviewing, tasks, watch
from app.cli.doctor import doctor
from app.cli.files import FilesCommand
from app.cli.options import ANY_WORDS, plug
from app.cli.output import Exit, Format, Output, exit_code_of, outliving_readers, sentence_of, show
from app.cli.routes import routes
from app.marked import UnreadableError
from solvers.version import VERSION

_ABOUT = """Headroom: the cheapest plan for a mixed GPU fleet that keeps every SLO, explained and enforced.

Exit status: 0 done, 1 failed, 2 wrong usage or input, 3 not found, 4 refused, 5 conflict, 6 unreachable, 7 checked and
found wrong, 8 needs an extra, such as headroom-gpu\\[server], 9 cannot be told, 130 interrupted. A reader that has seen
enough (`| head`) changes none of them.
"""

app = typer.Typer(
    name="headroom",
    help=_ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headroom {VERSION}")
        raise typer.Exit(Exit.OK)


@app.callback()
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

_command: Callable[..., object]
for _command in (processes.up, processes.down, processes.serve, processes.planner):
    app.command(rich_help_panel=_LOCAL)(_command)
_passed_on: dict[str, Any] = {"rich_help_panel": _LOCAL, "add_help_option": False, "context_settings": ANY_WORDS}
app.command(**_passed_on)(processes.agent)
app.command(name="agent-helper", **_passed_on)(processes.agent_helper)
app.command(rich_help_panel=_LOCAL)(processes.traffic)
app.add_typer(processes.migrate, name="migrate", rich_help_panel=_LOCAL)
app.command(rich_help_panel=_LOCAL)(processes.restore)
app.command(rich_help_panel=_LOCAL, context_settings={"allow_extra_args": True})(doctor)
for _command in (declare.apply, declare.get, declare.edit, declare.patch, declare.delete):
    app.command(rich_help_panel=_DECLARE)(_command)
app.add_typer(tasks.task, name="task", rich_help_panel=_DECLARE)
app.command(rich_help_panel=_MODEL, cls=FilesCommand)(modelling.fit)
app.command(rich_help_panel=_MODEL)(modelling.predict)
app.command(rich_help_panel=_MODEL)(modelling.profile)
app.add_typer(modelling.profiles, name="profiles", rich_help_panel=_MODEL)
plug(app, "train", _MODEL)
app.command(rich_help_panel=_PLAN)(planning.plan)
app.command(rich_help_panel=_PLAN)(planning.planners)
for _command in (
    reviewing.plans, reviewing.diff, reviewing.approve, reviewing.reject, reviewing.rollback, reviewing.resume,
):  # fmt: skip
    app.command(rich_help_panel=_REVIEW)(_command)
for _command in (planning.explain, checking.verify, checking.replay):
    app.command(rich_help_panel=_PLAN)(_command)
app.command(rich_help_panel=_PLAN, cls=planning.AdviseCommand)(planning.simulate)
app.add_typer(checking.snapshot, name="snapshot", rich_help_panel=_PLAN)
plug(app, "arena", _COMPARE)
app.command(rich_help_panel=_WATCH)(watch.status)
app.command(rich_help_panel=_WATCH)(watch.top)
app.command(name="open", rich_help_panel=_WATCH)(access.open_console)
app.add_typer(watch.nodes, name="nodes", rich_help_panel=_WATCH)
for _command in (draining.drain, draining.uncordon, watch.logs, watch.budget):
    app.command(rich_help_panel=_WATCH)(_command)
app.add_typer(watch.report, name="report", rich_help_panel=_WATCH)
app.add_typer(routes, name="routes", rich_help_panel=_WATCH)
app.command(rich_help_panel=_WATCH)(access.login)
app.add_typer(access.context, name="context", rich_help_panel=_WATCH)
app.add_typer(access.token, name="token", rich_help_panel=_WATCH)
app.add_typer(access.webhook, name="webhook", rich_help_panel=_WATCH)
app.add_typer(access.ca, name="ca", rich_help_panel=_LOCAL)


@app.command(rich_help_panel=_WATCH)
def version(output: Output = Format.TABLE) -> None:
    """Print the version."""
    show({"version": VERSION}, output, f"headroom {VERSION}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command. A reader that has seen enough of one that goes on without end is no failure."""
    status: int = Exit.OK
    with outliving_readers():
        status = _ran(arguments)
    return status  # noqa: RET504 - it stands where the reader left


def _ran(arguments: Sequence[str] | None) -> int:
    """Every expected error is one line; only a bug of ours shows a traceback."""
    try:
        called = typer.main.get_command(_with(sys.argv[1:] if arguments is None else arguments))
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


def _with(words: Sequence[str]) -> typer.Typer:
    """The one command that is called, for building them all takes a tenth of a second; all where none is."""
    one, name = copy(app), "".join(words[:1])
    one.registered_commands = [
        each for each in app.registered_commands if name in (each.name, getattr(each.callback, "__name__", None))
    ]
    one.registered_groups = [each for each in app.registered_groups if each.name == name]
    return one if one.registered_commands or one.registered_groups else app


def _say_usage(error: Any) -> int:
    """One line and where help is; a group called without a command has printed its help already."""
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if message and type(error).__name__ != "NoArgsIsHelpError":
        usage = f" (see: {context.command_path} --help)" if context is not None else ""
        typer.echo(f"headroom: {message}{usage}", err=True)
    return int(error.exit_code)
