"""Named leases with a rising fencing token: who may act, by the database's clock.

Owns the token's promise: it rises at every change of holder, also when a holder comes back after its lease ran out, and
never falls, since the row outlives every release.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.tables.planning import leases

PLANNER = "planner"
"""Name of the lease whose holder may promote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as it stands.

    `holder` is None after a release; `held` says whether it has neither ended nor been released.
    """

    name: str
    holder: str | None
    token: int
    acquired_at: datetime
    expires_at: datetime
    held: bool


def acquire(session: Session, name: str, holder: str, ttl_s: float) -> Lease | None:
    """Take or renew the lease; None while somebody else holds it."""
    end = func.clock_timestamp() + _seconds(ttl_s)
    first = insert(leases).values(name=name, holder=holder, token=1, expires_at=end)
    if session.execute(first.on_conflict_do_nothing().returning(leases.c.name)).one_or_none() is not None:
        return read(session, name)
    # The row lock orders rivals; the clock is read after it is granted.
    now = func.clock_timestamp()
    session.execute(select(leases.c.name).where(leases.c.name == name).with_for_update())
    mine = update(leases).where(leases.c.name == name)
    renewed = mine.where(leases.c.holder == holder, leases.c.expires_at > now).values(expires_at=end)
    if session.execute(renewed.returning(leases.c.name)).one_or_none() is None:
        taken = mine.where(or_(leases.c.holder.is_(None), leases.c.expires_at <= now)).values(
            holder=holder, token=leases.c.token + 1, acquired_at=now, expires_at=end
        )
        if session.execute(taken.returning(leases.c.name)).one_or_none() is None:
            return None
    return read(session, name)


def release(session: Session, name: str, holder: str) -> bool:
    """Give the lease back, if `holder` has it; the token stays."""
    statement = update(leases).where(leases.c.name == name, leases.c.holder == holder)
    released = session.execute(statement.values(holder=None, expires_at=func.now()).returning(leases.c.name))
    return released.one_or_none() is not None


def read(session: Session, name: str) -> Lease | None:
    """The lease as it stands; None when nobody ever held it."""
    held = (leases.c.holder.is_not(None) & (leases.c.expires_at > func.clock_timestamp())).label("held")
    row = session.execute(select(leases, held).where(leases.c.name == name)).one_or_none()
    if row is None:
        return None
    return Lease(
        name=row.name,
        holder=row.holder,
        token=row.token,
        acquired_at=row.acquired_at,
        expires_at=row.expires_at,
        held=row.held,
    )


def _seconds(seconds: float) -> object:
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)
