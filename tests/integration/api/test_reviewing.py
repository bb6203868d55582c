"""What reviewers and maintainers type, over the real API and database: decisions on plans, drained nodes, small changes
of documents; what is refused, with which exit status, and what the audit says of it.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from agents.wire import encode
from app.cli.output import Exit
from app.store import plans, targets
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import Lane
from solvers.domain.value import SHOWN_WORDS
from tests import builders
from tests.integration.api.world import CLUSTER, NODE, OWN, Headroom, World, spec
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, report

pytestmark = pytest.mark.integration
MERGE = {"Content-Type": "application/merge-patch+json"}
T4 = "/v1/gpu-types/t4"


def waits(world: World, seed: int = 1) -> str:
    """A plan that waits; its id."""
    with world.database.transaction() as session:
        new = NewPlan(
            plan=stored.plan(seed=seed), lane=Lane.APPROVE, state=PlanState.AWAITING_APPROVAL, created_by="planner",
            matter=f"m{seed}", waits_s=900.0,
        )  # fmt: skip
        return plans.put(session, new).id


def trail(world: World, name: str) -> list[dict[str, Any]]:
    items = world.call("GET", "/v1/events?limit=200").json()["items"]
    return [item for item in items if item["name"] == name]


def test_what_could_be_approved_stands_before_what_could_not(world: World, headroom: Headroom) -> None:
    first, *others = (waits(world, seed) for seed in range(1, 13))
    with world.database.transaction() as session:
        plans.note_look(session, first, [], 0.0)
        for each in others:
            plans.note_look(session, each, ["falls short (x)"], 1.0)
    out = headroom("status")[1]
    told = [line for line in out.splitlines() if "waits for approval" in line]
    assert (len(told), "cannot be approved" in told[1]) == (3, True)
    assert told[0].startswith(f"plan {first[7:19]} waits")
    assert "9 more wait: headroom plans --waiting" in out
    assert headroom("diff")[1].startswith(f"plan {first[7:19]} ")
    listed, overview = (world.call("GET", path, None, headers=world.cookie("admin")).text for path in ("/plans", "/"))
    fits, _, behind = listed.partition('<details id="not-now">')
    assert (fits.count("/plans/sha256:"), first in fits, "11 that could not be approved now" in behind) == (1, 1, 1)
    assert (first in overview, "11 more wait</a>, 0 of which" in overview) == (True, True)
    # Whoever reads a plan that gave way to another gets there.
    with world.database.transaction() as session:
        assert plans.lapse(session, others[0], f"plan {first[7:19]} waits in its place")
        assert not plans.lapse(session, others[0], "once more")
    page = world.call("GET", f"/plans/{others[0]}", None, headers=world.cookie("admin")).text
    way = f"/plans/{first[7:19]}"
    assert f'plan <a class="mono" href="{way}">{first[7:19]}</a> waits in its place' in page
    assert world.call("GET", way, None, headers=world.cookie("admin")).status_code == 200


def test_plans_are_listed_named_by_their_beginning_and_decided_once(world: World, headroom: Headroom) -> None:
    first, second = waits(world), waits(world, 2)
    status, out, _ = headroom("plans", "--waiting")
    assert status == 0
    assert all(text in out for text in (first[7:19], second[7:19], "approve", "awaiting approval", "until "))
    assert headroom("reject", first[7:19], "-m", "not now")[:2] == (0, f"rejected {first[7:19]}\n")
    status, _, err = headroom("reject", first[7:19])
    assert status == Exit.CONFLICT
    assert "the plan is rejected, by admin at" in err
    assert "(not now)" in err
    (event,) = trail(world, "plan.rejected")
    assert event["facts"]["changed"] == {"state": {"from": "awaiting_approval", "to": "rejected"}}
    assert headroom("plans", "--waiting", "-o", "json")[1].count('"id"') == 1
    assert "token:" not in headroom("plans")[1]
    status, out, _ = headroom("get", "plan", second[7:15])
    assert (status, "demo/vision#0" in out) == (0, True)
    assert headroom("get", "plan", "abcdef012345")[0] == Exit.NOT_FOUND
    assert headroom("approve", "zz")[0] == Exit.USAGE


def test_a_diff_says_why_not_and_approval_refuses_with_it(world: World, headroom: Headroom) -> None:
    plan = waits(world)
    found = world.call("GET", f"/v1/plans/{plan[7:20]}/diff")
    assert found.headers["etag"] == '"0/None"'
    assert (found.json()["fits"], found.json()["generation"]) == (False, 0)
    assert any(item.startswith("unknown device") for item in found.json()["blocked"])
    status, out, _ = headroom("diff")
    assert (status, "it cannot be approved now: unknown device" in out) == (0, True)
    assert headroom("approve", plan, "--generation", "4")[0] == Exit.CONFLICT
    world.call("POST", f"/v1/plans/{plan}/reject", plain={})
    assert headroom("diff")[0] == Exit.NOT_FOUND
    assert world.call("GET", f"/v1/plans/{plan}/diff", "own viewer").status_code == 403


def test_an_approval_names_what_it_was_read_against(world: World) -> None:
    plan = waits(world)
    path = f"/v1/plans/{plan}/apply"
    stale = world.call("POST", path, plain={}, headers={"If-Match": '"7/sha256:0"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition-failed")
    done = world.call("POST", path, plain={"comment": "as agreed"}, headers={"If-Match": '"0/None"'})
    assert done.json() == {"plan_id": plan, "generation": 1}
    shown = world.call("GET", f"/v1/plans/{plan}").json()
    assert (shown["state"], shown["comment"], shown["decided_by"]) == (
        "promoted", "as agreed", f"token:{world.ids['admin']}",
    )  # fmt: skip
    # As people know them; whose names are no business of a project's, it is not told.
    name = world.call("GET", f"/v1/tokens/{world.ids['admin']}").json()["name"]
    assert shown["decided_by_name"] == name
    again = world.call("POST", f"/v1/plans/{plan}/reject", plain={})
    assert (again.status_code, f"promoted, by {name} at" in again.json()["detail"]) == (409, True)
    kept = world.call("DELETE", f"/v1/projects/{OWN}")
    assert (kept.status_code, world.ids["own viewer"] in kept.text) == (409, False)
    told = world.call("GET", "/v1/plans", "own viewer").json()["items"][0]
    assert (told["comment"], told["decided_by_name"]) == (None, None)


def test_a_rollback_is_held_seen_and_ended(world: World, headroom: Headroom) -> None:
    for seed in (1, 2):
        plan = world.call("POST", "/v1/plans", plain={}).json()["id"]
        world.call("POST", f"/v1/plans/{plan}/apply", plain={})
        assert seed
    status, out, _ = headroom("rollback", "--cooldown", "10m", "-m", "slow")
    assert status == 0
    assert out.splitlines()[0] == "generation 3 is what generation 1 was"
    assert "planning is held until " in out
    (line,) = [line for line in headroom("status")[1].splitlines() if line.startswith("planning is held until ")]
    assert " by admin: generation 2 was rolled back; what is short is told as it was planned (" in line
    page = world.call("GET", "/", None, headers=world.cookie("viewer")).text
    assert ("Planning is held</a> until" in page, "told as it was planned" in page) == (True, True)
    assert world.call("GET", "/v1/planning").json()["held"]["reason"] == "generation 2 was rolled back"
    assert world.call("GET", "/v1/fleet", "own viewer").json()["held"] is None
    with world.database.transaction() as session:
        assert targets.held_back(session, CLUSTER) is not None
    assert headroom("resume")[:2] == (0, "planning goes on (generation 2 was rolled back)\n")
    assert headroom("resume")[1] == "planning was not held\n"
    (event,) = trail(world, "planning.resumed")
    assert event["facts"]["changed"]["held_until"]["to"] is None
    assert (event["actor"], event["actor_name"]) == (f"token:{world.ids['admin']}", "admin")
    told = headroom("get", "events", "cluster")[1]
    assert (" admin " in told, "token:" in told) == (True, False)
    assert headroom("rollback", "99")[0] == Exit.NOT_FOUND
    assert headroom("rollback", "--cooldown", "soon")[0] == Exit.USAGE


def test_a_price_changes_without_its_whole_document(world: World, headroom: Headroom) -> None:
    before = world.call("GET", T4)
    prices = [{**before.json()["prices"][0], "usd_per_h": 0.99}]
    status, out, _ = headroom("patch", "gpu-type", "t4", "-p", json.dumps({"prices": prices}))
    assert (status, out) == (0, "updated    gpu-type/t4\n")
    after = world.call("GET", T4).json()
    assert after == {**before.json(), "prices": prices}
    assert headroom("patch", "gpu-type", "t4", "-p", "{}")[1] == "unchanged  gpu-type/t4\n"
    changed = trail(world, "gpu_type.updated")[0]["facts"]["changed"]
    assert changed == {"/prices": {"from": before.json()["prices"], "to": prices}}
    stale = world.call("PATCH", T4, plain={"sm_count": 1}, headers={**MERGE, "If-Match": before.headers["etag"]})
    assert stale.status_code == 412
    for wish, status_code in (({"name": "other"}, 422), ({"smcount": 1}, 422), ([1], 422), ({"sm_count": None}, 422)):
        assert world.call("PATCH", T4, plain=wish, headers=MERGE).status_code == status_code, wish
    assert world.call("PATCH", T4, plain={"sm_count": 1}).status_code == 415
    assert world.call("PATCH", "/v1/gpu-types/none", plain={}, headers=MERGE).status_code == 404
    assert world.call("GET", T4).json() == after
    service = f"/v1/services/{OWN}/vision"
    world.call("PUT", service, plain=spec(builders.service(priority=3)))
    patched = world.call("PATCH", service, "own operator", plain={"slo": {"latency_ms": 77.0}}, headers=MERGE).json()
    assert (patched["slo"]["latency_ms"], patched["priority"]) == (77, 3)
    assert world.call("PATCH", service, plain={"priority": None}, headers=MERGE).json()["priority"] == 100
    assert world.call("PATCH", service, "foreign operator", plain={}, headers=MERGE).status_code == 404


def test_workers_secrets_stay_out_of_the_trail(world: World) -> None:
    path = f"/v1/services/{OWN}/vision"
    worker = {"command": ["/bin/serve"], "environment": [{"name": "KEY", "value": "hunter2"}]}
    world.call("PUT", path, plain={**spec(builders.service()), "worker": worker})
    worker["environment"] = [{"name": "KEY", "value": "hunter3"}]
    world.call("PATCH", path, plain={"worker": worker}, headers=MERGE)
    (event,) = trail(world, "service.updated")
    assert event["facts"]["changed"] == {"/worker/environment": {"from": "...", "to": "..."}}


@pytest.mark.parametrize("comment", ["\x1b[31mred", "a\rb", "a\u202eb"])
def test_a_comment_does_nothing_but_be_read(world: World, comment: str) -> None:
    """It is printed in the terminals of others. It may have lines."""
    plan = world.call("POST", "/v1/plans", plain={}).json()["id"]
    paths = ("/v1/rollback", f"/v1/plans/{plan}/reject", f"/v1/plans/{plan}/apply", f"/v1/nodes/{NODE}/drain")
    for path in paths:
        answer = world.call("POST", path, plain={"comment": comment})
        (fault,) = answer.json()["errors"]
        assert (answer.status_code, fault["pointer"], fault["detail"]) == (422, "/comment", SHOWN_WORDS), path
    form = {"Content-Type": "application/x-www-form-urlencoded", **world.cookie("operator")}
    for path in (f"/nodes/{NODE}/drain", f"/plans/{plan}/reject"):
        body = f"comment={quote(comment)}".encode()
        assert world.call("POST", path, None, body=body, headers=form).status_code == 422, path
    assert world.call("POST", f"/v1/plans/{plan}/reject", plain={"comment": "no\n\tnot now"}).status_code == 200


def test_a_node_is_drained_until_it_says_itself_that_it_is_empty(world: World, headroom: Headroom) -> None:
    world.joined(NODE)
    status, out, _ = headroom("drain", NODE, "-m", "new fans")
    assert status == 0
    assert "it has never reported: what runs on it is not known" in out
    status, _, err = headroom("drain", NODE, "--wait", "--timeout", "0s")
    assert (status, "is not empty after 0s: it has never reported" in err) == (Exit.FAILED, True)
    assert "drained" in headroom("nodes")[1]
    (event,) = trail(world, "node.drained")
    assert event["facts"] == {"comment": "new fans", "changed": {"/schedulable": {"from": True, "to": False}}}
    sent = world.call("POST", "/v1/agent/reports", NODE, plain=_report())
    assert sent.is_success, sent.text
    empty = f"{NODE} is empty: safe to reboot (headroom uncordon {NODE} puts it back)\n"
    assert headroom("drain", NODE, "--wait", "--timeout", "5s")[:2] == (0, empty)
    told = json.loads(headroom("uncordon", NODE, "-o", "json")[1])
    assert (told["schedulable"], told["empty"]) == (True, False)
    assert headroom("drain", NODE)[:2] == (0, empty), "as soon as it is asked"
    assert headroom("uncordon", NODE)[:2] == (0, f"{NODE} may be used again\n")
    assert world.call("GET", f"/v1/nodes/{NODE}").json()["schedulable"] is True
    assert [item["name"] for item in trail(world, "node.uncordoned")] == 2 * ["node.uncordoned"]
    assert headroom("drain", "nowhere")[0] == Exit.NOT_FOUND


def _report() -> Any:

    return encode(report(NODE, 1, boot_id="boot-1", devices=[device_report(f"GPU-{NODE}-0")]))
