"""The command line over the real API and database, all in this process: what files say wrong is told with its place and
before anything is written, what would change is shown, what can hardly be meant is warned of.
"""

from __future__ import annotations

import csv
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.cli.output import Exit
from app.cli.watch import span_of
from tests.integration.api.world import OWN, Headroom, World

pytestmark = pytest.mark.integration

SERVICE = f"""\
kind: service
project: {OWN}
name: one
model: resnet50
slo: {{latency_ms: 100}}
rate_rps_declared: 10
"""


def test_all_faults_of_all_files_are_told_and_nothing_is_sent(world: World, headroom: Headroom, tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(f"{SERVICE}---\n{SERVICE.replace('one', 'two').replace('latency_ms', 'latncy_ms')}modee: auto\n")
    second.write_text(SERVICE.replace("one", "three").replace("resnet50", "resnet5").replace(OWN, "dmo"))
    status, out, err = headroom("apply", "-f", str(first), "-f", str(second))
    assert (status, out) == (Exit.USAGE, "")
    assert err.splitlines() == [
        f"headroom: {first}:12: slo.latncy_ms: there is no field latncy_ms; did you mean latency_ms? (unknown-field)",
        f"headroom: {first}:14: modee: there is no field modee; did you mean mode or model? (unknown-field)",
        f"headroom: {second}:2: project: there is no project dmo; did you mean demo? (reference-unknown)",
        f"headroom: {second}:4: model: there is no model resnet5; did you mean resnet50? (reference-unknown)",
        "headroom: 2 of 3 documents are refused; nothing was sent",
    ]
    # What cannot be read hides nothing, but for names: it may be what they name.
    second.write_text(second.read_text() + "replicas_min: 9\nreplicas_max: 1\n---\nkind: pod\n---\nkind: [unclosed\n")
    for command in ("apply", "diff"):
        status, out, err = headroom(command, "-f", str(first), "-f", str(second))
        assert (status, out) == (Exit.USAGE, "")
        places = [line.removeprefix(f"headroom: {tmp_path}/").split(": ", 2)[:2] for line in err.splitlines()]
        b_told = ["b.yaml:7", "replicas_min must not exceed replicas_max (value-invalid)"]
        assert places[:3] == [["a.yaml:12", "slo.latncy_ms"], ["a.yaml:14", "modee"], b_told]
        assert [place for place, _ in places[3:]] == ["b.yaml:13", "b.yaml:10"]
    assert world.call("GET", "/v1/services").json()["items"] == []
    # Nor does a key that is missing or stands twice.
    unnamed = SERVICE.replace("name: one\n", "").replace("latency_ms", "latncy_ms").replace("resnet50", "resnet5")
    first.write_text(unnamed.replace(OWN, "3"))
    status, out, err = headroom("apply", "-f", str(first))
    assert (status, out) == (Exit.USAGE, "")
    assert [line.removeprefix(f"headroom: {first}:") for line in err.splitlines()[:-1]] == [
        "2: project: must be text; what YAML reads as another value stands in quotes (string-type)",
        "1: name: this field is missing (missing)",
        "4: slo.latncy_ms: there is no field latncy_ms; did you mean latency_ms? (unknown-field)",
        "3: model: there is no model resnet5; did you mean resnet50? (reference-unknown)",
    ]
    assert "needs the text field 'project'" in headroom("delete", "-f", str(first))[2]
    text = SERVICE + "name: again\nmodel: x\nmodee: auto\n"
    first.write_text(text)
    second.write_text("kind: servic\nname: x\n")
    status, _, err = headroom("apply", "-f", str(first), "-f", str(second))
    assert err.splitlines() == [
        f"headroom: {first}:9: modee: there is no field modee; did you mean mode or model? (unknown-field)",
        f"headroom: {first}:7: name: already said on line 3",
        f"headroom: {first}:8: model: already said on line 4",
        f"headroom: {second}:1: unknown kind 'servic'; did you mean service or device?",
    ]
    assert status == Exit.USAGE


def test_a_wrong_field_hides_no_wrong_reference(world: World, headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SERVICE.replace("latency_ms", "latncy_ms").replace("resnet50", "resnet5") + "policy: 7\n")
    assert headroom("apply", "-f", str(file))[2].splitlines()[:-1] == [
        f"headroom: {file}:5: slo.latncy_ms: there is no field latncy_ms; did you mean latency_ms? (unknown-field)",
        f"headroom: {file}:7: policy: must be text; what YAML reads as another value stands in quotes (string-type)",
        f"headroom: {file}:4: model: there is no model resnet5; did you mean resnet50? (reference-unknown)",
    ]
    # A project's token hears of no other project whether it is there.
    document = {"project": "other", "name": "x", "model": "resnet5", "modee": 1}
    for project, pointers in (("other", ["/modee"]), (OWN, ["/modee", "/model"])):
        asked = {"documents": [{"kind": "service", "document": {**document, "project": project}}]}
        (line,) = world.call("POST", "/v1/checks", "own operator", plain=asked).json()["items"]
        assert [fault["pointer"] for fault in line["faults"] if fault["code"] != "missing"] == pointers


def test_labels_are_chosen_by_and_changed_as_files_write_them(world: World, headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SERVICE)
    headroom("apply", "-f", str(file))
    assert headroom("patch", "service", f"{OWN}/one", "-p", '{"labels": {"team": "a"}}')[0] == 0
    # A name that one project alone uses needs no project.
    assert "key: team\n  value: a" in headroom("get", "service", "one", "-o", "yaml")[1]
    assert headroom("get", "service", "two")[0] == Exit.NOT_FOUND
    assert headroom("get", "services", "-l", "team!=a")[2].startswith(
        "headroom: --label: 'team!=a' must be KEY or KEY=VALUE"
    )
    # A map is merged like the rest of the patch, numbers and words of YAML are text, and nothing else is.
    patched = ("patch", "service", f"{OWN}/one", "-p")
    assert headroom(*patched, "labels: {team: null, tier: 1, gpu: true}")[0] == 0
    assert headroom(*patched, "labels: {tier: 2}")[0] == 0
    stood = [{"key": "tier", "value": "2"}, {"key": "gpu", "value": "true"}]
    assert world.call("GET", f"/v1/services/{OWN}/one").json()["labels"] == stood
    assert headroom(*patched, "labels: {tier: [3]}")[2] == (
        "headroom: /labels/0/value: must be text; what YAML reads as another value stands in quotes (field-invalid)\n"
    )
    file.write_text(f"{SERVICE}labels: {{team: }}\n")
    assert headroom("apply", "-f", str(file))[2].startswith(f"headroom: {file}:7: labels.team: must be text")
    words = ("task", "submit", "resnet50", "--inputs", "9", "--min-rate", "1", "--project", OWN, "--label")
    assert headroom(*words, "team=b")[0] == 0
    assert "resnet50" in headroom("get", "tasks", "-l", "team=b")[1]
    assert headroom(*words, "team")[2].startswith("headroom: --label takes KEY=VALUE, got 'team'")


def test_documents_of_one_file_may_name_each_other(world: World, headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    project = f"kind: project\nname: fresh\n---\n{SERVICE.replace(OWN, 'fresh')}"
    file.write_text(project)
    events = len(world.call("GET", "/v1/events?limit=500").json()["items"])
    assert headroom("apply", "--dry-run", "-f", str(file))[:2] == (
        0, "created    project/fresh\ncreated    service/fresh/one\n",
    )  # fmt: skip
    assert headroom("diff", "-f", str(file))[0] == Exit.FAILED
    assert world.call("GET", "/v1/projects/fresh").status_code == 404
    assert len(world.call("GET", "/v1/events?limit=500").json()["items"]) == events
    # What is refused is not blamed again on whoever names it.
    file.write_text(project.replace("name: fresh\n---", "name: fresh\nquota_gpu: 3\n---"))
    _, _, err = headroom("apply", "-f", str(file))
    assert [line.split(": ", 2)[2] for line in err.splitlines()[:-1]] == [
        "quota_gpu: there is no field quota_gpu; did you mean quota_gpus? (unknown-field)"
    ]
    file.write_text(project)
    assert headroom("apply", "-f", str(file))[0] == 0
    assert headroom("diff", "-f", str(file))[:2] == (0, "no differences\n")
    file.write_text(project.replace("latency_ms: 100", "latency_ms: 2e2"))
    status, out, _ = headroom("diff", "-f", str(file))
    assert (status, out.splitlines()[1].split()) == (1, ["service/fresh/one", "/slo/latency_ms", "100", "200"])
    file.write_text(f"{project}labels: {{team: a}}\n")
    assert '[{"key": "team", "value": "a"}]' in headroom("diff", "-f", str(file))[1]


def test_more_than_can_be_checked_is_not_sent(world: World, headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"kind": "project", "name": f"many-{number}"} for number in range(2001)]))
    status, out, err = headroom("apply", "-f", str(file))
    assert (status, out) == (Exit.USAGE, "")
    assert err.startswith(
        "headroom: 2,001 documents are more than the 2,000 that are checked at once: apply them in parts"
    )
    assert world.call("GET", "/v1/projects/many-0").status_code == 404


def test_a_name_that_no_project_has_is_told_the_nearest(headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SERVICE)
    assert headroom("apply", "-f", str(file))[0] == 0
    status, _, err = headroom("get", "service", "onee")
    assert (status, err) == (Exit.NOT_FOUND, "headroom: no project has a service 'onee'; did you mean one?\n")
    for words in (("get",), ("delete",), ("edit",), ("patch", "-p", "{priority: 1}")):
        status, _, err = headroom(*words, "service", f"{OWN}/onee")
        assert (status, err.partition(" (")[0]) == (
            Exit.NOT_FOUND, f"headroom: there is no service {OWN}/onee; did you mean {OWN}/one?",
        )  # fmt: skip
    for word, status in (("x", Exit.USAGE), ("ffff", Exit.NOT_FOUND)):
        assert headroom("diff", word)[0] == status
    unfit = (
        "headroom: 'zzzz' must be four or more of the digits (0-9, a-f) that a plan's id begins with (field-invalid)\n"
    )
    for verb in (("approve",), ("reject",), ("diff",), ("get", "plan")):
        assert headroom(*verb, "zzzz") == (Exit.USAGE, "", unfit)


def test_what_can_hardly_be_meant_is_warned_of(world: World, headroom: Headroom, tmp_path: Path) -> None:
    world.joined()
    file = tmp_path / "a.yaml"
    absurd = SERVICE.replace("latency_ms: 100", "latency_ms: 0.001").replace("declared: 10", "declared: 1e9")
    large = SERVICE.replace("one", "two").replace("resnet50", "large")
    chat = SERVICE.replace("one", "three").replace(
        "latency_ms: 100", "kind: tokens, first_token_ms: 9e3, inter_token_ms: 900"
    )
    chat += "tokens: {input_tokens_mean: 10, output_tokens_mean: 10, input_tokens_p99: 1000}\n"
    weights = "kind: model\nname: large\nfamily: f\nparameters_million: 7e4\nmemory_mib_weights: 134571\n"
    file.write_text(
        f"{absurd}---\n{large}---\n{chat}---\n{weights}---\nkind: power-cap\nscope: node\nsubject: a\nlimit_w: 1\n"
    )
    status, out, err = headroom("apply", "-f", str(file))
    assert (status, len(out.splitlines())) == (0, 5), err
    told = {line.rsplit("(", 1)[1]: line for line in err.splitlines()}
    assert sorted(told) == [
        "cap-below-idle)", "lengths-contradict)", "memory-too-small)", "rate-unservable)", "slo-unreachable)",
        "tokens-unknown)",
    ]  # fmt: skip
    assert told["slo-unreachable)"].startswith(f"warning: {file}:5: slo.latency_ms: 0.001 ms is less than the best")
    assert all(line.startswith(f"warning: {file}:") for line in told.values())
    status, out, err = headroom("patch", "service", f"{OWN}/one", "-p", "{slo: {latency_ms: 0.002}}")
    assert (status, out) == (0, f"updated    service/{OWN}/one\n")
    assert err.startswith("warning: slo.latency_ms: 0.002 ms is less than the best")
    assert err.endswith("(rate-unservable)\n")
    (best,) = re.findall(r"answers within ([0-9.]+) ms", told["slo-unreachable)"])
    for slo, warned in (
        ({"latency_ms": 0.95 * float(best)}, True),
        ({"latency_ms": 1.05 * float(best)}, False),
        ({"latency_ms": 0.95 * float(best), "scope": "execution"}, False),
        ({"kind": "deadline", "deadline_s": 0.95e-3 * float(best)}, True),
    ):
        document = {"project": OWN, "name": "one", "model": "resnet50", "slo": slo, "rate_rps_declared": 10}
        answer = world.call("PUT", f"/v1/services/{OWN}/one", plain=document)
        assert ("slo-unreachable" in answer.headers.get("headroom-warnings", "")) is warned, (slo, answer.text)
    answer = world.call("PUT", "/v1/power-caps/node/a", plain={"scope": "node", "subject": "a", "limit_w": 2})
    assert "cap-below-idle" in answer.headers["headroom-warnings"]
    answer = world.call("PUT", "/v1/power-caps/node/a", plain={"scope": "node", "subject": "a", "limit_w": 200})
    assert "headroom-warnings" not in answer.headers


def test_tokens_that_nothing_can_promise_are_warned_of(world: World) -> None:
    world.joined()
    small = {"name": "tiny-llm", "family": "llama", "parameters_million": 1000, "memory_mib_weights": 2000}
    small["kv_cache_mib_per_token"] = 0.03
    assert world.call("PUT", "/v1/models/tiny-llm", plain=small).status_code == 201
    kept = {"kind": "tokens", "first_token_ms": 9e3, "inter_token_ms": 900, "percentile": 95}
    usual = {"input_tokens_mean": 100, "output_tokens_mean": 50}
    for slo, tokens, rate_rps, warned in (
        ({}, {}, 0.1, ""),
        ({"first_token_ms": 0.001}, {}, 0.1, "/slo/first_token_ms: slo-unreachable"),
        ({"inter_token_ms": 0.001}, {}, 0.1, "/slo/inter_token_ms: slo-unreachable"),
        ({}, {}, 1e9, "/rate_rps_declared: rate-unservable"),
        ({}, {"output_tokens_mean": 1e7}, 0.1, "/tokens: memory-too-small"),
    ):
        document = {"project": OWN, "name": "llm", "model": "tiny-llm", "rate_rps_declared": rate_rps}
        document |= {"slo": kept | slo, "tokens": usual | tokens}
        answer = world.call("PUT", f"/v1/services/{OWN}/llm", plain=document)
        told = json.loads(answer.headers.get("headroom-warnings", "[]"))
        assert ", ".join(f"{item['pointer']}: {item['code']}" for item in told) == warned, answer.text


def test_a_task_that_cannot_end_in_time_is_warned_of(world: World, headroom: Headroom, tmp_path: Path) -> None:
    """The first request of all is warned, too: nobody has asked this process what is believed."""
    world.joined()
    wish = ("task", "submit", "resnet50", "--inputs", "1000000000000", "--deadline", "60s", "--project", OWN)
    status, out, err = headroom(*wish, "--name", "submitted")
    assert (status, out) == (0, f"{OWN}/submitted\n")
    assert err.startswith("warning: slo: 1.667e+10 requests/s are more than all devices that may serve it")
    assert len(err.splitlines()) == 1
    file = tmp_path / "a.yaml"
    slo = "slo: {kind: deadline, deadline_s: 60}"
    task = f"kind: task\nproject: {OWN}\nname: NAME\nmodel: resnet50\n{slo}\ninputs_total: "
    file.write_text(f"{task.replace('NAME', 'large')}1000000000000\n---\n{task.replace('NAME', 'small')}1\n")
    status, out, err = headroom("apply", "-f", str(file))
    assert (status, len(out.splitlines())) == (0, 2)
    assert err.startswith(f"warning: {file}:5: slo: 1.667e+10 requests/s are more than all devices that may serve it")
    assert len(err.splitlines()) == 1
    plain = {"project": OWN, "model": "resnet50", "slo": {"kind": "deadline", "deadline_s": 60}, "inputs_total": 10**12}
    first, again = (
        world.call("POST", "/v1/tasks", plain=plain, headers={"Idempotency-Key": "once"}).headers for _ in range(2)
    )
    assert "rate-unservable" in again["headroom-warnings"] == first["headroom-warnings"]
    assert again["idempotency-replayed"] == "true"


def test_what_a_promise_says_in_vain_is_warned_of(headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    chat = "{kind: tokens, first_token_ms: 9e3, inter_token_ms: 900, percentile: 100, scope: execution}"
    floor = "{kind: throughput, throughput_rps_min: 5, scope: execution}"
    slos = ("{latency_ms: 100, percentile: 99.995}", "{latency_ms: 100, scope: execution}", floor, chat)
    texts = [SERVICE.replace("one", f"s{at}").replace("{latency_ms: 100}", slo) for at, slo in enumerate(slos)]
    file.write_text("---\n".join(texts) + "tokens: {input_tokens_mean: 10, output_tokens_mean: 10}\n")
    status, out, err = headroom("apply", "-f", str(file))
    assert (status, len(out.splitlines())) == (0, 4), err
    vain = "slo.scope: an SLO of kind {} covers no execution alone: this is not read (scope-unread)"
    assert sorted(line.removeprefix(f"warning: {file}:") for line in err.splitlines()) == [
        f"19: {vain.format('throughput')}",
        "26: slo.percentile: 100 is planned as 99.99: no plan promises every request (percentile-unplanned)",
        f"26: {vain.format('tokens')}",
        "5: slo.percentile: 99.995 is planned as 99.99: no plan promises every request (percentile-unplanned)",
    ]


def test_a_pool_that_names_what_nobody_knows_is_warned_of(world: World, headroom: Headroom, tmp_path: Path) -> None:
    world.joined()
    file = tmp_path / "a.yaml"
    many = ", ".join(f"n{number:05}" for number in range(2000))
    file.write_text(
        "kind: policy\nname: edge\npool:\n  gpu_types: [t4, t44]\n  devices: [GPU-a-0, GPU-z-0]\n"
        f"  nodes: [a, late, {many}]\n---\nkind: node\nid: late\n"
    )
    status, out, err = headroom("apply", "-f", str(file))
    assert (status, len(out.splitlines())) == (0, 2), err
    assert sorted(line.removeprefix(f"warning: {file}:") for line in err.splitlines()) == [
        "4: pool.gpu_types: there is no GPU type t44 (pool-unknown)",
        "5: pool.devices: there is no device GPU-z-0 (pool-unknown)",
        "6: pool.nodes: there is no node n00000, n00001, n00002 and 1,997 more (pool-unknown)",
    ]


def test_gpus_that_would_be_free_for_want_of_a_price_are_warned_of(
    world: World, headroom: Headroom, tmp_path: Path
) -> None:
    world.joined()
    file = tmp_path / "a.yaml"
    free = "its GPUs are planned and billed as free (price-missing)"
    for kind, warned in (("spot", True), ("on_demand", False)):
        file.write_text(f"kind: node\nid: a\nprice_kind: {kind}\n---\nkind: policy\nname: edge\nprice_kind: {kind}\n")
        status, _, err = headroom("apply", "-f", str(file))
        assert (status, sorted(line.removeprefix(f"warning: {file}:") for line in err.splitlines())) == (
            0,
            [
                f"3: price_kind: t4 has no {kind} price in default: {free}",
                f"7: price_kind: t4 has no {kind} price: {free}",
            ]
            if warned
            else [],
        )


def test_a_project_checks_its_own_only(world: World) -> None:
    asked = [
        {"kind": "service", "document": {"project": "other", "name": "a"}},
        {"kind": "project", "document": {"name": OWN}},
        {"kind": "service", "document": {
            "project": "other", "name": "a", "model": "resnet50", "slo": {"latency_ms": 9}, "rate_rps_declared": 1,
        }},
    ]  # fmt: skip
    found = world.call("POST", "/v1/checks", "own operator", plain={"documents": asked}).json()["items"]
    assert [line["outcome"] for line in found] == 3 * ["refused"]
    assert [line["faults"][0]["code"] for line in found] == ["missing", "forbidden", "not-found"]


def test_a_document_is_edited_while_it_stands(
    world: World, headroom: Headroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SERVICE)
    headroom("apply", "-f", str(file))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("VISUAL", raising=False)

    def edited(script: str) -> tuple[int, str, str]:
        monkeypatch.setenv("EDITOR", f"sed -i {script}")
        return headroom("edit", "service", f"{OWN}/one")

    assert edited("s/zzz/y/")[:2] == (0, f"unchanged  service/{OWN}/one\n")
    assert edited("'s/priority: 100/priority: 90/'")[:2] == (0, f"updated    service/{OWN}/one\n")
    assert world.call("GET", f"/v1/services/{OWN}/one").json()["priority"] == 90
    assert not list(tmp_path.glob("headroom-*"))
    status, _, err = edited("'s/^priority/prioritty/'")
    (kept,) = tmp_path.glob("headroom-*")
    assert (status, f"nothing was changed; your text is in {kept}" in err) == (Exit.USAGE, True)
    assert "prioritty: there is no field prioritty; did you mean priority?" in err
    assert "prioritty: 90" in kept.read_text()
    kept.unlink()
    real = world.call("GET", f"/v1/services/{OWN}/one").json()

    def slowly(text: str) -> Path:
        """Somebody else is faster."""
        world.call("PUT", f"/v1/services/{OWN}/one", plain=real | {"priority": 3})
        kept.write_text(text.replace("90", "91"))
        return kept

    monkeypatch.setattr("app.cli.declare._edited", slowly)
    assert edited("x")[0] == Exit.CONFLICT
    assert world.call("GET", f"/v1/services/{OWN}/one").json()["priority"] == 3
    assert "priority: 91" in kept.read_text()


def test_tables_come_as_csv_names_and_wide(
    world: World, headroom: Headroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.call("PUT", "/v1/projects/p", plain={"name": "p", "description": "=HYPERLINK(1)"})
    status, out, _ = headroom("get", "project", "p", "-o", "csv")
    head, line = csv.reader(out.splitlines())
    assert (status, dict(zip(head, line, strict=True))["description"]) == (0, "'=HYPERLINK(1)")
    assert headroom("get", "projects", "-o", "name")[1].splitlines() == [
        "project/default", f"project/{OWN}", "project/other", "project/p",
    ]  # fmt: skip
    assert "environment_allowed" not in headroom("get", "models", "-o", "wide")[1]
    assert "kv_cache_mib_per_token" in headroom("get", "models", "-o", "wide")[1].splitlines()[0]
    assert headroom("--version")[:2] == headroom("version")[:2]
    changed = {"name": "p", "quota_gpus": 1}
    monkeypatch.setattr("time.sleep", lambda _: world.call("PUT", "/v1/projects/p", plain=changed))
    lines = headroom("get", "projects", "--watch", "--looks", "2", "-o", "name")[1].splitlines()
    assert lines[4:] == ["project/p"]


def test_labels_choose_and_budgets_are_documents(world: World, headroom: Headroom, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        f"{SERVICE}labels: {{team: a, tier: '1'}}\n---\n{SERVICE.replace('one', 'two')}labels: {{team: b}}\n---\n"
        f"kind: project\nname: {OWN}\nlabels: {{team: c}}\n---\n"
        f"kind: budget\nname: own\nproject: {OWN}\nusd_per_month: 10\n"
    )
    assert headroom("apply", "-f", str(file))[0] == 0
    # As what is told once it is at risk.
    told = world.call("GET", "/v1/events?subject=budgets/own").json()["items"]
    assert [(each["name"], each["project"]) for each in told] == [("budget.created", OWN)]
    for words, found in (
        (("-l", "team=a"), ["one"]), (("-l", "team"), ["one", "two"]), (("-l", "team=a", "-l", "tier=1"), ["one"]),
        (("-l", "team=a", "-l", "tier=2"), []), (("-l", "tea"), []),
    ):  # fmt: skip
        said = headroom("get", "services", "-o", "name", *words)[1].splitlines()
        assert said == [f"service/{OWN}/{name}" for name in found], words
    assert headroom("get", "projects", "-o", "name", "-l", "team=c")[1] == f"project/{OWN}\n"
    assert headroom("get", "models", "-l", "team=c")[0] == Exit.USAGE
    assert headroom("get", "plans", "-l", "team=c")[0] == Exit.USAGE
    assert world.call("GET", "/v1/services?label==x").status_code == 422
    assert world.call("GET", "/v1/nodes?label=team%3D%3Cb%3E").json()["items"] == []
    status, out, _ = headroom("budget")
    assert (status, out.splitlines()[1].split()) == (0, ["own", OWN, "$10.00", "$0.00", "$0.00", "$0.00", "kept"])
    assert headroom("delete", "project", OWN)[0] == Exit.CONFLICT
    file.write_text(SERVICE + "labels:\n" + "".join(f"  k{number}: v\n" for number in range(33)))
    status, _, err = headroom("apply", "-f", str(file))
    assert (status, "labels may list 32 at most, got 33" in err) == (Exit.USAGE, True)
    node = {"id": "n", "labels": [{"key": f"k{number}", "value": "v"} for number in range(33)]}
    assert world.call("PUT", "/v1/nodes/n", plain=node).json()["errors"][0]["pointer"] == "/labels"


def test_money_is_asked_for_by_span_and_written_as_csv(world: World, headroom: Headroom) -> None:
    status, out, _ = headroom("report", "cost", "--from", "2026-11-01", "--to", "2026-11-02T00:30", "-o", "json")
    told = json.loads(out)
    assert (status, told["start"], told["end"]) == (0, "2026-11-01T00:00:00+00:00", "2026-11-02T00:30:00+00:00")
    header = "key,usd,start,end,accounting,accounted_until\n"
    assert headroom("report", "cost", "--last", "1month", "--by", "label:team", "-o", "csv")[:2] == (0, header)
    status, out, _ = headroom("report", "focus", "--last", "2weeks")
    assert (status, out.split(",")[0], len(out.splitlines())) == (0, "BilledCost", 1)
    for words in (("--by", "label"), ("--by", "node:x"), ("--by", "servic"), ("--last", "1 moon"), ("--from", "soon"),
                  ("--from", "2026-11-01", "--last", "1d"), ("--last", "99999y")):  # fmt: skip
        assert headroom("report", "cost", *words)[0] == Exit.USAGE, words
    assert headroom("report", "focus", "--last", "3y")[0] == Exit.USAGE
    for kind in ("cost", "focus"):
        status, _, err = headroom("report", kind, "--project", "dmo")
        assert (status, "there is no project dmo; did you mean demo?" in err) == (Exit.NOT_FOUND, True), err
    assert world.call("GET", "/v1/costs?by=label").json()["errors"][0]["pointer"] == "query:label"


def test_a_month_back_is_the_calendars() -> None:
    assert span_of(None, "2026-03-31", "1month") == (
        datetime(2026, 2, 28, tzinfo=UTC),
        datetime(2026, 3, 31, tzinfo=UTC),
    )
    assert span_of(None, "2026-01-15T08:00", "2months")[0] == datetime(2025, 11, 15, 8, tzinfo=UTC)
