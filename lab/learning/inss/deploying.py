"""A placement made real: who fits, whose batch is which, and how fast everybody then is.

Owns the order of InSS' decisions after the actor: memory first (who does not fit is not placed), batches by bisection
in rising order of limits with two passes at most, default batches for whom none serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.learning.inss.truth import BATCH_MAX, Runs, Truth
from solvers.policies.inss.actor import NOWHERE
from solvers.policies.inss.batching import BatchQuestion, bisect_batch
from solvers.policies.inss.belief import task_latency_ms

BATCH_DEFAULT = 4
"""What a replica gets for which no size works."""
PASSES_MAX = 2


@dataclass(frozen=True, slots=True)
class Deployed:
    """By model: its GPU (NOWHERE without memory), units, batch, whether bisection found it, and its throughput."""

    places: tuple[int, ...]
    units: tuple[int, ...]
    batches: tuple[int, ...]
    served: tuple[bool, ...]
    throughput_rps: tuple[float, ...]
    runs: tuple[Runs | None, ...]
    used_mib: tuple[float, ...]
    """By GPU."""


@dataclass(slots=True)
class Deployment:
    """Works one placement out. Lists are by model."""

    truth: Truth
    places: list[int]
    units: Sequence[int]
    rates_rps: Sequence[float]
    batches: list[int]
    served: list[bool]

    @staticmethod
    def of(truth: Truth, places: Sequence[int], units: Sequence[int], rates_rps: Sequence[float]) -> Deployed:
        """The whole of it, for the places and units of every model."""
        count = len(places)
        work = Deployment(truth, list(places), units, rates_rps, [BATCH_DEFAULT] * count, [False] * count)
        for gpu in range(len(truth.kind_of)):
            work.settle(gpu)
        return work.outcome()

    def settle(self, gpu: int) -> None:
        """Memory and batches of one GPU."""
        limits = self.truth.setting.served
        members = sorted(
            (model for model, place in enumerate(self.places) if place == gpu),
            key=lambda model: (limits[model].limit_ms, model),
        )
        room = self.truth.setting.gpus[gpu].memory_mib
        kept: list[int] = []
        for model in members:
            need = self.truth.memory_mib(model, BATCH_DEFAULT)
            if need > room:
                self.places[model] = NOWHERE
                continue
            room -= need
            kept.append(model)
        for _ in range(PASSES_MAX if len(kept) > 1 else 1):
            before = [self.batches[model] for model in kept]
            for model in kept:
                # What stays free, and what its own batch holds now.
                self._size(model, kept, self._room(gpu, kept) + self.truth.memory_mib(model, self.batches[model]))
            if [self.batches[model] for model in kept] == before:
                break

    def _size(self, model: int, kept: list[int], room_mib: float) -> None:
        gpu = self.places[model]
        alone = self.truth.alone_ms(model, self.truth.kind_of[gpu], self.units[model])
        factor, extra = self._beside(model, kept)
        rate = self.rates_rps[model]

        def took(batch: int) -> float:
            return alone[batch - 1] * factor + extra

        answer = bisect_batch(
            BatchQuestion(
                execution_ms=took,
                latency_ms=lambda batch: task_latency_ms(batch, 1, took(batch), rate, took(batch)),
                fits=lambda batch: self.truth.memory_mib(model, batch) <= room_mib,
                latency_ms_limit=self.truth.setting.served[model].limit_ms,
                rate_rps=rate,
                batch_max=BATCH_MAX,
            )
        )
        self.served[model] = answer.batch is not None
        self.batches[model] = answer.batch or BATCH_DEFAULT

    def _beside(self, model: int, kept: list[int]) -> tuple[float, float]:
        kind = self.truth.kind_of[self.places[model]]
        others = [(other, self.units[other], self.batches[other]) for other in kept if other != model]
        factor = 1.0 + sum(self.truth.added(model, kind, other) for other in others)
        return factor, len(others) * self.truth.launching_ms(model, kind) if others else 0.0

    def _room(self, gpu: int, kept: list[int]) -> float:
        used = sum(self.truth.memory_mib(model, self.batches[model]) for model in kept)
        return self.truth.setting.gpus[gpu].memory_mib - used

    def outcome(self) -> Deployed:
        """Everybody's speed beside whom they really have."""
        truth, throughput, runs = self.truth, list[float](), list[Runs | None]()
        used = [0.0] * len(truth.kind_of)
        for model, gpu in enumerate(self.places):
            if gpu == NOWHERE:
                throughput.append(0.0)
                runs.append(None)
                continue
            kept = [other for other, place in enumerate(self.places) if place == gpu]
            factor, extra = self._beside(model, kept)
            kind, batch, units = truth.kind_of[gpu], self.batches[model], self.units[model]
            took = truth.alone_ms(model, kind, units)[batch - 1] * factor + extra
            throughput.append(1000.0 * batch / took)
            runs.append(Runs(model, kind, units, batch, factor, len(kept) - 1))
            used[gpu] += truth.memory_mib(model, batch)
        return Deployed(
            places=tuple(self.places),
            units=tuple(self.units),
            batches=tuple(self.batches),
            served=tuple(self.served),
            throughput_rps=tuple(throughput),
            runs=tuple(runs),
            used_mib=tuple(used),
        )
