"""Schema migrations from code: up, down, and which revision a database has.

The scripts lie beside this package in an installed wheel and at the top level of a checkout. Only what migrates loads
Alembic; every process asks which revision there is.
"""

from __future__ import annotations

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
    with translated(), _led(revision):
        config = _config(url)
        config.attributes["told"] = told
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate down to `revision`. Raises as `upgrade` does."""
    from alembic import command

    with translated(), _led(revision):
        command.downgrade(_config(url), revision)


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
