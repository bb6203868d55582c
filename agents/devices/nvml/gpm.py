"""How much of the SMs really worked, from the GPU's performance monitor (Hopper and newer).

Owns the pair of samples that one reading needs: the driver compares two that lie more than 100 ms apart, so each
reading takes one and compares it with the one before, and nobody waits. MIG devices are sampled through their GPU.
"""

from __future__ import annotations

from agents.devices.nvml.binding import Nvml
from agents.devices.nvml.inventory import BoardFacts

APART_S_MIN = 0.11
SM_UTILISATION = 2
STRUCTURE_VERSION = 1


class SmActivity:
    """One device's monitor. Runs under the guard."""

    def __init__(self, nvml: Nvml, facts: BoardFacts) -> None:
        self._nvml = nvml
        self._facts = facts
        self._earlier = nvml.call("nvmlGpmSampleAlloc")
        self._later = nvml.call("nvmlGpmSampleAlloc")
        self._question = nvml.structure("c_nvmlGpmMetricsGet_t")
        self._sampled_s: float | None = None
        self._found_pct: float | None = None

    def read(self, now_s: float) -> float | None:
        """Percent of the SMs that were busy since the last sample; None until there are two."""
        if self._sampled_s is not None and now_s - self._sampled_s < APART_S_MIN:
            return self._found_pct
        self._earlier, self._later = self._later, self._earlier
        self._sample()
        first, self._sampled_s = self._sampled_s is None, now_s
        if not first:
            self._found_pct = self._compare()
        return self._found_pct

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._earlier, self._later):
            self._nvml.call("nvmlGpmSampleFree", sample)

    def _sample(self) -> None:
        if self._facts.gpu_instance is None:
            self._nvml.call("nvmlGpmSampleGet", self._facts.board, self._later)
        else:
            self._nvml.call("nvmlGpmMigSampleGet", self._facts.board, self._facts.gpu_instance, self._later)

    def _compare(self) -> float | None:
        question = self._question
        question.version, question.numMetrics = STRUCTURE_VERSION, 1
        question.sample1, question.sample2 = self._earlier, self._later
        question.metrics[0].metricId = SM_UTILISATION
        self._nvml.call("nvmlGpmMetricsGet", question)
        metric = question.metrics[0]
        return float(metric.value) if metric.nvmlReturn == 0 and 0.0 <= metric.value <= 100.0 else None
