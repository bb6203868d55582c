"""Who held which GPU over time, as lanes to draw: one for each workload of a GPU, or for each GPU of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.api.console.door import Visit
from app.api.console.glance import paint
from app.api.deps import context_of
from app.store.ledger import HeldSpan
from app.store.pages import PageOrder

LANES_MAX = 40
WIDTH = 1000.0
FULL_PCT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBlock:
    """A replica for as long as it held what it held, in parts of the lane: thousandths across, per cents up."""

    name: str
    x: float
    width: float
    y: int
    height: int
    paint: str
    title: str


@dataclass(frozen=True, slots=True)
class SwimLane:
    """Blocks of one name, and how long it was held by anybody."""

    name: str
    blocks: tuple[LaneBlock, ...]
    held_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLanes:
    """DrawnLanes over one span, with the moments at which plans were promoted."""

    start: datetime
    end: datetime
    lanes: tuple[SwimLane, ...]
    marks: tuple[tuple[float, int], ...]
    """Where a generation began, and which."""

    def across(self, at: datetime) -> float:
        return round(WIDTH * (at - self.start) / (self.end - self.start), 2)


def lanes_of_gpu(visit: Visit, uuid: str, hours: float, paints: Mapping[str, str]) -> DrawnLanes:
    """A lane for each workload, who held it longest first."""
    found = _lanes(visit, (uuid,), hours, lambda span: span.workload, paints)
    return replace(found, lanes=tuple(sorted(found.lanes, key=lambda lane: -lane.held_h))[:LANES_MAX])


def lanes_of_node(visit: Visit, names: Mapping[str, str], hours: float, paints: Mapping[str, str]) -> DrawnLanes:
    """A lane for each GPU, by its name."""
    found = _lanes(visit, tuple(names), hours, lambda span: names[span.device_uuid], paints)
    drawn = {lane.name: lane for lane in found.lanes}
    return replace(found, lanes=tuple(drawn.get(name) or SwimLane(name, (), 0.0) for name in names.values()))


def _lanes(
    visit: Visit, uuids: Sequence[str], hours: float, name: Callable[[HeldSpan], str], paints: Mapping[str, str]
) -> DrawnLanes:
    end = context_of(visit.request).clock.now()
    whole = DrawnLanes(start=end - timedelta(hours=hours), end=end, lanes=(), marks=())
    rows: dict[str, list[HeldSpan]] = {}
    for span in visit.services.costs.held(uuids, whole.start, end):
        rows.setdefault(name(span), []).append(span)
    lines = visit.services.history.targets(PageOrder(limit=100)).items
    return replace(
        whole,
        lanes=tuple(_lane(whole, key, row, paints) for key, row in rows.items()),
        marks=tuple((whole.across(at.promoted_at), at.generation) for at in lines if at.promoted_at > whole.start),
    )


def _lane(whole: DrawnLanes, name: str, spans: Sequence[HeldSpan], paints: Mapping[str, str]) -> SwimLane:
    blocks = []
    for span, low in _stacked(spans):
        left, right = (min(WIDTH, max(0.0, whole.across(at))) for at in (span.start, span.until))
        clock = f"{span.start:%d %b %H:%M} to {span.until:%H:%M} UTC"
        blocks.append(
            LaneBlock(
                name=span.workload,
                x=left,
                width=round(right - left, 2),
                y=FULL_PCT - low - span.share_pct_sm,
                height=span.share_pct_sm,
                paint=paints.get(span.workload, paint(0)),
                title=f"{span.subject}: {span.share_pct_sm} % of the SMs, {clock}",
            )
        )
    return SwimLane(name, tuple(blocks), _held_h(spans))


def _stacked(spans: Iterable[HeldSpan]) -> list[tuple[HeldSpan, int]]:
    """Each with the lowest place at which nobody else is at its time."""
    placed: list[tuple[HeldSpan, int]] = []
    for span in spans:
        beside = [(low, low + other.share_pct_sm) for other, low in placed if other.until > span.start]
        tops = sorted({0, *(top for _, top in beside)})
        free = (low for low in tops if all(low >= top or low + span.share_pct_sm <= foot for foot, top in beside))
        placed.append((span, min(next(free, 0), FULL_PCT - span.share_pct_sm)))
    return placed


def _held_h(spans: Iterable[HeldSpan]) -> float:
    """Hours in which at least one of them held anything."""
    held, until = timedelta(0), None
    for span in sorted(spans, key=lambda item: item.start):
        begun = span.start if until is None else max(span.start, until)
        held += max(timedelta(0), span.until - begun)
        until = span.until if until is None else max(until, span.until)
    return held.total_seconds() / 3600
