"""Looking again and again, for whoever waits or watches. A server that restarts ends nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeVar

import typer

from app.cli.output import sentence_of
from app.client.documents import DocumentOutcome
from app.kinds import Kind
from headroom_client import ApiError, Document, UnreachableError, key_of

T = TypeVar("T")


def is_outage(error: ApiError | UnreachableError) -> bool:
    """Whether whoever asks again may be answered: the server restarts, or its database is away."""
    return isinstance(error, UnreachableError) or error.status >= 500


def look_again(look: Callable[[], T], pause_s: float, end_s: float = math.inf) -> T:
    """What is seen after a pause. An outage is told once and outlived, until the clock shows `end_s`."""
    is_told = False
    while True:
        time.sleep(pause_s)
        try:
            return look()
        except (ApiError, UnreachableError) as error:
            if not is_outage(error) or time.monotonic() >= end_s:
                raise
            if not is_told:
                typer.echo(f"headroom: {sentence_of(error)}; asking again", err=True)
            is_told = True


def changes(
    kind: Kind, look: Callable[[], list[Document]], items: Sequence[Document], interval_s: float, looks: int
) -> Iterator[list[Document]]:
    """What is new or other than at the look before; what is gone is told on standard error."""
    known = {key_of(kind.name, item): item for item in items}
    for _ in range(looks) if looks else count():
        now = {key_of(kind.name, item): item for item in look_again(look, interval_s)}
        for gone in known.keys() - now.keys():
            typer.echo(f"{DocumentOutcome.DELETED} {kind.name}/{'/'.join(gone)}", err=True)
        changed = [item for name, item in now.items() if known.get(name) != item]
        if changed:
            yield changed
        known = now
