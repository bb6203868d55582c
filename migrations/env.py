"""Alembic's entry: runs the migrations on the connection or URL it is handed, one migrator at a time."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from app.settings import load_settings
from app.store.embedded import embedded_url
from app.store.engine import normalise_url
from app.store.tables import metadata

# Two migrators at once would both find the first revision missing; the second waits here and then finds nothing to do.
MIGRATION_LOCK = 6_843_712_905
LOCK_TIMEOUT_MS = 5_000
"""Whoever comes to a table that a revision waits for waits behind it."""
RAISED_BY_US = "00000"
"""State of a revision's own notice; PostgreSQL's, such as of what is there already, have others."""


def _url() -> str:
    """The URL from the caller, else from the process settings, else the embedded server's."""
    given = context.config.attributes.get("url") or context.config.get_main_option("sqlalchemy.url")
    if given:
        return normalise_url(str(given))
    settings = load_settings(os.environ)
    return normalise_url(settings.session_url or embedded_url(settings.home))


def _run(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.execute(text(f"SET lock_timeout = {LOCK_TIMEOUT_MS}"))
    connection.commit()
    try:
        # What one revision has locked nobody has to wait for while the next one waits for them.
        context.configure(
            connection=connection,
            target_metadata=metadata,
            version_table="schema_version",
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK})
        connection.commit()


def run_offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(url=_url(), target_metadata=metadata, version_table="schema_version", literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run on a fresh connection."""
    engine = create_engine(_url(), poolclass=NullPool)
    told = context.config.attributes.get("told")
    with engine.connect() as connection:
        if told is not None:
            connection.connection.driver_connection.add_notice_handler(
                lambda notice: notice.sqlstate == RAISED_BY_US and told(notice.message_primary)
            )
        _run(connection)
    engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
