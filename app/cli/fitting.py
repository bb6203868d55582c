"""Commands that learn performance models from files and ask them, without a server: fit, predict. Numbers go to the
named file or to standard output, remarks to standard error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.files import (
    STANDARD,
    Fitted,
    arithmetic,
    check_target,
    read_measurements,
    read_model,
    read_questions,
    write_model,
    write_text,
)
from solvers.errors import InputError

if TYPE_CHECKING:
    from app.services.profiles.forms import Sheet
    from solvers.models.base import Facts


SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out instead of ending there.")]
_DEFAULT_MODEL = "headroom"


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
    from app.services.profiles.samples import group_samples_of, samples_of
    from solvers.models.suite import Suite, suites

    if model not in suites():
        raise InputError(f"there is no performance model {model!r}; known are {', '.join(suites())}")
    check_target(out)
    alone, together = read_measurements(solo or (), pairs or (), skip_bad=skip_bad)
    fresh = Suite.fresh(model, _facts(not no_library), seed)
    with arithmetic(f"{model} cannot be fitted to these measurements; are they of one kind and in the right units?"):
        suite = fresh.fit(samples_of(alone), group_samples_of(together) if together else None)
    rows, groups = (sum(len(sheet) for sheet in sheets) for sheets in (alone, together))
    write_model(out, Fitted(suite=suite, library=not no_library, seed=seed, rows=rows, pairs=groups))
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
    from app.services.profiles.samples import answers_to, replaced_columns, unknown_rows, written

    check_target(out)
    fitted = read_model(model, _facts)
    sheet = read_questions(queries, skip_bad=skip_bad)
    with arithmetic(f"{model} cannot answer these questions"):
        answers = answers_to(sheet, fitted.suite)
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
