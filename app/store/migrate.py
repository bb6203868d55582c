"""Schema migrations from code: up, down, and which revision a database has.

The scripts lie beside this package in an installed wheel and at the top level of a checkout. Only what migrates loads
Alembic; every process asks which revision there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from app.store.engine import normalise_url, translated
from app.store.sql import named
from solvers.errors import InputError, TransientError

if TYPE_CHECKING:
    from alembic.config import Config

ATTEMPTS_MAX = 12
PAUSE_S = 1.0
"""For those who wait behind it."""
DEADLOCK, LOCK_TIMEOUT = "40P01", "55P03"


def scripts_path() -> Path:
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "migrations_bundle", package.parent / "migrations"):
        if (candidate / "env.py").is_file():
            return candidate
    raise FileNotFoundError(f"no migration scripts beside {package}")


def definition(name: str) -> str:
    """What `sql/<name>.sql` beside the migrations says: functions or views that a revision makes or replaces."""
    return (scripts_path() / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def _config(url: str) -> Config:
    from alembic.config import Config

    config = Config()
    # Alembic's own interpolation would trip over a percent sign.
    config.set_main_option("script_location", str(scripts_path()).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head", told: Callable[[str], object] | None = None) -> None:
    """Migrate up to `revision`; a schema that is newer than `head` will do, and stays. `told` hears what revisions
    leave undone, as where they have no right to. Raises InputError when no way leads there, TransientError when nobody
    answers.
    """
    from alembic import command

    if revision == "head" and (current(url) or "") > head():
        return
    config = _config(url)
    config.attributes["told"] = told
    _done(revision, lambda: command.upgrade(config, revision))


def downgrade(url: str, revision: str) -> None:
    """Migrate down to `revision`. Raises as `upgrade` does."""
    from alembic import command

    _done(revision, lambda: command.downgrade(_config(url), revision))


def _done(revision: str, step: Callable[[], object]) -> None:
    """Again where it and others waited for each other, or it for them for too long: revisions that were done stay."""
    for left in reversed(range(ATTEMPTS_MAX)):
        try:
            with translated(), _led(revision):
                step()
            return
        except TransientError as error:
            if error.context.get("sqlstate") not in (DEADLOCK, LOCK_TIMEOUT):
                raise
            if not left:
                told = "others hold what is to be changed (pg_locks tells who): end them, and migrate again"
                raise TransientError(f"{error.message}, {ATTEMPTS_MAX} times; {told}") from error
        time.sleep(PAUSE_S)


@contextmanager
def _led(revision: str) -> Iterator[None]:
    from alembic.util.exc import CommandError

    known = f"revisions are 0001 to {head()}, and `base` and `head`"
    if not revision.strip():
        raise InputError(f"a revision has a name: {known}")
    try:
        yield
    except CommandError as error:
        raise InputError(f"no way to revision {revision!r}: {str(error).rstrip('.')}; {known}") from None


def current(url: str) -> str | None:
    """Revision of a database; None when it was never migrated."""
    engine = create_engine(normalise_url(url), poolclass=NullPool)
    try:
        with translated(), Session(engine) as session:
            return schema_revision(session)
    finally:
        engine.dispose()


def head() -> str:
    """The newest revision of this software: scripts are named after theirs, which ascend."""
    return max(script.name for script in (scripts_path() / "versions").glob("*_*.py")).partition("_")[0]


def require_schema(session: Session) -> None:
    """Raise TransientError unless the schema is what this software needs, or newer: migrations only ever add."""
    found, needed = schema_revision(session), head()
    if found is None or found < needed:
        raise TransientError(
            f"the database schema is at {found or 'base'}, this software needs {needed}; run: headroom migrate up"
        )


def schema_revision(session: Session) -> str | None:
    """Revision of the connected database; None when it was never migrated."""
    if session.execute(named("migrated")).scalar_one() is None:
        return None
    found: str | None = session.execute(named("schema_revision")).scalar_one_or_none()
    return found
