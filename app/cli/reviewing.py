"""Commands by which people review what planners propose: list plans, compare one with what stands, approve, reject, go
back, and let the planner act again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from app.cli import declare
from app.cli.declare import Files
from app.cli.options import COUNT_MAX, Server, Token, connect, duration_s
from app.cli.output import Cell, CommandError, Exit, Format, Output, SignedAmount, listed, rows, show, usd
from app.cli.planning import LaneOption
from headroom_client import Client, Document
from solvers.errors import InputError

PLANS_SHOWN = 20
ID_SHOWN = 12
STEPS_SHOWN = 200
WAITING = "awaiting_approval"
WAITING_SHOWN = 3

PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="Its id, or how that begins (four digits or more).")]
Why = Annotated[str | None, typer.Option("--comment", "-m", help="Why, for those who read the audit later.")]
Standing = Annotated[
    int | None,
    typer.Option("--generation", min=0, help="Only while this generation stands, as `diff` said.", show_default=False),
]


def short_id(plan_id: str) -> str:
    """As much of an id as people read."""
    return plan_id.removeprefix("sha256:")[:ID_SHOWN]


def plans(
    lane: Annotated[LaneOption | None, typer.Option(help="Only of this lane.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that wait for approval.")] = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=COUNT_MAX, help="At most so many.")] = PLANS_SHOWN,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """List plans, the newest first: lane, state, age, cost, who planned and who decided."""
    with connect(server, token) as client:
        wanted = {"lane": lane.value if lane else None, "state": WAITING if waiting else None, "limit": limit}
        items = list(islice(client.items("plans", **wanted), limit))
    # A remark is a sentence: below the table, where it has a line's room.
    table = listed({head: cell for head, cell in _PLANS.items() if head or not output.is_for_people}, items)
    remarks = [f"{short_id(item['id'])}: {told}" for item in items if (told := _remark(item))]
    show(items, output, [table, *(["", *remarks] if remarks else [])] if items else "no plans")


def _remark(item: Document) -> str:
    if item["state"] == WAITING:
        told = item["told"] if "told" in item else item["blocked"]
        return "; ".join([*told, *([f"until {clock(item['expires_at'])}"] if item["expires_at"] else [])])
    return item["comment"] or ""


_PLANS: Mapping[str, Cell] = {
    "plan": lambda item: short_id(item["id"]),
    "lane": "lane",
    "state": lambda item: item["state"].replace("_", " "),
    ">age": lambda item: _age(item["created_at"]),
    ">$/h": "cost_usd_per_h",
    ">gen.": lambda item: item["generation"],
    "planned by": lambda item: item["planner"],
    ">short": lambda item: item["unplaced_count"] or None,
    "decided by": lambda item: item.get("decided_by_name") or item["decided_by"],
    "": _remark,
}


def diff(
    plan_id: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="Default: the newest that waits and could be approved.")
    ] = None,
    files: Files = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Show what a plan would change against what stands now, in the order in which agents do it. With -f, what applying
    files would change; exit status 1 when anything would.
    """
    if files:
        if plan_id is not None:
            raise InputError("name either a plan or files with -f, not both")
        declare.diff(files, output, server, token)
        return
    with connect(server, token) as client:
        found = client.diff_plan(plan_id or _newest_waiting(client)).body
    show(found, output, diff_lines(found))


def waiting_plans(client: Client) -> list[str]:
    """Plans that wait, and what whoever decides should know of them."""
    found = _waiting(client)
    lines = [
        f"plan {short_id(item['id'])} waits for approval: {_remark(item)}; {_how(item)}"
        for item in found[:WAITING_SHOWN]
    ]
    more = len(found) - WAITING_SHOWN
    return [*lines, f"{more} more wait: headroom plans --waiting"] if more > 0 else lines


def _how(item: Document) -> str:
    """How to look at it, and to decide."""
    return " or ".join(
        f"headroom {verb} {short_id(item['id'])}" for verb in ("diff", "reject" if item["blocked"] else "approve")
    )


def _waiting(client: Client) -> list[Document]:
    """The newest plans that wait, those that could be approved before the others."""
    found = islice(client.items("plans", state=WAITING, limit=PLANS_SHOWN), PLANS_SHOWN)
    return sorted(found, key=lambda item: bool(item["blocked"]))


def _newest_waiting(client: Client) -> str:
    found = next(iter(_waiting(client)), None)
    if found is None:
        raise CommandError("no plan waits for approval; name one: headroom plans lists them", Exit.NOT_FOUND)
    return str(found["id"])


def diff_lines(found: Document) -> list[Any]:
    """A difference for people."""
    before, after = found["before"], found["after"]
    verdict = "it can be approved" if found["fits"] else f"it cannot be approved now: {', '.join(found['blocked'])}"
    head = [
        f"plan {short_id(found['plan_id'])} ({found['lane']}, {found['state']}) against generation"
        f" {found['generation']}: {verdict}",
        rows(
            ("", ">now", ">then", ">difference"),
            [(title, before[name], after[name], SignedAmount(after[name] - before[name])) for title, name in _TOTALS],
        ),
    ]
    head += [item for item in found.get("told", ()) if not item.startswith("cannot")]
    head += [f"it moves again what was moved meanwhile: {item}" for item in found.get("undoes", ())]
    parts = [*head, "", listed(_WORKLOADS, found["workloads"])] if found["workloads"] else [*head, "", "no service"]
    if found["devices"]:
        parts += ["", rows(("node", "device", "GPU", "now", "then"), list(map(_device, found["devices"])))]
    steps = found["steps"]
    if steps:
        names = {item["device"]: " ".join(map(str, _device(item)[:2])) for item in found["devices"]}
        shown = [(at, *_step(step, names)) for at, step in enumerate(steps[:STEPS_SHOWN], 1)]
        parts += ["", rows((">step", "node", "what", "how", ">launch s", ">goes on s"), shown)]
    if len(steps) > STEPS_SHOWN:
        parts.append(f"and {len(steps) - STEPS_SHOWN} more steps; -o json has all")
    return parts


_TOTALS: Sequence[tuple[str, str]] = (
    ("cost, $/h", "cost_usd_per_h"),
    ("power of GPUs in use, W", "power_w"),
    ("unserved (weighted)", "unserved"),
    ("requests/s short", "rate_rps_short"),
    ("SLO risk", "slo_risk"),
    ("replicas", "replicas"),
    ("GPUs in use", "gpus_in_use"),
)
_WORKLOADS: Mapping[str, Cell] = {
    "workload": "workload",
    "now": lambda item: _serving(item["before"]),
    "then": lambda item: _serving(item["after"]),
    ">$/h of shares": lambda item: SignedAmount(item["after"]["usd_per_h"] - item["before"]["usd_per_h"]),
    ">rps short now": lambda item: item["before"]["rate_rps_short"] or None,
    ">rps short then": lambda item: item["after"]["rate_rps_short"] or None,
}


def _serving(told: Document) -> str:
    on = (f"{item['replicas']} x {item['gpu_type']} ({item['gpus']:.2g} GPUs)" for item in told["on"])
    return ", ".join(on) or "nothing"


def _device(item: Document) -> tuple[object, ...]:
    name = item["device"] if item["index"] is None else f"GPU {item['index']}"
    return item["node"], name, item["gpu_type"], _holds(item, "before"), _holds(item, "after")


def _holds(item: Document, when: str) -> str:
    held = [f"{each['replica']} {each['share_pct_sm']} %" for each in item[when]]
    setting = item[f"setting_{when}"] or {}
    told = [f"{setting[name]:g} {unit}" for name, unit in _SETTINGS if setting.get(name) is not None]
    return ", ".join((*held, *told)) or "-"


_SETTINGS = (("clock_mhz_sm", "MHz"), ("power_limit_w", "W"))


def _step(step: Document, names: Mapping[str, str]) -> tuple[object, ...]:
    what = names.get(step["subject"], step["subject"])
    return step["node"], what, step["said"], step["launch_s"] or None, step["goes_on_s"] or None


def approve(
    plan_id: PlanId,
    comment: Why = None,
    generation: Standing = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Make exactly this plan the target, if it still fits the fleet as it is."""
    with connect(server, token) as client:
        found = client.diff_plan(plan_id)
        told = found.body
        if generation is not None and told["generation"] != generation:
            raise CommandError(
                f"generation {told['generation']} stands by now, not {generation}: look at headroom diff again",
                Exit.CONFLICT,
            )
        done = client.apply_plan(told["plan_id"], comment=comment, if_match=found.etag)
    cost = usd(told["after"]["cost_usd_per_h"] - told["before"]["cost_usd_per_h"], per_hour=True)
    show(done, output, f"approved {short_id(done['plan_id'])}: generation {done['generation']}, {cost} against before")


def reject(
    plan_id: PlanId, comment: Why = None, output: Output = Format.TABLE, server: Server = None, token: Token = None
) -> None:
    """Say no to a plan that waits. It is not proposed again unchanged."""
    with connect(server, token) as client:
        done = client.reject_plan(plan_id, comment or "")
    show(done, output, f"rejected {short_id(done['id'])}")


def rollback(
    generation: Annotated[
        int | None, typer.Argument(min=1, help="What stood then. Default: the one before.", show_default=False)
    ] = None,
    cooldown: Annotated[
        str, typer.Option("--cooldown", help="For so long only people change the target: 15m, 2h; 0s: not at all.")
    ] = "15m",
    comment: Why = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Make what stood before the target again, and hold the planner back for a while."""
    with connect(server, token) as client:
        wish = {"generation": generation, "cooldown_s": float(duration_s(cooldown)), "comment": comment}
        done = client.roll_back(wish)
    lines = [f"generation {done['generation']} is what generation {done['restored']} was", *hold_lines(done["held"])]
    show(done, output, lines)
    if done["worse"] and output.is_for_people:
        typer.echo(f"headroom: worse than before: {', '.join(done['worse'])}", err=True)


def resume(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Let the planner act by itself again, before a rollback's time is over."""
    with connect(server, token) as client:
        done = client.resume_planning()
    ended = done["held"]
    show(done, output, f"planning goes on ({ended['reason']})" if ended else "planning was not held")


def hold_lines(held: Document | None) -> list[str]:
    """Who holds planning, until when and why; nothing where nobody does."""
    if held is None:
        return []
    who = held.get("by_name") or held["by"]
    told = f"{held['reason']}; what is short is told as it was planned (headroom resume ends it)"
    return [f"planning is held until {clock(held['until'])} by {who}: {told}"]


def clock(moment: str) -> str:
    """A moment, of today without its day."""
    at = datetime.fromisoformat(moment).astimezone(UTC)
    return at.strftime("%H:%M:%S UTC" if at.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S UTC")


def _age(moment: str) -> str:
    left_s = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())
    for unit, length_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if left_s >= length_s:
            return f"{left_s / length_s:.0f}{unit}"
    return f"{left_s:.0f}s"
