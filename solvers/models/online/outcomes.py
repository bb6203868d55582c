"""What really happened: the execution of one configuration over about a minute, as telemetry tells it, and under which
conditions it was measured.

Repeats are recognised under the coarse name of their configuration. Outcomes are judged in `gate` and remembered in
`points`.
"""

from __future__ import annotations

import math

from solvers.domain.value import check_name, check_not_negative, check_positive, check_range, value

STEPS_PER_OCTAVE = 2
"""Batches within this part of a doubling count as the same configuration."""
NEIGHBOUR_STEPS_PER_OCTAVE = 1


@value
class Neighbour:
    """Another replica on the same device. `busy` is the part of the time in which it executed."""

    model: str
    batch: float
    share_pct_sm: int
    busy: float = 1.0

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_range("batch", self.batch, 1.0, 65536.0)
        check_range("share_pct_sm", self.share_pct_sm, 1, 100)
        check_range("busy", self.busy, 0.0, 1.0)


@value
class Configuration:
    """What was run, coarsely: outcomes of equal configurations are repeats of each other."""

    model: str
    gpu_type: str
    share_pct_sm: int
    clock_mhz_sm: int
    batch_step: int
    neighbours: tuple[str, ...] = ()


@value
class Outcome:
    """Mean execution time of batches of one replica. `batch` is the mean size of what was executed, `latency_ms` what
    one batch took without queueing, `at_s` the end of the measurement (seconds since the epoch).
    """

    model: str
    gpu_type: str
    batch: float
    share_pct_sm: int
    clock_mhz_sm: float
    latency_ms: float
    executions: float
    seconds: float
    at_s: float
    neighbours: tuple[Neighbour, ...] = ()
    clock_mhz_asked: float | None = None
    """None: it is not known which clock was meant."""
    sm_count: int = 0
    sm_count_asked: int = 0
    """SMs that its share should give; 0: unknown."""
    dropped_fraction: float = 0.0
    throttled: bool = False
    cold: bool = False
    """It was not there, ready and unchanged, for the whole time and the minute before."""
    failing: bool = False
    device_healthy: bool = True
    beside_training: bool = False

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("gpu_type", self.gpu_type)
        check_range("batch", self.batch, 1.0, 65536.0)
        check_range("share_pct_sm", self.share_pct_sm, 1, 100)
        check_positive("clock_mhz_sm", self.clock_mhz_sm)
        check_positive("latency_ms", self.latency_ms)
        check_not_negative("executions", self.executions)
        check_positive("seconds", self.seconds)
        check_range("dropped_fraction", self.dropped_fraction, 0.0, 1.0)

    @property
    def busy_others(self) -> float:
        """Mean part of the time in which its neighbours executed; 0 without any."""
        return math.fsum(each.busy for each in self.neighbours) / max(1, len(self.neighbours))

    def configuration(self) -> Configuration:
        """Its coarse name."""
        clock = self.clock_mhz_sm if self.clock_mhz_asked is None else self.clock_mhz_asked
        return Configuration(
            model=self.model,
            gpu_type=self.gpu_type,
            share_pct_sm=self.share_pct_sm,
            clock_mhz_sm=round(clock),
            batch_step=round(STEPS_PER_OCTAVE * math.log2(self.batch)),
            neighbours=tuple(sorted(_name(each) for each in self.neighbours)),
        )


def _name(neighbour: Neighbour) -> str:
    step = round(NEIGHBOUR_STEPS_PER_OCTAVE * math.log2(neighbour.batch))
    return f"{neighbour.model}:{neighbour.share_pct_sm}:{step}"


@value
class Forecast:
    """What a belief said of an outcome before it was learned from: milliseconds, standard deviation of the next
    measurement.
    """

    mean_ms: float
    std_ms: float

    @property
    def std_relative(self) -> float:
        """Standard deviation of the logarithm, nearly."""
        return self.std_ms / self.mean_ms
