"""Alert rules in Prometheus' own hands: none fires over a fleet that is well, each over one that is ill in its way."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = [ROOT / "deploy" / "prometheus" / name for name in ("recording.yml", "alerts.yml")]
MINUTES = 75
"""Longer than any rule waits; longer windows look at what there is."""
pytestmark = pytest.mark.integration

VISION = '{project="vision",service="resnet50"}'
T4 = '{node="a",device="GPU-1"}'


def flat(value: float) -> str:
    return f"{value}+0x{MINUTES}"


def rising(by: float) -> str:
    """By so much each minute."""
    return f"0+{by}x{MINUTES}"


WELL: Mapping[str, str] = {
    'up{job="headroom-api",instance="api:8080"}': flat(1),
    "headroom_database_up": flat(1),
    "headroom_plan_age_seconds": flat(30),
    "headroom_plan_gap_ratio": flat(0.02),
    "headroom_plans_awaiting_approval_seconds": flat(0),
    'headroom_unplaced_workloads{kind="service",waits_for="place"}': flat(0),
    # It has a place as soon as somebody approves.
    'headroom_unplaced_workloads{kind="service",waits_for="approval"}': flat(1),
    # Jobs fill what is spare, and wait where nothing is.
    'headroom_unplaced_workloads{kind="job",waits_for="place"}': flat(2),
    "headroom_replicas_ready": flat(20),
    "headroom_replicas_planned": flat(20),
    "headroom_cycles_last_hour": flat(60),
    "headroom_cycles_stood_in_last_hour": flat(2),
    'headroom_planner_attempts_total{planner="joint",outcome="finished"}': rising(1),
    'headroom_planner_attempts_total{planner="joint",outcome="killed"}': flat(3),
    'headroom_planner_attempts_total{planner="joint",outcome="failed"}': flat(0),
    'headroom_node_up{node="a"}': flat(1),
    # Renewed in time: it never comes near its end.
    'headroom_node_certificate_ends_timestamp_seconds{node="a"}': flat(30 * 86400),
    'headroom_power_watts{scope="rack",subject="r"}': flat(880),
    'headroom_power_cap_watts{scope="rack",subject="r"}': flat(900),
    f"headroom_device_power_watts{T4}": flat(70.5),
    f"headroom_device_power_cap_watts{T4}": flat(70),
    f"headroom_device_healthy{T4}": flat(1),
    f"headroom_device_slow_factor{T4}": flat(1),
    "headroom_partitions_ahead_seconds": flat(100_000),
    "headroom_ledger_age_seconds": flat(150),
    'headroom_lane_age_seconds{lane="reports"}': flat(0.3),
    'headroom_http_requests_total{method="POST",route="/v1/agent/reports",status="429"}': rising(2),
    "headroom_newest_report_age_seconds": flat(2),
    'headroom_queue_age_seconds{queue="outcomes"}': flat(120),
    'headroom_queue_age_seconds{queue="webhooks"}': flat(0),
    f"headroom_service_objective_ratio{VISION}": flat(0.99),
    f"headroom_service_completed_total{VISION}": rising(600),
    f"headroom_service_violations_total{VISION}": rising(1),
    f"headroom_service_unserved_total{VISION}": rising(1),
    # Plans use what an SLO allows.
    f"headroom_service_latency_p99_seconds{VISION}": flat(0.39),
    f"headroom_service_objective_seconds{VISION}": flat(0.4),
    f"headroom_service_cost_usd_per_hour{VISION}": flat(2),
    f"headroom_service_budget_usd_per_hour{VISION}": flat(3),
}
AT_RISK = "HeadroomSloAtRisk"
BURN = ("HeadroomSloBurnsFast", "HeadroomSloBurns", "HeadroomSloBurnsSlowly", "HeadroomSloBudgetSpent", AT_RISK)
VIOLATIONS = f"headroom_service_violations_total{VISION}"
COUNTS = [f"headroom_service_{name}_total{VISION}" for name in ("completed", "violations", "unserved")]
ILL: Mapping[tuple[str, ...], Mapping[str, str]] = {
    # Of 600 requests a minute, six may break the objective.
    BURN: {VIOLATIONS: rising(100)},
    BURN[1:]: {VIOLATIONS: rising(50)},
    BURN[2:]: {VIOLATIONS: rising(25)},
    BURN[3:]: {VIOLATIONS: rising(10)},
    # Of late, so that no longer window minds.
    (AT_RISK,): {VIOLATIONS: "0+1x60 60+20x15"},
    ("HeadroomPlannerFailed",): {'headroom_planner_attempts_total{planner="joint",outcome="killed"}': rising(1)},
    ("HeadroomPlannerStoodIn",): {"headroom_cycles_stood_in_last_hour": flat(30)},
    ("HeadroomNoPlan",): {"headroom_plan_age_seconds": f"0+60x{MINUTES}"},
    ("HeadroomPlanGapLarge",): {"headroom_plan_gap_ratio": flat(0.3)},
    ("HeadroomUnplaced",): {'headroom_unplaced_workloads{kind="service",waits_for="place"}': flat(1)},
    ("HeadroomReplicasMissing",): {"headroom_replicas_ready": flat(19)},
    ("HeadroomApprovalWaits",): {"headroom_plans_awaiting_approval_seconds": f"0+60x{MINUTES}"},
    ("HeadroomBudgetExceeded",): {f"headroom_service_cost_usd_per_hour{VISION}": flat(3.5)},
    ("HeadroomAgentSilent", "HeadroomNodeLost"): {'headroom_node_up{node="a"}': flat(0)},
    ("HeadroomPowerOverCap",): {'headroom_power_watts{scope="rack",subject="r"}': flat(905)},
    ("HeadroomDeviceOverCap",): {f"headroom_device_power_watts{T4}": flat(80)},
    ("HeadroomDeviceUnhealthy",): {f"headroom_device_healthy{T4}": flat(0)},
    ("HeadroomDeviceSlow",): {f"headroom_device_slow_factor{T4}": flat(1.3)},
    ("HeadroomCertificateEnds",): {'headroom_node_certificate_ends_timestamp_seconds{node="a"}': flat(2 * 86400)},
    ("HeadroomApiDown",): {'up{job="headroom-api",instance="api:8080"}': flat(0)},
    ("HeadroomDatabaseDown",): {"headroom_database_up": flat(0)},
    ("HeadroomPartitionsMissing",): {"headroom_partitions_ahead_seconds": flat(3600)},
    ("HeadroomLedgerBehind",): {"headroom_ledger_age_seconds": flat(1000)},
    ("HeadroomReportsTurnedAway",): {
        'headroom_http_requests_total{method="POST",route="/v1/agent/reports",status="429"}': rising(600)
    },
    ("HeadroomReportsWait",): {'headroom_lane_age_seconds{lane="reports"}': flat(6)},
    ("HeadroomNothingReports",): {"headroom_newest_report_age_seconds": flat(200)},
    ("HeadroomLearningBehind",): {'headroom_queue_age_seconds{queue="outcomes"}': flat(4000)},
    ("HeadroomWebhooksWait",): {'headroom_queue_age_seconds{queue="webhooks"}': flat(1000)},
}


def history(name: str, changed: Mapping[str, str], minute: int, *firing: str) -> dict[str, Any]:
    """What fires at a minute of a history."""
    series = {**WELL, **changed}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in firing],
            }
        ],
    }


def tool(*arguments: object) -> str:
    found = shutil.which("promtool")
    assert found, "promtool is missing; on Debian: apt-get install prometheus"
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def tried(tmp_path: Path, *histories: dict[str, Any]) -> None:
    file = tmp_path / "histories.yml"
    content = {"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": list(histories)}
    file.write_text(json.dumps(content))
    tool("test", "rules", file)


def test_rules_and_configuration_are_what_prometheus_takes(tmp_path: Path) -> None:
    tool("check", "rules", *RULES)
    configuration = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    file = tmp_path / "prometheus.yml"
    file.write_text(configuration.replace("/etc/prometheus/", f"{ROOT}/deploy/prometheus/"))
    tool("check", "config", file)


def test_nothing_fires_over_a_fleet_that_is_well(tmp_path: Path) -> None:
    well = history("well", {}, MINUTES - 1)
    (asked,) = well["promql_expr_test"]
    well["promql_expr_test"] = [{**asked, "eval_time": f"{minute}m"} for minute in range(0, MINUTES, 5)]
    tried(tmp_path, well)


def test_each_alert_fires_over_its_own_illness_alone(tmp_path: Path) -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {name for names in ILL for name in names} == alerts, "every rule has its illness"
    assert len(alerts) >= 12
    tried(tmp_path, *(history(" ".join(names), changed, MINUTES - 1, *names) for names, changed in ILL.items()))


def test_what_is_over_pages_nobody_and_what_just_began_is_waited_for(tmp_path: Path) -> None:
    over = {VIOLATIONS: f"0+100x60 6000+1x{MINUTES}"}
    tried(
        tmp_path,
        history("burning", over, 58, *BURN),
        # The hour still looks bad, but the last five minutes do not.
        history("over", over, 70, *BURN[1:-1]),
        history("a silence of a minute", {'headroom_node_up{node="a"}': f"1+0x30 0 1+0x{MINUTES}"}, 31),
        history("silent", {'headroom_node_up{node="a"}': f"1+0x30 0+0x{MINUTES}"}, 34, "HeadroomAgentSilent"),
        history("no request at all", dict.fromkeys(COUNTS, flat(9)), MINUTES - 1),
    )


def test_replicas_that_come_up_and_die_again_are_missing_and_those_of_change_overs_are_not(tmp_path: Path) -> None:
    def ready(*minutes: int) -> dict[str, str]:
        """Again and again."""
        return {"headroom_replicas_ready": " ".join(str(minutes[each % len(minutes)]) for each in range(MINUTES))}

    missing = "HeadroomReplicasMissing"
    since = {"headroom_replicas_ready": f"20+0x30 19+0x{MINUTES}"}
    tried(
        tmp_path,
        history("every other minute", ready(19, 20), MINUTES - 1, missing),
        history("no two of them at once", ready(20, 19, 19), MINUTES - 1, missing),
        history("a change every five minutes", ready(19, 20, 20, 20, 20), MINUTES - 1),
        history("for eight minutes", since, 38),
        history("for twelve minutes", since, 42, missing),
    )


def test_an_alert_says_who_and_what(tmp_path: Path) -> None:
    summary = (
        "vision/resnet50: a month of error budget burns in two days. See headroom explain and the services dashboard."
    )
    burning = history("burning", {VIOLATIONS: rising(100)}, MINUTES - 1, *BURN)
    told = {
        "exp_labels": {"severity": "page", "project": "vision", "service": "resnet50"},
        "exp_annotations": {"summary": summary},
    }
    burning["alert_rule_test"] = [{"eval_time": f"{MINUTES - 1}m", "alertname": BURN[0], "exp_alerts": [told]}]
    tried(tmp_path, burning)


def test_rules_speak_of_metrics_that_exist() -> None:
    exported = "".join((ROOT / "app" / "api" / name).read_text() for name in ("exposition.py", "metrics.py"))
    spoken = {name for rule in rules() for name in re.findall(r"\bheadroom_[a-z0-9_]+", rule["expr"])}
    for name in sorted(spoken):
        stem = re.sub(r"_total$", "", name)
        of_one = re.sub(r"^headroom_(service|device)_", "", stem)
        assert f'"{stem}"' in exported or f'"{of_one}"' in exported, name
