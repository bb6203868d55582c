"""What is asked of the database, which is only read. Each look has a connection of its own, so that one that hangs is
told alone; where nobody answers at all, the rest is left out.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from app.cli.doctor.checks import Check, Symptom, odd, told_skew, unseen, well, wrong
from app.settings import Settings
from solvers.errors import InputError, StateError, TransientError

if TYPE_CHECKING:
    from sqlalchemy.engine import Row

    from app.store.engine import Database

VERSION_LEAST = 150_000
CONNECTIONS_LEAST = 10
RAW_DAYS_LATE = 2
HEARD_S = 3.0
BY_TRANSACTION = "name PostgreSQL's own address in HEADROOM_DATABASE_DIRECT_URL"
START_EMBEDDED = "start `headroom up`, or name a database in HEADROOM_DATABASE_URL"
ONE_DATABASE = "name the same database in both"
ADVICE = {
    "notifications": "see whether HEADROOM_DATABASE_DIRECT_URL leads to PostgreSQL itself, and its log",
    "read replica": "start it, or correct HEADROOM_DATABASE_READ_URL: the primary answers in its place",
}
"""For looks at another server than the rest."""


def database_url(settings: Settings) -> str | None:
    """Where the database is; None where none is named and none was made here. Raises StateError where the embedded one
    does not run: it is not started.
    """
    if settings.database_url:
        return settings.database_url
    if not (settings.home / "pgdata").is_dir():
        return None
    from app.store.embedded import standing_url

    found = standing_url(settings.home)
    if found is None:
        raise StateError(f"the embedded database in {settings.home / 'pgdata'} does not run")
    return found


def reaching(settings: Settings, opened: list[Database]) -> Check:
    """Whether there is one; `opened` takes it."""

    def look() -> Symptom:
        url = database_url(settings)
        if url is None:
            return unseen("none is named here", "where the control plane runs, set HEADROOM_DATABASE_URL")
        from app.store.engine import Database, libpq_url

        database = Database(url, direct_url=settings.database_direct_url, application_name="headroom doctor")
        try:
            facts = _facts(database)
        except TransientError as error:
            if "startup parameter" in error.message:
                # A pooler's own words; whoever does not answer at all is not asked a second time.
                database.require_sessions()
            raise
        opened.append(database)
        told = f"PostgreSQL {facts.version.partition(' ')[0]}"
        if facts.version_number < VERSION_LEAST:
            return wrong(told, "use PostgreSQL 15 or newer")
        if facts.standby:
            return wrong(f"{told} is a standby, which takes no writes", "name the primary in HEADROOM_DATABASE_URL")
        if not settings.database_url:
            # The embedded one is a socket of this user's own and has no password to show.
            told += f": psql -d '{libpq_url(url)}'"
        return well(told)

    named = "start it, or correct HEADROOM_DATABASE_URL; see its own log, or its pooler's"
    return Check("database", look, named if settings.database_url else START_EMBEDDED)


def database_checks(settings: Settings, database: Database) -> list[Check]:
    """The schema first."""
    looks = {
        "schema": lambda: _schema(database),
        "rights": lambda: _rights(database),
        "durability": lambda: _durability(_facts(database)),
        "connections": lambda: _connections(_facts(database), settings),
        "telemetry kept": lambda: _kept(database, settings),
        "database clock": lambda: told_skew(_facts(database).now_s - time.time(), "the database's", settings),
        "notifications": lambda: _doorbell(database),
    }
    if settings.database_read_url:
        looks["read replica"] = lambda: _replica(database, settings)
    return _checks(looks)


def content_checks(settings: Settings, database: Database) -> list[Check]:
    """What only a schema that is new enough can answer."""
    return _checks({"leader": lambda: _leader(database), "history": lambda: _history(database, settings)})


def _checks(looks: Mapping[str, Callable[[], Symptom]]) -> list[Check]:
    todo = "see what locks it (pg_locks) and its log"
    return [Check(name, look, ADVICE.get(name, todo)) for name, look in looks.items()]


def _facts(database: Database) -> Row[Any]:
    from app.store.sql import named

    with database.reading() as session:
        return session.execute(named("server_facts")).one()


def _schema(database: Database) -> Symptom:
    from app.store import migrate

    found, newest = database.read(migrate.schema_revision), migrate.head()
    if found is None or found < newest:
        return wrong(
            f"the schema is at {found or 'base'}, this software needs {newest}", "headroom migrate up, after a backup"
        )
    if found > newest:
        return odd(f"the schema is at {found}, newer than this software's {newest}", "upgrade headroom on this machine")
    return well(f"the schema is at {found}, the newest")


def _rights(database: Database) -> Symptom:
    from app.store.sql import named

    with database.reading() as session:
        missing = list(session.execute(named("rights_missing")).scalars())
    if missing:
        return wrong(f"this user may not write to {', '.join(missing[:5])}", "let it own the database's tables")
    return well("this user may read and write every table")


def _durability(facts: Row[Any]) -> Symptom:
    off = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if getattr(facts, name) == "off"]
    if off:
        return wrong(f"{', '.join(off)} off: what was acknowledged may be lost", "turn it on in postgresql.conf")
    return well(f"fsync is on, synchronous_commit is {facts.synchronous_commit}")


def _connections(facts: Row[Any], settings: Settings) -> Symptom:
    left = facts.connections_max - facts.connections
    told = f"{left} of {facts.connections_max} are left; an API process may take {settings.pool_size}"
    return well(told) if left >= CONNECTIONS_LEAST else wrong(told, "raise max_connections, or set HEADROOM_POOL_SIZE")


def _kept(database: Database, settings: Settings) -> Symptom:
    facts = _facts(database)
    kept = f"{facts.raw_days} days" if facts.raw_days else "less than a day"
    told = f"{facts.bytes / 2**30:.2f} GiB, raw telemetry of {kept}"
    most = settings.retention_raw_days + RAW_DAYS_LATE
    if (facts.raw_days or 0) <= most:
        return well(told)
    from app.store import ledger

    until = database.read(ledger.accounted_until)
    told += f", {settings.retention_raw_days} are wanted"
    if until is not None and facts.now_s - until.timestamp() > most * 86_400.0:
        told += f", and kept until accounted, which it is up to {until:%Y-%m-%d %H:%M} UTC"
        return odd(told, "let the planner catch up; what it did not account it does not trim")
    return wrong(told, "see whether a planner runs: it trims")


def _doorbell(database: Database) -> Symptom:
    """Whether who listens is told; nobody else knows the channel."""
    from psycopg import sql

    try:
        database.require_sessions()
    except InputError as error:
        return wrong(error.message, BY_TRANSACTION)
    channel = f"headroom_doctor_{secrets.token_hex(8)}"
    with database.listening(channel) as heard:
        with database.raw() as speaking:
            speaking.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(channel)))
        if list(heard.notifies(timeout=HEARD_S, stop_after=1)):
            return well("who listens is told")
    if database.direct_url != database.url:
        return wrong("LISTEN at HEADROOM_DATABASE_DIRECT_URL does not hear HEADROOM_DATABASE_URL", ONE_DATABASE)
    return wrong(
        "LISTEN hears nothing: a pool that hands out connections by transaction stands between", BY_TRANSACTION
    )


def _replica(database: Database, settings: Settings) -> Symptom:
    from app.store.engine import Database
    from app.store.replica import Reads

    reads = Reads(database, Database(settings.database_read_url, pool_size=1), settings.read_lag_s_max)
    try:
        reads.measure()
    finally:
        reads.dispose()
    told = f"it is {reads.lag_s:.1f} s behind"
    if reads.lag_s > settings.read_lag_s_max:
        return odd(f"{told}, and passed over", "see its log, or raise HEADROOM_READ_LAG_S_MAX")
    return well(told)


def _leader(database: Database) -> Symptom:
    from app.store import targets

    lease = database.read(targets.read_lease, targets.PLANNER)
    if lease is None or not lease.held:
        return wrong("no planner leads", "start `headroom planner`")
    return well(f"{lease.holder} plans, under token {lease.token}")


def _history(database: Database, settings: Settings) -> Symptom:
    from app.store import targets
    from app.store.sql import named

    with database.reading() as session:
        standing = targets.standing(session, settings.cluster)
        refusing = list(session.execute(named("nodes_refusing")).scalars())
    if standing.cluster_id is None:
        return odd(f"no cluster {settings.cluster} has started here yet", "start `headroom serve` once")
    if refusing:
        return wrong("; ".join(refusing[:3]), "after a restore: headroom restore --new-epoch; else see the receipts")
    return well(f"cluster {standing.cluster_id}, epoch {standing.epoch}, generation {standing.generation}")
