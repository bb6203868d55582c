"""What a service or task could be, as OLTunes' planner rates it: Eq. 4 to 7 over the options that keep its promise.

The plan's options come with what was measured or is carefully believed, so nothing is rated that the verifier would
refuse; latency and throughput in the score are the predictor's where it has met the model on that type of GPU, else
those beliefs. A task takes as long as all its batches, a service's request as one batch. Each device is to be shared,
so a configuration is first looked for in the part of a device that each of a full group gets; where that is too little
for the promise or the deadline, in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName
from solvers.models.base import Queries
from solvers.planners.draft import Draft
from solvers.policies.oltunes.learned import LearnedSolo
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import MS_PER_S
from solvers.policies.oltunes.scores import (
    Candidates,
    PowerTerms,
    TaskWish,
    best_rows,
    best_types,
    epc_score,
    ever_full,
    run_ms,
    scored,
)
from solvers.problems.choice import Options, replicas_for
from solvers.problems.needs import Need

THRIFT = 1.25
"""Part of a GPU that a service may take over the thriftiest way to serve its rate."""
Rows = NDArray[np.intp]
_NONE: Rows = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuestion:
    """What a service or task wants of its candidates. `inputs` are left to do, None for a service; the deadline is of
    one request of a service, and of all that is left of a task.
    """

    need: Need
    latency_weight: float
    deadline_ms: float
    inputs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """Every option of a need with its score. `small` are those kept in the part of a device that each of a full group
    gets, on the two best types; `any` the same without that bound, on all types. Both by class of devices, best first.
    """

    asked: CandidateQuestion
    score: Floats
    epc: Floats
    latency_ms: Floats
    throughput_rps: Floats
    run_ms: Floats
    small: dict[int, Rows]
    any: dict[int, Rows]
    latency_ms_mean: float
    """Of those kept."""
    in_time: Flags
    """Which of all options keep the deadline."""
    _rows: dict[tuple[int, bool], list[int]] = field(default_factory=dict)

    def rows(self, device_class: int, *, last: bool) -> list[int]:
        """Options to try on a class of devices, best first. `last`: those without bounds, then the small ones."""
        key = (device_class, last)
        if key not in self._rows:
            small = self.small.get(device_class, _NONE).tolist()
            bounded = dict.fromkeys((*self.any.get(device_class, _NONE).tolist(), *small))
            self._rows[key] = list(bounded) if last else small
        return self._rows[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateJudge:
    """Who rates: the draft's options, a predictor, how loaded the cluster is (0…1)."""

    draft: Draft
    solo: LearnedSolo | None
    gpu_types: dict[GpuTypeName, GpuType]
    load: float
    group_max: int
    parameters: OltunesParameters

    def rate(self, asked: CandidateQuestion) -> Rated | None:
        """All options of a need; None when it has none."""
        options = self.draft.options(asked.need)
        if not len(options):
            return None
        classes = self.draft.fleet.classes
        types = [classes[number].gpu_type for number in options.device_class]
        parts = np.array([classes[number].sm_part for number in options.device_class])
        share_pct = options.share_pct * parts
        queries = Queries.of(asked.need.model, types, options.batch, share_pct)
        latency_ms, throughput_rps = self._predicted(queries, options.latency_ms, options.capacity_rps)
        took_ms = latency_ms if asked.inputs is None else run_ms(asked.inputs, options.batch, latency_ms)
        epc = self._epc(types, share_pct, options.memory_mib, took_ms)
        promised_ms = took_ms if asked.inputs is None else MS_PER_S * asked.inputs / options.capacity_rps
        in_time = promised_ms <= asked.deadline_ms
        if asked.inputs is None:
            open_to = in_time | (not in_time.any())
            open_to = _first_of(open_to & _thrifty(asked.need.rate_rps, options, np.array(types)), open_to)
        else:
            open_to = _first_of(in_time, _enough(asked.need, options))
            open_to = _first_of(open_to & ever_full(asked.inputs, options.batch), open_to)
        found = scored(
            Candidates(
                configurations=queries,
                latency_ms=np.where(open_to, took_ms, np.nan),
                throughput_rps=throughput_rps,
                epc=epc,
            ),
            TaskWish(
                latency_weight=asked.latency_weight,
                deadline_ms=max(1.0, asked.deadline_ms),
                cluster_utilisation=self.load,
                slack_weight=self.parameters.alpha,
            ),
        )
        small = self._within_part(options.share_pct, open_to)
        best = best_types(np.where(small, found.score, -np.inf), np.array(types))
        kept = best_rows(np.where(small & np.isin(types, best), found.score, -np.inf), options.device_class)
        rows = np.concatenate([_NONE, *(kept[number] for number in sorted(kept))])
        return Rated(
            asked=asked,
            score=found.score,
            epc=epc,
            latency_ms=latency_ms,
            throughput_rps=throughput_rps,
            run_ms=took_ms,
            small=kept,
            any=best_rows(found.score, options.device_class),
            latency_ms_mean=float(took_ms[rows].mean()) if len(rows) else float(took_ms.min()),
            in_time=in_time,
        )

    def _predicted(self, queries: Queries, latency_ms: Floats, capacity_rps: Floats) -> tuple[Floats, Floats]:
        if self.solo is None:
            return latency_ms, capacity_rps
        latency, throughput = self.solo.predict_both(queries)
        met = latency.support & np.isfinite(latency.mean) & np.isfinite(throughput.mean)
        return np.where(met, latency.mean, latency_ms), np.where(met, throughput.mean, capacity_rps)

    def _epc(self, types: list[GpuTypeName], share_pct: Floats, memory_mib: Whole, run_ms: Floats) -> Floats:
        """By the parts of a whole GPU, whose power it is."""
        known = [self.gpu_types[name] for name in types]
        return epc_score(
            PowerTerms(
                idle_w=self.parameters.idle_w,
                tdp_w=np.array([kind.tdp_w for kind in known]),
                sm_utilisation=share_pct / 100.0,
                memory_used=memory_mib / np.array([float(kind.memory_mib) for kind in known]),
                latency_s=run_ms / MS_PER_S,
            )
        )

    def _within_part(self, share_pct: Whole, open_to: Flags) -> Flags:
        """Options in the part of a device that each of a full group gets, or with the smallest share there is."""
        part = 100.0 / max(1, self.group_max)
        least = float(share_pct[open_to].min())
        return np.asarray(open_to & (share_pct <= max(part, least)))


def _first_of(wanted: Flags, otherwise: Flags) -> Flags:
    return wanted if wanted.any() else otherwise


def _thrifty(rate_rps: float, options: Options, types: NDArray[np.str_]) -> Flags:
    """Options that serve a service's rate with not much more of a GPU type than the thriftiest: a stream of requests
    would otherwise get the lowest latency that money can buy, and hold it for ever.
    """
    room = np.maximum(1.0, replicas_for(rate_rps, options.capacity_rps)) * options.room_gpus
    found = np.zeros(len(options), dtype=np.bool_)
    for name in np.unique(types):
        mine = types == name
        found |= mine & (room <= THRIFT * room[mine].min() + 1e-9)
    return found


def _enough(need: Need, options: Options) -> Flags:
    """Options of which as many replicas as the need may have serve its rate; all where there are none."""
    found = replicas_for(need.rate_rps, options.capacity_rps) <= need.replicas_max
    return np.asarray(found if found.any() else ~found)
