"""Which devices execute slower than others of their type, told from executions alone.

A board may be slow without a word: its memory runs degraded, its host starves it, somebody outside holds it. What it
executes is compared with what the same setting takes (model, share, clock, neighbours and their shares) on other
devices of the type in the same minutes, or else took on this one before. Only residuals of a forecast are compared, so
that batches may differ; an error of the forecast is the same on both sides. A device of which no setting can be
compared, for plans change it too often, is held against the forecasts themselves and what they are usually off by for
its models: two models have to differ by three of their standard deviations, or one that is alone and far off. That one
device differs is said only beside one that does not: where all of a type become slower, the belief is what has to
change.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated

from solvers.domain.value import value, within
from solvers.models.online.outcomes import Configuration, Forecast, Outcome, Verdict, conditions

NEWEST = 5
"""So many minutes in a row have to say it."""
URGENT = 2
BADLY = math.log(1.75)
"""Or so few, where each is so far off what the setting takes elsewhere, or took here."""
KEPT = 15
FRESH_S = 180.0
"""Who was not seen for so long says nothing now."""
FORGOTTEN_AFTER_S = 7200.0
"""What a setting took is forgotten when it was not seen for so long."""
TRIED_AGAIN_AFTER_S = 6 * 3600.0
"""A slow device on which nothing was seen for so long is thought to be well again."""
SLOW = math.log(1.25)
STEADY = math.log(1.1)
"""Slow from the first on, in the median; well again below the second."""
NOISES = 4.0
"""And slow by so many times what minutes differ by."""
DEVIATIONS = 3.0
"""Or, by forecasts alone, by so many of their standard deviations."""


@value
class SlowDevice:
    """A device that takes `factor` times as long as others of its type; `seen_s`: when that was seen last."""

    device: str
    gpu_type: str
    factor: Annotated[float, within(1.0, math.inf)]
    since_s: float
    seen_s: float


@dataclass(slots=True)
class _Track:
    """One setting on one device: its newest outcome and what was foretold of that. `usual` is what the setting took
    before the device was called slow.
    """

    last: Outcome
    said: Forecast
    residuals: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    usual: float | None = None

    @property
    def last_s(self) -> float:
        return self.last.at_s

    def foretold(self, said: Forecast) -> None:
        """Hold all of it against another forecast."""
        shift, self.said = math.log(self.said.mean_ms / said.mean_ms), said
        self.residuals = deque((each + shift for each in self.residuals), maxlen=KEPT)
        self.usual = None if self.usual is None else self.usual + shift

    def newest(self, now_s: float, count: int = NEWEST) -> list[float]:
        """Of its newest minutes; empty while they are too few or long ago."""
        enough = len(self.residuals) >= count and now_s - self.last_s <= FRESH_S
        return list(self.residuals)[-count:] if enough else []

    def telling(self, now_s: float, others: float | None, *, alike: bool) -> tuple[list[float], float] | None:
        """The minutes that tell, and what they are held against: what `others` take, else what this took before, or the
        forecast where settings differ. The newest few, where they are far off, else the usual number.
        """
        usual = (self.before() if alike else 0.0) if others is None else others
        if usual is None:
            return None
        few, found = self.newest(now_s, URGENT), self.newest(now_s)
        if few and min(few) - usual >= BADLY:
            return few, usual
        return (found, usual) if found else None

    def turn(self, *, slow: bool) -> None:
        """Its device became slow, or is well again: minutes of before say nothing of how it is now."""
        self.usual = self.before() if slow else None
        last = min(list(self.residuals)[-URGENT:], default=0.0) - STEADY if slow else math.inf
        while len(self.residuals) > URGENT * slow and self.residuals[0] < last:
            self.residuals.popleft()

    def before(self) -> float | None:
        """What it took before its newest minutes."""
        earlier = list(self.residuals)[:-NEWEST]
        return self.usual if self.usual is not None or len(earlier) < NEWEST else median(earlier)


@dataclass(frozen=True, slots=True)
class _Voice:
    """What one setting, or one model by forecasts, says of its device: how much slower, in the median and with the
    least but one of its minutes, and how far single minutes are from what they are usually.
    """

    model: str
    excess: float
    low: float
    noise: float
    by_others: bool

    @property
    def slow(self) -> bool:
        return self.excess >= max(SLOW, NOISES * self.noise) and self.low >= STEADY


class Paces:
    """What settings took lately on each device, as long as this process lives."""

    def __init__(self) -> None:
        self._tracks: dict[Configuration, dict[str, _Track]] = {}

    def see(self, outcomes: Sequence[Outcome], said: Sequence[Forecast | None]) -> None:
        """Take in outcomes in good order, with what was foretold of each; a minute that came before is left."""
        for outcome, forecast in zip(outcomes, said, strict=True):
            if forecast is None or not outcome.device or not comparable(outcome):
                continue
            for setting in (_setting(outcome), _any_setting(outcome)):
                tracks = self._tracks.setdefault(setting, {})
                track = tracks.setdefault(outcome.device, _Track(outcome, forecast))
                if outcome.at_s > track.last_s or not track.residuals:
                    track.residuals.append(math.log(outcome.latency_ms / forecast.mean_ms))
                    track.last, track.said = outcome, forecast

    def newest(self) -> list[Outcome]:
        """The newest outcome of every setting on every device: what another belief is to be asked of."""
        return [track.last for tracks in self._tracks.values() for track in tracks.values()]

    def foretold(self, said: Sequence[Forecast | None]) -> None:
        """Hold what was seen against another belief, which says this of `newest`; where it knows nothing, forget."""
        told = iter(said)
        for setting in list(self._tracks):
            tracks, kept = self._tracks.pop(setting), dict[str, _Track]()
            for device, track in tracks.items():
                if (forecast := next(told)) is not None:
                    track.foretold(forecast)
                    kept[device] = track
            if kept:
                self._tracks[setting] = kept

    def judge(self, slow: Mapping[str, SlowDevice], now_s: float) -> dict[str, SlowDevice]:
        """Who is slow now, when `slow` were so far."""
        self._forget(now_s)
        voices, types = self._voices(slow, now_s)
        well = {types[device] for device, said in voices.items() if device not in slow and not _agree(said)}
        found = {device: item for device, item in slow.items() if now_s - item.seen_s <= TRIED_AGAIN_AFTER_S}
        for device, said in voices.items():
            excess = median(voice.excess for voice in said)
            if device in found:
                if all(voice.excess < STEADY for voice in said):
                    del found[device]
                else:
                    factor = max(1.0, math.exp(excess))
                    found[device] = replace(found[device], factor=factor, seen_s=now_s)
            elif device not in slow and _agree(said) and types[device] in well:
                found[device] = SlowDevice(
                    device=device, gpu_type=types[device], factor=math.exp(excess), since_s=now_s, seen_s=now_s
                )
        for device in found.keys() ^ slow.keys():
            self._turn(device, slow=device in found)
        return found

    def _voices(self, slow: Mapping[str, SlowDevice], now_s: float) -> tuple[dict[str, list[_Voice]], dict[str, str]]:
        voices: dict[str, list[_Voice]] = {}
        types: dict[str, str] = {}
        by_forecast: dict[str, list[_Voice]] = {}
        for setting, tracks in self._tracks.items():
            newest = {device: found for device, track in tracks.items() if (found := track.newest(now_s))}
            levels = {device: median(found) for device, found in newest.items()}
            others = _Others(level for device, level in levels.items() if device not in slow)
            off = [abs(each - levels[device]) for device, found in newest.items() for each in found]
            spread = 1.4826 * median(off) if off else 0.0
            for device, track in tracks.items():
                theirs, alike = others.median(None if device in slow else levels.get(device)), setting.share_pct_sm > 0
                types[device] = setting.gpu_type
                if (told := track.telling(now_s, theirs, alike=alike)) is not None:
                    found, usual = told
                    excess, low = median(found) - usual, sorted(found)[len(found) > URGENT] - usual
                    noise = max(spread, 0.0 if alike else track.said.std_relative * DEVIATIONS / NOISES)
                    # Elsewhere the forecast of the model holds, and no neighbour can be what is wrong with it here.
                    far_off = low >= BADLY and not track.last.neighbours
                    witnessed = theirs is not None and (alike or far_off)
                    voice = _Voice(setting.model, excess, low, noise, by_others=witnessed)
                    (voices if alike else by_forecast).setdefault(device, []).append(voice)
        return by_forecast | voices, types

    def _turn(self, device: str, *, slow: bool) -> None:
        """All of its settings."""
        for tracks in self._tracks.values():
            if (track := tracks.get(device)) is not None:
                track.turn(slow=slow)

    def _forget(self, now_s: float) -> None:
        for setting, device in list(self._old(now_s)):
            del self._tracks[setting][device]
            if not self._tracks[setting]:
                del self._tracks[setting]

    def _old(self, now_s: float) -> Iterator[tuple[Configuration, str]]:
        for setting, tracks in self._tracks.items():
            for device, track in tracks.items():
                if now_s - track.last_s > FORGOTTEN_AFTER_S:
                    yield setting, device


class _Others:
    """Levels of one setting, to be asked for the median of all but one of them."""

    def __init__(self, levels: Iterable[float]) -> None:
        self._ordered = sorted(levels)

    def median(self, but: float | None) -> float | None:
        """None where nobody is left."""
        ordered = self._ordered
        count = len(ordered) - (but is not None)
        if count == 0:
            return None
        at = len(ordered) if but is None else bisect_left(ordered, but)
        lower, upper = (count - 1) // 2, count // 2
        return 0.5 * (ordered[lower + (lower >= at)] + ordered[upper + (upper >= at)])


def comparable(outcome: Outcome) -> bool:
    """Whether only its device can explain what it took: who is late drops requests, who is hot lowers its clock. Where
    a limit of its own lowers that, the forecast is of the lower clock.
    """
    if conditions(outcome) is Verdict.ADMITTED:
        return True
    asked = None if outcome.throttled else outcome.clock_mhz_asked
    bare = replace(outcome, dropped_fraction=0.0, throttled=False, clock_mhz_asked=asked, device_slow=False)
    return conditions(bare) is Verdict.ADMITTED


def _agree(voices: Iterable[_Voice]) -> bool:
    """Whether all say that their device is slow, and either others of its type bear witness or two models do."""
    said = list(voices)
    witnessed = any(voice.by_others for voice in said) or len({voice.model for voice in said}) > 1
    return witnessed and all(voice.slow for voice in said)


def _any_setting(outcome: Outcome) -> Configuration:
    """Its model and GPU type alone."""
    return Configuration(
        model=outcome.model, gpu_type=outcome.gpu_type, share_pct_sm=0, clock_mhz_sm=0, batch_step=0, neighbours=()
    )


def _setting(outcome: Outcome) -> Configuration:
    """Its configuration whatever the batches are."""
    # Where nobody asked for a clock and a limit sets it, it is another one each minute.
    driven = 0.0 if outcome.throttled and not outcome.hindered else outcome.clock_mhz_sm
    clock = driven if outcome.clock_mhz_asked is None else outcome.clock_mhz_asked
    return Configuration(
        model=outcome.model,
        gpu_type=outcome.gpu_type,
        share_pct_sm=outcome.share_pct_sm,
        clock_mhz_sm=round(clock),
        batch_step=0,
        neighbours=tuple(sorted(f"{each.model}:{each.share_pct_sm}" for each in outcome.neighbours)),
    )
