"""Table definitions on one metadata; a test holds them against the migrated database."""

from app.store.tables import documents, edge, learning, planning, profiles, telemetry
from app.store.tables.metadata import metadata

__all__ = ["documents", "edge", "learning", "metadata", "planning", "profiles", "telemetry"]
