"""The chain of planners: the first plan that verifies is taken.

Owns what happens when a planner fails, has no plan, or is refuted by the verifier: it gives way to the next, and every
attempt is remembered. It refuses to say where planners run, what is done at the chain's end and what a plan is for:
cycles, simulations and plans made from files ask alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from solvers.cycle.gate import fatal_codes
from solvers.cycle.record import Attempt
from solvers.domain.evidence import Finding, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan, Proposal
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError
from solvers.planners.base import PlanRequest
from solvers.verify.checks import is_fatal

Propose = Callable[[str, PlanRequest], Proposal]
Verify = Callable[[Snapshot, Plan, tuple[WorkloadId, ...]], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the chain ended with: the accepted proposal, or the first one that was refuted, or none."""

    attempts: tuple[Attempt, ...]
    proposal: Proposal | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def plan(self) -> Plan | None:
        """The plan of it, sound or refuted."""
        return self.proposal.plan if self.proposal is not None else None

    @property
    def sound(self) -> bool:
        """Whether there is a plan and nothing fatal speaks against it."""
        return self.plan is not None and not is_fatal(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How planners are run and plans are verified here. `propose` raises EngineError for a planner that fails."""

    propose: Propose
    verify: Verify
    reporter: Reporter


def try_chain(asking: Asking, planners: Iterable[str], request: PlanRequest) -> Chosen:
    """The first plan of the chain that verifies; else the first refuted one, so that people can see what was wrong with
    it.
    """
    attempts: list[Attempt] = []
    refuted: Chosen | None = None
    for planner in planners:
        attempt, proposal = _ask(asking, planner, request)
        plan = proposal.plan if proposal is not None else None
        if proposal is None or plan is None:
            attempts.append(attempt)
            continue
        findings = asking.verify(request.snapshot, plan, request.movable)
        if not is_fatal(findings):
            return Chosen((*attempts, attempt), proposal, findings)
        attempts.append(replace(attempt, error=f"refuted: {fatal_codes(findings)}"))
        asking.reporter.event("plan.refuted", planner=planner, findings=fatal_codes(findings))
        refuted = refuted or Chosen((), proposal, findings)
    if refuted is None:
        return Chosen(tuple(attempts))
    return replace(refuted, attempts=tuple(attempts))


def _ask(asking: Asking, planner: str, request: PlanRequest) -> tuple[Attempt, Proposal | None]:
    try:
        proposal = asking.propose(planner, request)
    except EngineError as error:
        asking.reporter.event("planner.failed", planner=planner, error=error.message)
        return Attempt(planner=planner, status="failed", error=error.message), None
    return Attempt(planner=planner, status=proposal.status.value), proposal
