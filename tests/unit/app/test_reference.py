"""Lists on reference pages hold what there is: whatever the code has beyond them, or they beyond the code, is named."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from agents.config import _parser
from app.cli.doctor.database import content_checks, database_checks
from app.cli.doctor.deployment import deployment_checks
from app.cli.doctor.machine import machine_checks
from app.errors import FRAMEWORK_STATUSES, STATUSES
from app.kinds import KINDS
from app.services.declared.oidc import OidcRefusedError
from app.settings import Settings
from app.store import events
from app.store.engine import Database
from app.store.profile_runs import RunState
from app.store.tables import metadata
from app.store.webhooks import ENDS
from headroom_client import Client
from solvers.domain.webhook import ALARMS
from solvers.errors import HeadroomError

ROOT = Path(__file__).parents[3]
HIDDEN_OPTIONS = {"--time-factor", "--help"}
MARKS = {"HEADROOM_SUPERVISED", "HEADROOM_WORKER", "HEADROOM_FULL_RPS"}
"""Of processes to know their own by, and a constant of a planner: nobody sets them."""
EVENT = r"[a-z_]+\.[a-z_]+"
NOUNS = {kind.noun for kind in KINDS}
RUN_STATES = {state.value for state in RunState}
TELLERS = ("app/api/metrics.py", "app/api/exposition.py", "app/workers/told.py", "agents/loop/told.py")
GROUPS = ("headroom_service_", "headroom_device_", "headroom_node_")
"""Whose members a page names below one heading, without what all begin with."""


def page(name: str, mark: str = "") -> str:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return text.partition(f"<!-- {mark}:")[2].partition(f"<!-- end of {mark} -->")[0] if mark else text


def trees(*rooms: str) -> Iterator[ast.Module]:
    for room in rooms:
        place = ROOT / room
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            yield ast.parse(file.read_text(encoding="utf-8"))


def words(*rooms: str) -> set[str]:
    """Every text that stands in this code by itself."""
    nodes = (node for tree in trees(*rooms) for node in ast.walk(tree))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_kinds_of_documents() -> None:
    table = page("reference/cli.md").partition("\n## Files\n")[2].partition("\n## ")[0]
    rows = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z-]+)`", rows)) == {*(kind.name for kind in KINDS), "profiles"}


def test_codes_of_problems() -> None:
    told = {
        (int(status), code)
        for line in page("reference/rest.md", "problems").splitlines()
        if re.match(r"\| \d", line)
        for status in re.findall(r"\d+", line.split("|")[1])
        for code in re.findall(r"`([a-z-]+)`", line.split("|")[2])
    }
    certificates = {word for word in words("app/services/declared/identity.py") if word.startswith("certificate-")}
    codes = {code for _, code in told}
    own = {kind.code: status.status for kind, status in STATUSES.items() if kind is not HeadroomError}
    own["internal"] = own.pop("invariant-broken")  # what is told of a fault of the server's own
    own |= {OidcRefusedError.code: 401, **dict.fromkeys(certificates, 401)}
    framework = {code for code, _ in FRAMEWORK_STATUSES.values()}
    assert codes == {*own, *framework}
    assert {code: status for code, status in own.items() if (status, code) not in told} == {}


def noted(tree: ast.Module) -> Iterator[ast.expr]:
    """What names an audit event where one is made."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        maker = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if maker in ("note", "_note", "note_token") and len(call.args) > 1:
            yield call.args[1]
        elif maker == "_event":
            yield call.args[0]
        elif maker == "Event":
            yield from (word.value for word in call.keywords if word.arg == "name")


class EventsMade:
    """What the code calls audit events: whole names, and those of which a part is filled in."""

    def __init__(self) -> None:
        standing = (ROOT / "app/store/sql/webhooks.sql").read_text(encoding="utf-8")
        self.names = {*ENDS.values(), *re.findall(rf"^SELECT '({EVENT})'", standing, re.MULTILINE)}
        self.patterns: list[tuple[str, set[str]]] = []
        for file in sorted((*(ROOT / "app/services").rglob("*.py"), *(ROOT / "app/store").rglob("*.py"))):
            (tree,) = trees(str(file.relative_to(ROOT)))
            known = dict(_constants(tree))
            for made in noted(tree):
                if isinstance(made, ast.Constant) and re.fullmatch(EVENT, str(made.value)):
                    self.names.add(str(made.value))
                elif isinstance(made, ast.JoinedStr):
                    self.patterns.append((_pattern(made), words(str(file.relative_to(ROOT))) | NOUNS | RUN_STATES))
                elif isinstance(made, ast.Name) and made.id in known:
                    self.names.add(known[made.id])

    def makes(self, name: str) -> bool:
        """Whether it stands somewhere, or can be put together from what stands in a module."""
        found = ((re.fullmatch(pattern, name), parts) for pattern, parts in self.patterns)
        return name in self.names or any(match and parts.issuperset(match.groups()) for match, parts in found)


def _pattern(made: ast.JoinedStr) -> str:
    parts = [str(part.value) if isinstance(part, ast.Constant) else None for part in made.values]
    return "".join("([a-z_]+)" if part is None else re.escape(part) for part in parts)


def test_audit_events() -> None:
    code = EventsMade()
    told = set(re.findall(rf"`({EVENT})`", page("reference/rest.md", "events")))
    documents = set(re.findall(r"`<kind>\.([a-z_]+)`", page("reference/rest.md", "events")))
    assert documents == {"created", "updated", "deleted"}
    assert code.names | {name for name in ALARMS if not name.endswith(".*")} <= told
    assert sorted(name for name in told if not code.makes(name)) == []
    assert [each for each, _ in code.patterns if not any(re.fullmatch(each, name) for name in told)] == []
    # What webhooks may name.
    assert events.names() == told | {f"{kind.noun}.{verb}" for kind in KINDS for verb in documents}


def test_an_event_that_nothing_makes_is_seen() -> None:
    code, unmade = EventsMade(), ("node.vanished", "service.vanished", "vanished.refused", "profile_run.vanished")
    assert [name for name in unmade if code.makes(name)] == []


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Texts that have a name in a module: `NAME = "…"`, and `NAME, OTHER = "…", …`."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            (target,), value = node.targets, node.value
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            made = value.elts if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple) else [value]
            for name, text in zip(names, made, strict=True):
                if isinstance(name, ast.Name) and isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield name.id, text.value


def test_metrics() -> None:
    text = page("reference/monitoring.md")
    whole = {word for word in words(*TELLERS) if re.fullmatch(r"headroom_[a-z0-9_]*[a-z0-9]", word)}
    assert len(whole) > 50
    missing = [
        name
        for name in whole
        if not re.search(rf"`{name}(_total|_seconds_total)?[`{{]", text)
        and not any(name.startswith(group) and f"`{name.removeprefix(group)}" in text for group in GROUPS)
    ]
    assert missing == []


def test_routes_of_the_api() -> None:
    """Each path begins as the table says, with or without what it puts into brackets."""
    table = [line.split("|")[1] for line in page("reference/rest.md").splitlines() if line.startswith("| `/")]
    told: set[str] = set()
    for row in table:
        starts = re.findall(r"`(/[^`\[\s]*)", row)
        ends = re.findall(r"[`\s]?\[([^\]`]*)\]`", row) + re.findall(r"`…(/[^`]*)`", row)
        told |= {*starts, *(start + end for start in starts for end in ends)}
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    shapes = {re.sub(r"{\w+}", "{}", path) for path in told}
    assert [path for path in paths if re.sub(r"{\w+}", "{}", path) not in shapes] == []


def test_tables_of_the_database() -> None:
    text = page("reference/database.md")
    assert [name for name in metadata.tables if not re.search(rf"\b{name}\b", text)] == []


def test_looks_of_the_doctor() -> None:
    settings = Settings(database_read_url="postgresql://replica/headroom")

    def nobody() -> Client:
        raise AssertionError

    own = [*machine_checks(settings, serves=True), *deployment_checks(settings, nobody)]
    database = Database("postgresql://nowhere/headroom")
    own += [*database_checks(settings, database), *content_checks(settings, database)]
    table = [line.split("|")[1] for line in page("reference/operations.md").splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z ]+)`", "".join(table))) == {*(check.name for check in own), "database"}


def test_variables() -> None:
    read = {word for word in words("app", "agents") if re.fullmatch(r"HEADROOM_[A-Z_]*[A-Z]", word)}
    text = "".join(page(name) for name in ("guide.md", "reference/cli.md"))
    assert sorted(name for name in read - MARKS if f"`{name}`" not in text) == []


def test_options_of_the_agent() -> None:
    options = {option for action in _parser()._actions for option in action.option_strings}
    text = page("reference/agent.md")
    assert [name for name in options if name.startswith("--") and name not in HIDDEN_OPTIONS and name not in text] == []
