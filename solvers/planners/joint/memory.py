"""What a solve leaves to the next one: patterns, prices, and when everything was last solved.

By names (members by workload and network, kinds by pool and clock, prices by whose they are), so that they survive
whatever comes and goes between two snapshots. What no longer exists is left out; other bytes are as good as none.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern, Prices

KEPT_MAX = 20_000
"""Patterns; the first ones win, so the most useful come first."""
_FORM = "joint-5"
_TAB = "\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the solves before have left."""

    patterns: tuple[Pattern, ...] = ()
    prices: Prices | None = None
    full_at_s: float | None = None
    """Of the snapshot of the last full solve; None: there was none that is known."""


NOTHING = Kept()


def remember(problem: JointProblem, kept: Kept) -> bytes:
    """Its patterns, each once, its prices, and the moment."""
    chosen = list({item.key: item for item in kept.patterns}.values())[:KEPT_MAX]
    full_at_s, usd = kept.full_at_s, {} if kept.prices is None else named(problem, kept.prices)
    kinds = list(_kinds(problem))
    variants = list(_variants(problem))
    store = io.BytesIO()
    np.savez_compressed(
        store,
        form=np.array(_FORM),
        full_at_s=np.array([] if full_at_s is None else [full_at_s], dtype=np.float64),
        kinds=np.array(kinds, dtype=np.str_),
        variants=np.array(variants, dtype=np.str_),
        kind=np.array([item.kind for item in chosen], dtype=np.int32),
        size=np.array([len(item.variants) for item in chosen], dtype=np.int32),
        member=np.array([member for item in chosen for member in item.variants], dtype=np.int32),
        share=np.array([share for item in chosen for share in item.shares_pct], dtype=np.int16),
        priced=np.array(list(usd), dtype=np.str_),
        usd=np.array(list(usd.values()), dtype=np.float64),
    )
    return store.getvalue()


def recall(state: bytes, problem: JointProblem) -> Kept:
    """The moment, and those of the kept patterns that this problem still knows and that keep its rules."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as kept:
            if "form" not in kept or str(kept["form"]) != _FORM:
                return NOTHING
            rows = _rows({name: np.asarray(kept[name]) for name in kept.files}, problem)
            moments = kept["full_at_s"].tolist()
            usd = dict(zip(kept["priced"].tolist(), kept["usd"].tolist(), strict=True))
    except (ValueError, OSError, EOFError, KeyError, IndexError, zipfile.BadZipFile):
        return NOTHING
    judge = Judge(problem)
    judged = judge.judge(rows)
    good = np.flatnonzero(judged.lawful & (judged.rows.variants[:, 0] >= 0))
    return Kept(
        patterns=tuple(judge.patterns(judged.take(good))),
        prices=prices_of(problem, usd) if usd else None,
        full_at_s=moments[0] if moments else None,
    )


def _price_names(problem: JointProblem) -> dict[str, tuple[list[str], Floats]]:
    """By kind of price: whose each is, and of how much it is the price."""
    works, ones = [str(item.id) for item in problem.workloads], np.ones(len(problem.workloads))
    others = {
        "pool_usd": [item.name for item in problem.pools],
        "cap_usd": [item.name for item in problem.caps],
        "quota_usd": [str(name) for name, _ in problem.quotas],
    }
    return {
        "demand_usd": (works, problem.rate_rps),
        **dict.fromkeys(("most_usd", "fewest_usd", "budget_usd"), (works, ones)),
        **{kind: (names, np.ones(len(names))) for kind, names in others.items()},
    }


def named(problem: JointProblem, prices: Prices) -> dict[str, float]:
    """Prices that another problem can read: of one request per second, one device, one watt."""
    return {
        f"{kind}{_TAB}{name}": usd
        for kind, (names, amount) in _price_names(problem).items()
        for name, usd in zip(names, (getattr(prices, kind) / amount).tolist(), strict=True)
        if usd > 0
    }


def prices_of(problem: JointProblem, usd: Mapping[str, float]) -> Prices:
    """Those prices in this problem's numbers; what nobody priced costs nothing. Nothing is shown of them here."""
    return Prices(
        **{
            kind: np.array([usd.get(f"{kind}{_TAB}{name}", 0.0) for name in names], dtype=np.float64) * amount
            for kind, (names, amount) in _price_names(problem).items()
        }
    )


def _rows(kept: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], problem: JointProblem) -> Patterns:
    """Kept patterns in this problem's numbers, those left out that it does not know."""
    kind_of = _kinds(problem)
    variant_of = _variants(problem)
    kinds = np.array([kind_of.get(str(name), -1) for name in kept["kinds"]], dtype=np.int64)
    variants = np.array([variant_of.get(str(name), -1) for name in kept["variants"]], dtype=np.int64)
    size = kept["size"].astype(np.int64)
    width = max((pool.clients for pool in problem.pools), default=1)
    member: Whole = np.full((len(size), max(width, int(size.max(initial=1)))), -1, dtype=np.int64)
    share = np.zeros_like(member)
    inside = np.arange(member.shape[1])[None, :] < size[:, None]
    member[inside] = variants[kept["member"].astype(np.int64)] if len(kept["member"]) else 0
    share[inside] = kept["share"].astype(np.int64)
    kind = kinds[kept["kind"].astype(np.int64)] if len(size) else np.zeros(0, dtype=np.int64)
    known = (kind >= 0) & (~inside | (member >= 0)).all(axis=1) & (size <= width) & (size > 0)
    return Patterns(kind=kind[known], variants=member[known][:, :width], shares_pct=share[known][:, :width])


def _variants(problem: JointProblem) -> dict[str, int]:
    """Variants by name: workload, network, largest batch."""
    return {
        _TAB.join((problem.workloads[item.workload].id, item.model, str(item.batch_max))): number
        for number, item in enumerate(problem.variants)
    }


def _kinds(problem: JointProblem) -> dict[str, int]:
    """Kinds by name: pool, type, clock, and which of the kinds that are alike in these."""
    found: dict[str, int] = {}
    for number, (pool, clock) in enumerate(zip(problem.kind_pool, problem.kind_clock_mhz, strict=True)):
        item = problem.pools[int(pool)]
        after = len(problem.like(int(pool), int(clock))) - problem.like(int(pool), int(clock)).index(number)
        found[_TAB.join((item.name, item.gpu_type, str(int(clock)), str(after)))] = number
    return found
