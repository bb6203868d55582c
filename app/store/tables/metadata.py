"""The metadata that all tables share, and column shapes that recur.

Constraints and indexes live in the migrations alone.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, MetaData, text
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData()
NOW = text("now()")


def moment(name: str, *, nullable: bool = False, default_now: bool = False) -> Column[Any]:
    """A timestamp with time zone."""
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=NOW if default_now else None)


def document_columns() -> tuple[Column[Any], ...]:
    """What every declarative document has beside its key."""
    return (
        Column("spec", JSONB(none_as_null=True), nullable=False),
        Column("version", BigInteger, nullable=False, server_default=text("nextval('document_versions')")),
        moment("created_at", default_now=True),
        moment("updated_at", default_now=True),
    )
