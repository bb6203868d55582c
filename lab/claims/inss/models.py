"""InSS' latency model on public measurements: sixteen runs of a network alone, five beside others, the rest held out.

Owns the protocol of AC-INS-05 (the benchmark of predictors prints the same numbers). Predictors are as they are
everywhere else: nothing is tuned here. Without the folder of public data the claim cannot be judged and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort
from lab.measured import igniter_v100
from lab.measured.known import facts_for
from lab.measured.pairs import known_alone
from solvers.domain.arrays import Whole
from solvers.models.base import GroupSamples, Samples
from solvers.models.suite import Suite

SEED = 7
SOLO_BATCHES, SOLO_SHARES_PCT = (1, 4, 8, 16), (20, 40, 60, 80)
PAIRS = 5
"""Of each network."""
ERROR_PCT, PART_OF_NI = 4.0, 0.5
OURS, BLIND, BELIEF = "inss", "inss-ni", "headroom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Mean relative errors on held-out members of pairs, in percent, by predictor."""

    by_name: dict[str, float]
    members: int

    @property
    def met(self) -> bool:
        """Below the paper's figure, or where the table is noisier, well below what blindness to neighbours costs."""
        ours = self.by_name[OURS]
        return ours < ERROR_PCT or ours <= PART_OF_NI * self.by_name[BLIND]

    @property
    def told(self) -> str:
        """In one line."""
        each = ", ".join(f"{name} {error:.2f} %" for name, error in self.by_name.items())
        return f"{each} on {self.members} held-out members"


@lru_cache(maxsize=4)
def errors(data: Path, *, sixteen: bool = True) -> Errors:
    """Of all predictors. Without `sixteen`, everything that was measured alone is known to them."""
    solo = igniter_v100.read(data)
    pairs, _ = known_alone(solo, igniter_v100.read_pairs(data))
    facts, count = facts_for(solo.queries), int(pairs.groups.group[-1]) + 1
    numbers = _profiled(pairs)
    train = pairs.take_groups(numbers)
    test = pairs.take_groups(np.setdiff1d(np.arange(count), numbers))
    known = _sixteen(solo) if sixteen else solo
    found = {}
    for name in (OURS, BLIND, BELIEF):
        mean = Suite.fresh(name, facts, SEED).fit(known, train).predict_groups(test.groups).mean
        found[name] = 100.0 * float(np.nanmean(np.abs(mean / test.latency_ms - 1.0)))
    return Errors(by_name=found, members=len(test.latency_ms))


def _sixteen(solo: Samples) -> Samples:
    queries = solo.queries
    return solo.take(np.isin(queries.batch, SOLO_BATCHES) & np.isin(queries.share_pct, SOLO_SHARES_PCT))


def _profiled(pairs: GroupSamples) -> Whole:
    """Numbers of the pairs that are measured: so many of each network, by chance."""
    rng = np.random.default_rng([SEED, 8])
    chosen: set[int] = set()
    groups = pairs.groups
    for index in range(len(groups.members.models)):
        numbers = np.unique(groups.group[groups.members.model == index])
        chosen |= set(rng.permutation(numbers)[:PAIRS].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def judge_05(effort: Effort) -> ClaimEvidence:
    """On iGniter's table; where it is missed, with everything measured alone known."""
    data = effort.data or Path("../shared/data")
    if not (data / igniter_v100.FOLDER).is_dir():
        return ClaimEvidence(
            measured="nothing",
            status=ClaimStatus.NOT_REPRODUCED,
            note=f"there is no public data in {data}: set HEADROOM_DATA",
        )
    seen = errors(data)
    if seen.met:
        return ClaimEvidence(measured=seen.told, status=ClaimStatus.PASS)
    known = errors(data, sixteen=False)
    told = ", ".join(f"{name} {error:.2f} %" for name, error in known.by_name.items())
    note = (
        f"ablation: with all {len(igniter_v100.read(data))} points alone instead of sixteen a network: {told}; sixteen "
        "points are too few for a regression between them here, five pairs suffice"
    )
    return ClaimEvidence(measured=seen.told, status=ClaimStatus.NOT_REPRODUCED, note=note)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="AC-INS-05",
        kind=ClaimClass.STATISTICAL,
        stated="16 runs alone and 5 in company a network: error < 4 % on the rest, or at most half of InSS-ni's",
        judge=judge_05,
    ),
)
