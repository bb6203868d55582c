"""Promises taken out of the product one at a time, by another text of a module: what a simulation is worth is how soon
it tells that one is gone.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """One text in place of another."""

    name: str
    module: str
    old: str
    new: str


MUTANTS = (
    Mutant("the old plan stays", "app.store.plans", "plans.c.state == PlanState.PROMOTED, _PROP", "_PROP"),
    Mutant("an answer is not kept", "app.store.idempotency", "if found is None:", "if True:"),
    Mutant(
        "all may be reported", "app.services.seen.telemetry", "return _WHOLE(item) in", "return True or _WHOLE(item) in"
    ),
    Mutant("epochs are not heard of", "agents.loop.uplink", "not in (None, epoch)", "in ()"),
    Mutant("two at once under a key", "app.store.idempotency", "func.pg_try_advisory_xact_lock(name)", "func.now()"),
    Mutant("reports are taken twice", "app.store.ingest", "if wanted else set()", "if False else set()"),
    Mutant("documents are not locked", "app.store.documents", "lock=True", "lock=False"),
    Mutant("a deposed leader writes", "app.store.targets", "if wish.fencing_token < token_newest:", "if False:"),
    Mutant("versions are not compared", "app.store.documents", "not in (None, before.version)", "in ()"),
    Mutant("names are anybody's", "app.services.declared.fleet", "if heard_s < ALIVE_S:", "if False:"),
    Mutant("reports die with their agent", "agents.loop.collect", "self._file.append(made, self._reports)", "pass"),
    Mutant("clocks are not compared", "app.workers.scheduler", "if abs(ahead_s) >= settings", "if 0 > settings"),
    Mutant(
        "leases outlast their clock",
        "app.store.targets",
        'named("acquire_lease")',
        'type(sql := named("acquire_lease"))(sql.text.replace("OR held.expires_at >", "AND held.expires_at <"))',
    ),
    Mutant("expiry is forgotten", "app.store.tokens", "is_(None), tokens.c.expires_at > func.now()", "is_(None), True"),
    Mutant("what waits is forgotten", "agents.loop.unsent", "if waiting else", "if False else"),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The module with the other text, for those who reach it by its name."""
    module = importlib.import_module(mutant.module)
    text = Path(str(module.__file__)).read_text()
    assert mutant.old in text, f"{mutant.module} does not say {mutant.old!r} any more"
    before = dict(vars(module))
    exec(compile(text.replace(mutant.old, mutant.new), str(module.__file__), "exec"), vars(module))
    # A member of another enumeration is another one to all who compare.
    kept = {name: each for name, each in before.items() if isinstance(each, type) and issubclass(each, Enum)}
    vars(module).update(kept)
    try:
        yield
    finally:
        vars(module).update(before)
