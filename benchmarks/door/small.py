"""Small pictures against the true optimum: `python -m benchmarks.door.small [--cases 400] [--units 700]`.

Each case is planned as `headroom plan` plans a file (the same chain, in this process, with counted work), verified, and
held against an integer programme over every pattern. Told are the share within half a percent of the optimum, the
worst, how far stated gaps are above the true ones, bounds above the optimum and plans that the verifier refuses; cases
whose optimum was not proven in time are told apart. Writes benchmarks/results/small.json where all are run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from app.services.whatif.made import Wish, planned, request_of
from benchmarks.door.exact import Optimum, optimum
from benchmarks.instances.small import rule_of, small
from solvers.cycle.attempts import Asking
from solvers.cycle.record import Lane
from solvers.domain.evidence import FindingCode, SilentReporter
from solvers.planners.registry import propose
from solvers.verify.checks import verify

RESULTS = Path(__file__).resolve().parents[1] / "results" / "small.json"
CASES, UNITS, DEADLINE_S, EXACT_S = 400, 700, 60.0, 20.0
NEAR_PCT, FAR_PCT = 0.5, 3.0
ASKING = Asking(propose=propose, verify=verify, reporter=SilentReporter())
DUST = 1e-6
WORST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One plan beside the optimum. Percentages are of the optimum."""

    seed: int
    rule: str
    proven: bool
    unserved: float
    unserved_least: float
    usd_per_h: float
    optimum_usd_per_h: float
    stated_gap_pct: float | None
    bound_usd_per_h: float | None
    refused: bool
    huddled: bool
    """Whether somebody is in fewer failure domains than asked although everybody could be in enough."""
    cpu_s: float

    @property
    def serves(self) -> bool:
        """Whether it leaves as little unserved as can be, within half a percent."""
        return self.unserved <= self.unserved_least * (1 + NEAR_PCT / 100) + 1e-3

    @property
    def over_pct(self) -> float:
        """Dearer than the optimum, where both serve everybody; where not everybody can be, more unserved."""
        if self.unserved_least > 1e-3:
            return 100 * (self.unserved / self.unserved_least - 1)
        if not self.serves or self.huddled:
            return 100.0
        return 100 * (self.usd_per_h / self.optimum_usd_per_h - 1) if self.optimum_usd_per_h > 0 else 0.0

    @property
    def bound_is_false(self) -> bool:
        """Whether the stated bound is above the cost of a plan that serves as much."""
        if self.bound_usd_per_h is None or self.unserved < self.unserved_least - 1e-3 or not self.serves:
            return False
        return self.proven and self.bound_usd_per_h > self.optimum_usd_per_h * (1 + DUST) + DUST

    @property
    def gap_above_pct(self) -> float | None:
        """By how many points the stated gap is above the true one."""
        return None if self.stated_gap_pct is None else self.stated_gap_pct - max(0.0, self.over_pct)


def held(seed: int, units: int = UNITS, exact_s: float = EXACT_S) -> Held | None:
    """Plan one case and find its optimum; None where the time ended before there was any."""
    picture = small(seed)
    wish = Wish(lane=Lane.SHADOW, deadline_s=DEADLINE_S, work_units=units, seed=1)
    begun_s = time.process_time()
    made = planned(picture, wish, ASKING)
    cpu_s = time.process_time() - begun_s
    best: Optimum | None = optimum(picture, request_of(picture, wish).movable, exact_s)
    if best is None:
        return None
    objective = made.plan.objective
    # What is left for the devices of a plan that earns as much as this one.
    earning_usd = best.usd_per_h - objective.waiting_usd_per_h
    return Held(
        seed=seed,
        rule=rule_of(seed),
        proven=best.proven,
        unserved=objective.unserved,
        unserved_least=best.unserved,
        usd_per_h=objective.cost_usd_per_h,
        optimum_usd_per_h=earning_usd,
        stated_gap_pct=made.plan.gap_pct,
        bound_usd_per_h=made.plan.bound_usd_per_h,
        refused=not made.chosen.sound,
        huddled=best.spread and any(item.code is FindingCode.FAILURE_DOMAINS_SHORT for item in made.chosen.findings),
        cpu_s=cpu_s,
    )


def summary(found: Iterable[Held]) -> dict[str, float]:
    """All of it in numbers."""
    known = [item for item in found if item.proven]
    overs = [item.over_pct for item in known]
    above = [item.gap_above_pct for item in known if item.gap_above_pct is not None and item.unserved_least <= 1e-3]
    return {
        "cases": len(known),
        "within_half_a_percent_pct": round(100 * sum(over <= NEAR_PCT for over in overs) / max(1, len(overs)), 2),
        "above_three_percent": sum(over > FAR_PCT for over in overs),
        "worst_pct": round(max(overs, default=0.0), 3),
        "below_the_optimum": sum(over < -0.01 for over in overs),
        "without_a_bound": sum(item.bound_usd_per_h is None for item in known if item.unserved_least <= 1e-3),
        "gap_above_true_median_points": round(median(above), 2) if above else 0.0,
        "gap_above_true_max_points": round(max(above, default=0.0), 2),
        "bounds_above_the_optimum": sum(item.bound_is_false for item in known),
        "refused_by_the_verifier": sum(item.refused for item in known),
    }


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door.small", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--units", type=int, default=UNITS)
    asked = parser.parse_args()
    found: list[Held] = []
    timed_out = 0
    for seed in range(asked.first, asked.first + asked.cases):
        item = held(seed, asked.units)
        timed_out += item is None or not item.proven
        if item is None:
            continue
        found.append(item)
        if item.over_pct > NEAR_PCT or item.over_pct < -0.01 or item.bound_is_false or item.refused:
            print(
                f"{item.seed:4} {item.rule:16} {item.over_pct:+8.3f} %, unserved {item.unserved:.3f} of "
                f"{item.unserved_least:.3f}, cost {item.usd_per_h:.5f} of {item.optimum_usd_per_h:.5f}, bound "
                f"{item.bound_usd_per_h}{'' if item.proven else ', not proven'}{', REFUSED' if item.refused else ''}"
                f"{', BOUND' if item.bound_is_false else ''}",
                flush=True,
            )
    told = summary(found) | {"not_proven_in_time": timed_out, "units": asked.units}
    print(json.dumps(told, indent=1))
    by_rule = {rule: summary(item for item in found if item.rule == rule) for rule in sorted({i.rule for i in found})}
    worst = sorted(found, key=lambda item: -item.over_pct)[:WORST]
    if asked.cases >= CASES:
        content = {"summary": told, "by_rule": by_rule, "worst": [asdict(item) for item in worst]}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
