"""What is installed by name: planners, models and commands of Headroom, of its laboratory, and of a user's own
packages.

A distribution offers them as entry points; a policy of one's own is therefore found exactly as the five published ones
are. Nothing is imported before it is asked for.

    [project.entry-points."headroom.planners"]
    mine = "my_package.planner:Mine"
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from solvers.errors import InputError

PLANNERS = "headroom.planners"
"""Factories of planners."""
SOLO_MODELS = "headroom.solo_models"
"""Modules or objects with `make(facts, seed)` and `load(plain, facts)` of a model of replicas alone."""
INTERFERENCE_MODELS = "headroom.interference_models"
"""The same for what neighbours do."""
SUITES = "headroom.suites"
"""Mappings from the name of a suite to the names of its two models."""
ACTORS = "headroom.actors"
"""Texts of trained actors, as `headroom train` writes them."""
COMMANDS = "headroom.commands"
"""Commands of the program `headroom`."""
FILLED = frozenset({PLANNERS, SOLO_MODELS, INTERFERENCE_MODELS, SUITES})
"""Groups to which Headroom itself offers something."""


@cache
def found(group: str) -> Mapping[str, EntryPoint]:
    """Everything offered to a group, by name. Raises InputError where two distributions offer one name differently, and
    where not even Headroom's own are offered: its files were copied, and not installed.
    """
    offered: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda item: item.name):
        other = offered.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise InputError(f"{entry.name} is offered to {group} twice: as {other.value} and as {entry.value}")
    if not offered and group in FILLED:
        raise InputError(f"nothing is offered to {group}: Headroom was copied here, not installed; see README.md")
    return MappingProxyType(offered)
