"""What is asked of the control plane through its own door: the API, its clock, tokens, nodes, beliefs and plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from app.cli.doctor.checks import Check, Symptom, odd, told_skew, unseen, well, wrong
from app.cli.options import OlderServerError
from app.cli.output import CommandError, sentence_of
from app.cli.tables import answered_line
from app.settings import Settings
from headroom_client import ApiError, Client, UnreachableError

EXPIRY_DAYS = 14
STALE_S_LEAST = 600.0
CLOCK_ANSWER_S = 5.0
NAMED_MAX = 5
ANOTHER = "name another one with --server, which begins with https: where it speaks TLS"
REFUSED = {
    401: "name a good token with --token, or headroom login",
    403: "ask with a token of the whole cluster, at least a viewer's",
}
BELIEVE = "name who signed for it in SSL_CERT_FILE (there: headroom ca show), and the server as its certificate does"
UNBELIEVED = "CERTIFICATE_VERIFY_FAILED"


def deployment_checks(settings: Settings, connected: Callable[[], Client]) -> list[Check]:
    """`connected` makes a client, or raises CommandError where no server is named."""
    start = f"start `headroom {'serve' if settings.database_url else 'up'}`, or {ANOTHER}"

    def asked(look: Callable[[Client], Symptom]) -> Callable[[], Symptom]:
        def ask() -> Symptom:
            try:
                client = connected()
            except CommandError as error:
                return unseen(error.message, "name one with --server and --token")
            with client:
                try:
                    return look(client)
                except ApiError as error:
                    log = "see the API's log" if error.status >= 500 else start
                    return wrong(sentence_of(error) or error.message, REFUSED.get(error.status, log))
                except OlderServerError as error:
                    return wrong(error.message, "upgrade the server")

        return ask

    looks: dict[str, Callable[[Client], Symptom]] = {
        "api": _api,
        "api clock": lambda client: _clock(client, settings),
        "tokens": _tokens,
        "nodes": _nodes,
        "plans": lambda client: _plans(client, settings),
        "beliefs": _beliefs,
    }
    return [Check(name, asked(look), start) for name, look in looks.items()]


def _api(client: Client) -> Symptom:
    try:
        told = client.call("GET", "/v1/version").body
    except UnreachableError as error:
        if UNBELIEVED not in str(error):
            raise
        return wrong(str(error), BELIEVE)
    client.call("GET", "/v1/ready", attempts_max=1)
    return well(f"{client.server} serves cluster {told['cluster']}, headroom {told['version']}")


def _clock(client: Client, settings: Settings) -> Symptom:
    began_s = time.time()
    date = client.call("GET", "/v1/health", timeout_s=CLOCK_ANSWER_S, attempts_max=1).date
    middle_s = (began_s + time.time()) / 2
    if date is None:
        return unseen("the API does not say what its clock says", "see what stands between: it takes the Date away")
    # A Date is a whole second that has begun.
    return told_skew(parsedate_to_datetime(date).timestamp() + 0.5 - middle_s, "the API's", settings)


def _tokens(client: Client) -> Symptom:
    try:
        kept = [item for item in client.items("tokens") if not item["revoked_at"] and item["expires_at"]]
    except ApiError as error:
        if error.status != 403:
            raise
        return unseen("this token may not read tokens", "ask with an administrator's")
    # Those to join with and those of people who are signed in are made to end.
    found = [item for item in kept if item["purpose"] != "join" and not item["created_by"].startswith("oidc:")]
    now, soon = datetime.now(UTC), timedelta(days=EXPIRY_DAYS)
    left = {item["name"]: datetime.fromisoformat(item["expires_at"]) - now for item in found}
    ending = [f"{name} in {gap.days} days" for name, gap in left.items() if timedelta() < gap < soon]
    if ending:
        return odd(f"about to end: {', '.join(ending[:NAMED_MAX])}", "make others: headroom token create")
    return well(f"none ends within {EXPIRY_DAYS} days")


def _nodes(client: Client) -> Symptom:
    fleet = client.fleet()
    nodes = fleet["nodes"]
    if not nodes:
        return odd("no node has joined, or this token sees none", "start `headroom agent` on a GPU host")
    silent = [node["id"] for node in nodes if not node["up"]]
    if silent:
        return wrong(
            f"{len(silent)} of {len(nodes)} are silent: {', '.join(silent[:NAMED_MAX])}",
            _known_of(fleet, silent) or "there: systemctl status headroom-agent, headroom doctor --node",
        )
    behind = [node["id"] for node in nodes if node["generation_applied"] < fleet["generation"]]
    if behind:
        todo = _known_of(fleet, behind) or "look again soon"
        return odd(f"not yet at generation {fleet['generation']}: {', '.join(behind[:NAMED_MAX])}", todo)
    problems = [text for text in fleet.get("problems", ()) if text.startswith("node ")]
    reporting = f"{len(nodes)} report, all at generation {fleet['generation']}"
    if problems:
        told = f"{len(problems)} problem{'s' if problems[1:] else ''}"
        return odd(f"{reporting}, with {told}: {problems[0]}", "see headroom status")
    named = [(f"{item['id']} on {item['node']}", item) for item in fleet["devices"]]
    gone = [name for name, item in named if not item["up"] or item["healthy"] is False]
    slow = [name for name, item in named if (item.get("slow_factor") or 1.0) > 1.0]
    for found, told in ((gone, "not reported, or called ill, by their nodes"), (slow, "slower than their type")):
        if found:
            todo = "see its temperature, host and driver (headroom doctor --node there), or headroom drain its node"
            return odd(f"{told}: {', '.join(found[:NAMED_MAX])}", todo)
    # Those of the version before and after work all the same.
    version = client.call("GET", "/v1/version").body["version"]
    versions = [(node["id"], node.get("agent_version") or version) for node in nodes]
    other = [f"{name} ({its})" for name, its in versions if its != version]
    differing = f"{len(other)} with an agent of another version than the API: {', '.join(other[:NAMED_MAX])}"
    return well(f"{reporting}{f'; {differing}' if other else ''}")


def _known_of(fleet: Mapping[str, Any], nodes: Sequence[str]) -> str | None:
    """What stands in the way of the first of these of whom that is known."""
    whose = tuple(f"node {name}: " for name in nodes)
    hindered = next((text for text in fleet.get("problems", ()) if text.startswith(whose)), None)
    return None if hindered is None else f"see headroom status: {hindered}"


def _plans(client: Client, settings: Settings) -> Symptom:
    told = client.fleet()["planning"]
    if told is None:
        return odd("no cycle has ended yet, or this token sees none", "see the planner's log")
    age_s = (datetime.now(UTC) - datetime.fromisoformat(told["at"])).total_seconds()
    line = f"{answered_line(told)}, {age_s:.0f} s ago"
    if age_s > max(STALE_S_LEAST, 5 * settings.place_interval_s):
        return wrong(line, "see whether a planner leads, and its log")
    return odd(line, "see its log: plan.stood_in") if told["stood_in"] else well(line)


def _beliefs(client: Client) -> Symptom:
    told = client.fleet()["beliefs"]
    if told is None:
        return well("plans know every measurement")
    todo = "see the planner's log, and headroom profiles list" if "cannot" in told else "wait until it is learned"
    return wrong(told, todo) if "cannot" in told else odd(told, todo)
