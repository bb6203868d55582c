"""A plan as text for reviewers: one line per replica with its main reason, what was rejected, what stays unplaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from solvers.domain.evidence import Fact, Finding, Reason
from solvers.domain.plan import Assignment, Proposal


def render(proposal: Proposal, findings: Iterable[Finding]) -> str:
    """The whole answer as text that ends with a new line."""
    plan = proposal.plan
    assert plan is not None
    lines = [f"planner {plan.planner} {plan.planner_version}, status {proposal.status.value}, parent {plan.parent}", ""]
    for item in plan.assignments:
        lines.extend(_assignment(item))
    lines.append("")
    for setting in plan.settings:
        lines.append(
            f"{setting.device}: {setting.mode.value}, clock {setting.clock_mhz_sm or 'default'},"
            f" power limit {setting.power_limit_w or 'default'}"
        )
    lines.append("")
    for unplaced in plan.unplaced:
        lines.append(
            f"unplaced {unplaced.kind.value} {unplaced.workload}: short {_number(unplaced.rate_rps_short)} rps"
        )
        lines.extend(f"    {_reason(reason)}" for reason in unplaced.reasons)
    objective = plan.objective
    lines += [
        "",
        f"unserved {_number(objective.unserved)}, slo risk {_number(objective.slo_risk)},"
        f" cost {_number(objective.cost_usd_per_h)} $/h, churn {_number(objective.churn)} s,"
        f" imbalance {_number(objective.imbalance)}",
    ]
    lines.extend(_reason(reason) for reason in proposal.reasons)
    lines.extend(
        f"finding {item.severity.value} {item.code.value} {item.subject}{_facts(item.facts)}" for item in findings
    )
    return "\n".join(lines) + "\n"


def _assignment(item: Assignment) -> Iterator[str]:
    latency = "no latency" if item.latency_ms_planned is None else f"{_number(item.latency_ms_planned)} ms"
    yield (
        f"{item.replica} [{item.kind.value}] {item.model} on {item.device}: {item.share_pct_sm} % SM,"
        f" {item.memory_mib_limit} MiB, batch {item.batch}"
        f" ({item.envelope.batch_min} to {item.envelope.batch_max}), {latency},"
        f" {_number(item.capacity_rps)} rps, {_number(item.power_w_planned)} W"
    )
    yield from (f"    {_reason(reason)}" for reason in item.reasons)


def _reason(reason: Reason) -> str:
    return f"{reason.code.value} {reason.subject}{_facts(reason.facts)}"


def _facts(facts: Iterable[Fact]) -> str:
    text = ", ".join(
        f"{fact.name} {fact.value if isinstance(fact.value, str) else _number(fact.value)}" for fact in facts
    )
    return f" ({text})" if text else ""


def _number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")
