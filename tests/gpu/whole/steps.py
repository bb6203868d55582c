"""The steps, in the order in which a user would take them."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg

from app.store.embedded import standing_url
from headroom_client import ApiError
from tests.gpu.whole import seen
from tests.gpu.whole.plane import NODE, Plane
from tests.gpu.whole.run import Run
from tests.gpu.whole.services import SERVICES, document, fitted, foundations, raised_rate, read_points
from tests.waiting import spend

JOIN_S_MAX, PLAN_S_MAX, SERVE_S_MAX, CHANGE_S_MAX, GONE_S_MAX = 30.0, 30.0, 90.0, 40.0, 40.0
FAILED, FAILURES_MAX = re.compile(r"(\d+) workers failed"), 3
SETTLE_S = 3.0
ACCOUNTED_AFTER_S = 32.0
"""Of a minute's end: the ledger's own delay, and how often it looks."""
BILL_SLACK_S = 4.0
END_S = 25.0
"""Kept for the end."""
CLOCK_MHZ_UNKNOWN = 1980
TELLING = ("status", "plan", "plans", "nodes", "routes list", "profiles list", "get events")
COMMANDS_MAX = 4
BILLED = """
SELECT coalesce(sum(billed_s), 0), coalesce(sum(observed_s), 0), coalesce(sum(usd), 0), max(price_usd_per_h)
FROM idle_by_device_hour
"""
HELD = """
SELECT service, 3600 * sum(share_gpu_h), 3600 * sum(held_h), sum(usd_share), sum(energy_kwh)
FROM cost_by_service_hour GROUP BY 1 ORDER BY 1
"""
LEDGER = "SELECT coalesce(max(abs(difference_usd)), 0) FROM ledger_check"


def plane(run: Run) -> None:
    """`headroom up` and `headroom agent`, until the GPU is in the fleet."""
    rig, own = run.rig, run.plane
    began_s = time.monotonic()
    run.keep("up.txt", own.do("up", "--no-demo", "-v"))
    rig.note("`headroom up` takes", time.monotonic() - began_s, "s")
    began_s = time.monotonic()
    own.start_agent(run.options.devices)
    own.until("the GPU is in the fleet", lambda: own.client.fleet()["devices"], JOIN_S_MAX)
    run.joined_at_s = time.time()
    rig.note("from the agent's start to a GPU in the fleet", time.monotonic() - began_s, "s")
    run.apply("foundations", foundations(run.host))
    device = own.client.fleet()["devices"][0]
    run.gpu_type = device["gpu_type"]
    rig.check("the product knows the GPU", run.gpu_type not in (None, "", "unknown"), run.gpu_type)


def profiles(run: Run) -> None:
    """The card's measurements: handed in, else a few taken by the product."""
    own, points = run.plane, []
    if run.options.profiles is not None:
        points = read_points(run.options.profiles, run.gpu_type, _clock_mhz(run))
        run.rig.note("points handed in", float(len(points)))
        run.apply("profiles", [{"kind": "profiles", "points": points}])
    else:
        run.apply("unmeasured", [document(service, run.host, mode="shadow") for service in SERVICES])
        for service in SERVICES:
            budget = f"{run.options.profile_s:g}s"
            told = own.run("profile", service.key, "--node", NODE, "--budget", budget)
            run.keep(f"profile-{service.name}.txt", told.stdout + told.stderr)
            own_points = _stored(run, service.network)
            run.rig.check(f"{service.name}: points are measured", bool(own_points), float(len(own_points)))
            points += own_points
    missing = [service.network for service in SERVICES if all(each["model"] != service.network for each in points)]
    if missing:
        raise AssertionError(f"no measurement of {', '.join(missing)}")
    run.services = [fitted(service, points, run.options.rate_factor) for service in SERVICES]


def _clock_mhz(run: Run) -> int:
    found = run.plane.client.get("gpu-type", run.gpu_type).body.get("clocks_mhz_sm")
    return int(max(found)) if found else CLOCK_MHZ_UNKNOWN


def _stored(run: Run, model: str) -> list[dict[str, Any]]:
    try:
        found = run.plane.client.call("GET", f"/v1/profiles/{model}/{run.gpu_type}").body
    except ApiError:
        return []
    return [point for point in found["points"] if point["origin"] == "measured"]


def services(run: Run) -> None:
    """Declare them, and wait until each answers with the share that was planned."""
    own, rig = run.plane, run.rig
    for service in run.services:
        rig.note(f"{service.name}: promise", service.slo_ms, "ms", note=f"p99 at {service.rate_rps:g} requests/s")
    began_s = time.monotonic()
    run.apply("services", [document(service, run.host) for service in run.services])
    names = [service.key for service in run.services]
    own.until("all services are planned", lambda: own.assignments().keys() >= set(names), PLAN_S_MAX)
    rig.note("planned after", time.monotonic() - began_s, "s")
    own.until("all services are routed", lambda: _worth_waiting(own) and all(map(own.replicas, names)), SERVE_S_MAX)
    rig.note("all are routed after", time.monotonic() - began_s, "s")
    own.until("the node holds its target", own.is_applied, SERVE_S_MAX)
    run.planned = own.assignments()
    total_pct = sum(each["share_pct_sm"] for each in run.planned.values())
    rig.check("the card is used well", 50 <= total_pct <= 100, float(total_pct), "%", note="planned shares together")
    receipt = own.receipt()
    held = {each["replica"]: each for each in receipt["replicas"]}
    for name, each in run.planned.items():
        read = held.get(each["replica"], {})
        told = f"batch {each['batch']}, {read.get('sm_count')} SMs, limit {each['memory_mib_limit']} MiB, "
        told += f"carries {each['capacity_rps']:.0f} requests/s, {each['power_w_planned']:.0f} W"
        rig.note(f"{name}: share", float(each["share_pct_sm"]), "%", note=told)
        same = all(read.get(field) == each[field] for field in ("share_pct_sm", "memory_mib_limit", "batch"))
        rig.check(f"{name}: the node read back what was planned", same)
    for problem in receipt["problems"]:
        rig.note("the node says", str(problem)[:200])


def _worth_waiting(own: Plane) -> bool:
    """Raises AssertionError where processes fail again and again."""
    for problem in own.problems():
        failed = FAILED.search(problem)
        if failed and int(failed[1]) >= FAILURES_MAX:
            raise AssertionError(problem)
    return True


def steady(run: Run) -> None:
    """Users come at the declared rates."""
    run.begin_load()
    spend(SETTLE_S)
    run.window("steady", run.options.steady_s)
    fleet = run.plane.client.fleet()
    device = fleet["devices"][0]
    run.rig.note("the product reads", float(device["power_w"] or 0.0), "W", note=f"{device['utilisation_pct']} % busy")
    for each in fleet["services"]:
        run.rig.note(f"{each['name']}: p99 as the product tells it", float(each["latency_ms_p99"] or 0.0), "ms")
        kept = each["slo_attainment"]
        run.rig.note(f"{each['name']}: attainment as the product tells it", float(kept) if kept is not None else "none")


def raised(run: Run) -> None:
    """One service is declared with more, its users come more often, and the product makes room for them."""
    own, rig = run.plane, run.rig
    chosen = min(run.services, key=lambda service: run.planned[service.key]["share_pct_sm"])
    before, generation = run.planned[chosen.key], own.client.fleet()["generation"]
    run.ports = {int(each["port"]) for each in own.replicas(chosen.key)}
    run.raised_to = raised_rate(chosen, before["capacity_rps"])
    run.changed_s = began_s = time.monotonic()
    run.apply("raised", [document(run.raised_to, run.host)])
    run.rate(run.raised_to)
    own.until("a new plan", lambda: own.client.fleet()["generation"] > generation, CHANGE_S_MAX)
    rig.note("a new plan after", time.monotonic() - began_s, "s")
    own.until("the node holds it", own.is_applied, CHANGE_S_MAX)
    rig.note("the node holds it after", time.monotonic() - began_s, "s")
    run.planned_after = own.assignments()
    after = run.planned_after[chosen.key]
    told = f"{chosen.rate_rps:g} to {run.raised_to.rate_rps:g} requests/s, batch {before['batch']} to {after['batch']}"
    rig.note(
        f"{chosen.name}: share", float(after["share_pct_sm"]), "%", note=f"{before['share_pct_sm']} % before, {told}"
    )
    changed = any(before[field] != after[field] for field in ("share_pct_sm", "batch"))
    rig.check("the plan gives it more", changed or after["capacity_rps"] > before["capacity_rps"])
    moved = [
        name for name, each in run.planned_after.items() if each["share_pct_sm"] != run.planned[name]["share_pct_sm"]
    ]
    rig.note("shares that changed", ", ".join(moved) or "none")
    spend(SETTLE_S)
    run.window("raised", run.options.after_s)


def served(run: Run) -> None:
    """What users saw, before and after."""
    run.end_load()
    requests = seen.read(run.load_file)
    if "steady" in run.windows:
        for service in run.services:
            planned_ms = run.planned[service.key]["latency_ms_planned"]
            seen.tell(run.rig, requests, run.windows["steady"], service, planned_ms)
    chosen = run.raised_to
    if chosen is None:
        return
    last_s = max((each.due_s for each in requests), default=run.changed_s)
    change = seen.Window(
        name="hand-over", from_s=run.changed_s, until_s=run.windows.get("raised", run.windows["steady"]).from_s
    )
    whole = replace(change, until_s=max(change.until_s, last_s))
    for service in run.services:
        inside = whole.of(requests, service.key)
        failed = sum(each.status != 200 for each in inside)
        run.rig.check(
            f"{service.name} since the change: no request failed", failed == 0, float(failed), note=f"of {len(inside)}"
        )
    run.rig.note(f"{chosen.name}: longest time without an answer", seen.gap_ms(requests, whole, chosen.key), "ms")
    fresh = [each for each in whole.of(requests, chosen.key) if each.status == 200 and each.port not in run.ports]
    if fresh:
        first_s = min(each.answered_s for each in fresh)
        run.rig.note(f"{chosen.name}: from the change to its new worker's first answer", first_s - run.changed_s, "s")
    else:
        run.rig.note(f"{chosen.name}: no new worker answered", "its batch changed in place, or nothing did")
    if "raised" in run.windows:
        for service in run.services:
            now = chosen if service.key == chosen.key else service
            seen.tell(run.rig, requests, run.windows["raised"], now, run.planned_after[now.key]["latency_ms_planned"])


def told(run: Run) -> None:
    """The commands that tell a user what is; none waits for another."""
    commands = {words.replace(" ", "-"): words.split() for words in TELLING}
    commands |= {f"explain-{service.name}": ["explain", service.key] for service in run.services}
    commands |= {f"logs-{service.name}": ["logs", service.key, "--tail", "20"] for service in run.services}
    with ThreadPoolExecutor(COMMANDS_MAX) as pool:
        answers = list(pool.map(lambda words: run.plane.run(*words), commands.values()))
    for name, done in zip(commands, answers, strict=True):
        run.keep(f"{name}.txt", done.stdout + done.stderr)
        if done.returncode:
            told = f"`headroom {' '.join(commands[name])}` answers"
            run.rig.check(told, fine=False, value=float(done.returncode), note=done.stderr[:200])
    good = sum(done.returncode == 0 for done in answers)
    run.rig.check("commands answer", good == len(answers), float(good), note=f"of {len(answers)}")


def bill(run: Run) -> None:
    """What the ledger says of the seconds since the GPU came."""
    url = standing_url(run.plane.home)
    if url is None:
        raise AssertionError("the database does not answer")
    # The first minute's end with all of them in it; where that is too far away, what there is.
    since_s = time.time() - time.monotonic() + run.windows["steady"].from_s if "steady" in run.windows else time.time()
    wait_s = since_s - since_s % 60.0 + 60.0 + ACCOUNTED_AFTER_S - time.time()
    spend(max(0.0, min(wait_s, run.rig.left_s() - END_S)))
    with psycopg.connect(url, connect_timeout=10) as connection:
        billed, observed_s, usd, price = (
            float(each or 0) for each in connection.execute(BILLED).fetchone() or (0, 0, 0, 0)
        )
        held = connection.execute(HELD).fetchall()
        (difference,) = connection.execute(LEDGER).fetchone() or (0,)
    minutes = [run.joined_at_s - run.joined_at_s % 60.0 + 60.0 * each for each in range(1, 10)]
    apart_s = min((billed - (minute - run.joined_at_s) for minute in minutes), key=abs)
    note = "against the wall clock from joining to the end of a minute"
    run.rig.check(
        "GPU-seconds billed", billed > 0 and abs(apart_s) <= BILL_SLACK_S, billed, "s", note=f"{apart_s:+.1f} s {note}"
    )
    run.rig.note("of them observed", observed_s, "s")
    run.rig.check("the bill is price times time", abs(usd - billed / 3600.0 * price) < 0.01 * max(usd, 1e-6), usd, "$")
    run.rig.check("accounts sum to the bill", float(difference) == 0.0, float(difference), "$")
    for name, share_s, held_s, usd_share, kwh in held:
        text = f"{float(held_s):.1f} s held, {float(usd_share):.4f} $, {3600.0 * float(kwh or 0):.0f} kJ"
        run.rig.note(f"{name}: GPU-seconds by share", float(share_s), "s", note=text)
    for by in ("service", "device"):
        done = run.plane.run("report", "cost", "--by", by, "--last", "1h")
        run.keep(f"cost-{by}.txt", done.stdout + done.stderr)
        run.rig.check(f"`headroom report cost --by {by}`", done.returncode == 0, note=done.stderr[:200])


def doctor(run: Run) -> None:
    """What the product finds wrong with its control plane, and with this host."""
    host = ("doctor", "--json", "--node", "--", "--server", run.plane.server, "--devices", run.options.devices)
    own = ("--workers-as-agent", "--state-dir", str(run.plane.folder / "agent"), *run.options.agent_option)
    looks = {"plane": ("doctor", "--json"), "host": (*host, *own)}
    with ThreadPoolExecutor(COMMANDS_MAX) as pool:
        answers = list(pool.map(lambda words: run.plane.run(*words), looks.values()))
    for name, done in zip(looks, answers, strict=True):
        run.keep(f"doctor-{name}.json", done.stdout + done.stderr)
        lines = json.loads(done.stdout)
        unwell = [line for line in lines if line["state"] != "well"]
        run.rig.check(
            f"the doctor of the {name}", done.returncode == 0, f"{len(lines) - len(unwell)} of {len(lines)} well"
        )
        for line in unwell:
            run.rig.note(f"{name}, {line['check']} ({line['state']})", str(line["found"])[:200])


def ended(run: Run) -> None:
    """Services go, the agent ends, the plane goes down; what is left is `close`'s to say."""
    own, rig = run.plane, run.rig
    declared = run.out / "services.json"
    if declared.exists():
        began_s = time.monotonic()
        own.run("delete", "-f", str(declared.absolute()))
        own.until("no worker is left", lambda: not _workers(run), GONE_S_MAX)
        rig.note("workers are gone after", time.monotonic() - began_s, "s")
    status = own.end_agent()
    rig.check("the agent ends by itself", status == 0, str(status))
    left = [text for text in own.processes().values() if "mps" in text]
    rig.check("no MPS process is left", not left, "; ".join(left)[:200])
    rig.check("`headroom down`", own.run("down").returncode == 0)


def _workers(run: Run) -> list[str]:
    return [text for text in run.plane.processes().values() if "tests.gpu.server" in text]
