"""Who competes: contenders as people write them, and planners as benches ask for them, one's own files included.

Owns the names of contenders that are more than one planner (ours with its fallback, a controller between plans), the
settings on their labels, and the loading of a planner from a file. It refuses to tune: what a setting means and may be
is the planner's own business.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.own_planners import is_own, planner_from, source_of
from lab.benches.packing.bench import RULES
from lab.benches.tasks.schedulers import SCHEDULERS
from lab.outcome import RunContender, TuningSetting
from lab.world.world import policy_of
from solvers.control import controllers
from solvers.domain.policy import DEFAULT_POLICY, Policy
from solvers.domain.value import value
from solvers.errors import FieldError, InputError
from solvers.planners import registry
from solvers.planners.base import Planner
from solvers.planners.tuning import Scalar

_SPARE = (TuningSetting(name="demand_headroom", value="4"),)

NAMED: Mapping[str, RunContender] = {
    item.label: item
    for item in (
        RunContender(label="headroom", planners=("joint", "greedy")),
        RunContender(label="headroom_spare", planners=("joint", "greedy"), policy=_SPARE),
        RunContender(label="greedy_spare", planners=("greedy",), policy=_SPARE),
        RunContender(label="morak", planners=("morak",), governor="morak"),
        # These know no partitions: their controllers move whole GPUs.
        *(
            RunContender(label=name, planners=("whole_gpu",), governor=name)
            for name in controllers.names()
            if name != "morak"
        ),
    )
}
"""Contenders whose chain of planners, controller or policy does not follow from their name. Those with spare keep room
for four times the demand wherever that is to be had, for loads that jump.
"""


@value
class OwnPlanner:
    """A planner in a file of the user's. The source itself travels, so that a cluster needs no copy of the file."""

    name: str
    """As people write it: `my_policy.py:MyPlanner`."""
    source: str
    place: str
    """Where the file lies, for tracebacks only."""

    @property
    def plain_name(self) -> str:
        """As a policy can name it: `my_policy.myplanner`. Letters that a policy's names do not have become dashes."""
        file, _, class_name = self.name.rpartition(":")
        plain = re.sub(r"[^a-z0-9._-]", "-", f"{file.removesuffix('.py')}.{class_name}".lower())
        return f"own.{plain.strip('-._')[:50].strip('-._')}"

    @property
    def own_name(self) -> str:
        """As it calls itself: `my-policy`."""
        return self.planner().spec.name

    def planner(self) -> Planner:
        """One such planner. Raises InputError."""
        return planner_from(self.source, self.place, self.name.rpartition(":")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderEntry:
    """A contender with the files that its planners come from."""

    contender: RunContender
    own: tuple[OwnPlanner, ...] = ()


def entry_of(text: str) -> ContenderEntry:
    """A contender as people write it: a name, `planner+fallback@controller`, or `file.py:Class`. Raises InputError."""
    chain, _, controller = text.strip().partition("@")
    parts = tuple(part.strip() for part in chain.split("+"))
    named = NAMED.get(chain) or RunContender(label=text.strip() or "nobody", planners=parts)
    planners = named.planners
    own = {part: own_planner(part) for part in planners if is_own(part)}
    for name in planners:
        if name not in own and name not in (*registry.names(), *RULES, *SCHEDULERS):
            raise InputError(
                f"there is no planner {name!r}; known are {', '.join(contender_names())}, or a file.py:Class"
            )
    if controller and controller not in controllers.names():
        raise InputError(f"there is no controller {controller!r}; known are {', '.join(controllers.names())}")
    said = "+".join(own[part].name if part in own else part for part in planners)
    label = text.strip() if not own else said + (f"@{controller}" if controller else "")
    plain = tuple(own[part].plain_name if part in own else part for part in planners)
    contender = replace(named, label=label, planners=plain, governor=controller or named.governor)
    return ContenderEntry(contender=contender, own=tuple(own.values()))


def contender_names() -> tuple[str, ...]:
    return tuple(sorted({*registry.names(), *NAMED}))


def own_planner(text: str) -> OwnPlanner:
    """Read `file.py:Class`. Raises NotFoundError and InputError as `app.own_planners` does."""
    file, _, class_name = text.rpartition(":")
    made = OwnPlanner(name=f"{Path(file).name}:{class_name}", source=source_of(file), place=str(Path(file).resolve()))
    made.planner()
    return made


def tuned_entries(
    entries: Sequence[ContenderEntry], settings: Sequence[str], policy: Sequence[str]
) -> tuple[ContenderEntry, ...]:
    """The same contenders with `planner.parameter=value` settings and `field=value` of the policy, said on their
    labels. Raises InputError for a setting that nobody has.
    """
    wanted: dict[str, list[TuningSetting]] = {}
    for text in settings:
        form = "planner.parameter=value"
        said = _field(text, form)
        name, _, parameter = said.name.rpartition(".")
        if not (name and parameter):
            raise InputError(f"{text!r} is no setting; write {form}")
        wanted.setdefault(name, []).append(replace(said, name=parameter))
    fields = tuple(sorted((_field(text) for text in policy), key=lambda item: item.name))
    _said_once("--policy", fields)
    for name, items in wanted.items():
        _said_once(f"--set {name}", items)
    try:
        policy_of(Policy(name=DEFAULT_POLICY), RunContender(label="anybody", planners=("greedy",), policy=fields))
    except FieldError as error:
        raise InputError(f"--policy: {error.message}") from None
    made = tuple(_tuned(entry, wanted, fields) for entry in entries)
    known = {name for entry in entries for name in (entry.contender.label, entry.contender.planners[0])}
    known |= {name for entry in entries for item in entry.own for name in (item.name, item.own_name)}
    for name in wanted:
        if name not in known:
            raise InputError(f"nobody here is called {name}; contenders are {', '.join(sorted(known))}")
    labels = [entry.contender.label for entry in made]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise InputError(f"two contenders are called {twice[0]}")
    return made


def _said_once(option: str, items: Sequence[TuningSetting]) -> None:
    """Raises InputError where two values are given for one name: nobody knows which is meant."""
    twice = next((name for name, many in Counter(item.name for item in items).items() if many > 1), None)
    if twice is not None:
        raise InputError(f"{option}: {twice} is said twice")


def _tuned(
    entry: ContenderEntry, wanted: Mapping[str, list[TuningSetting]], policy: tuple[TuningSetting, ...]
) -> ContenderEntry:
    mine = [item for item in entry.own if item.plain_name == entry.contender.planners[0]]
    own = (name for item in mine for name in (item.name, item.own_name))
    names = dict.fromkeys((entry.contender.planners[0], *own, entry.contender.label))
    by_name = {item.name: item for name in names for item in wanted.get(name, [])}
    settings = tuple(by_name[name] for name in sorted(by_name))
    if settings:
        try:
            PlannersOf(entry.own)(entry.contender.planners[0], settings)
        except FieldError as error:
            raise InputError(error.message) from None
    label = entry.contender.label
    label += f"({', '.join(f'{item.name}={item.value}' for item in settings)})" if settings else ""
    label += f"[{', '.join(f'{item.name}={item.value}' for item in policy)}]" if policy else ""
    fields = {item.name: item for item in (*entry.contender.policy, *policy)}
    overridden = tuple(fields[name] for name in sorted(fields))
    return replace(entry, contender=replace(entry.contender, label=label, settings=settings, policy=overridden))


def _field(text: str, form: str = "field=value") -> TuningSetting:
    name, equals, said = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"{text!r} is no setting; write {form}")
    return TuningSetting(name=name.strip(), value=_json(said))


def _json(said: str) -> str:
    """What was written, as JSON: numbers, truth values and lists as themselves, anything else as a string."""
    try:
        found = json.loads(said)
    except ValueError:
        found = said
    return json.dumps(found if isinstance(found, bool | int | float | str | list) else said)


class PlannersOf:
    """Makes planners by name, those of one's own files first; what benches are handed."""

    def __init__(self, own: tuple[OwnPlanner, ...] = ()) -> None:
        self._own = {item.plain_name: item for item in own}

    def __call__(self, name: str, settings: tuple[TuningSetting, ...]) -> Planner:
        """A planner with this tuning. Raises EngineError for an unknown name, FieldError for a bad setting."""
        said: dict[str, Scalar] = {item.name: json.loads(item.value) for item in settings}
        if name not in self._own:
            return registry.create(name, said)
        return registry.with_settings(self._own[name].planner(), said)
