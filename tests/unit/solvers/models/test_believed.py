"""Believed profiles: careful, between what was measured, and never in place of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from solvers.domain.codec import Plain
from solvers.domain.ids import PolicyName
from solvers.domain.policy import Policy
from solvers.domain.profile import LATENCY_MS_MAX, Interference, Profile, ProfileOrigin, ProfilePoint
from solvers.models.base import Answer, ModelSpec, Origin, Quantity, Queries, Samples
from solvers.models.believed import Asked, completed, is_measured
from tests import builders

POLICY = Policy(name=PolicyName("default"))
T4 = builders.gpu_type("t4")


@dataclass(frozen=True)
class Sage:
    """Believes a law with ten per cent uncertainty; supports batches up to a limit."""

    origin: Origin = Origin.SCALED
    scale: float = 1.0
    supported: int = 0
    knows_memory: bool = True
    memory: float = 1.0

    @property
    def spec(self) -> ModelSpec:
        quantities = (Quantity.LATENCY_MS, Quantity.LATENCY_MS_P99, Quantity.POWER_W)
        return ModelSpec(
            name="sage",
            version="1",
            formula="a law",
            quantities=(*quantities, Quantity.MEMORY_MIB) if self.knows_memory else quantities,
        )

    def fit(self, samples: Samples) -> Sage:
        return self

    def update(self, samples: Samples) -> Sage:
        return self

    def dump(self) -> Plain:
        return None

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        latency = self.scale * (1 + queries.batch * 100 / queries.share_pct)
        mean = {
            Quantity.LATENCY_MS: latency,
            Quantity.LATENCY_MS_P99: 1.2 * latency,
            Quantity.POWER_W: queries.share_pct / 2,
            Quantity.MEMORY_MIB: self.memory * (500 + 10 * queries.batch),
        }[quantity]
        return Answer(
            mean=mean,
            std=0.1 * mean,
            support=queries.batch <= self.supported,
            distance=np.ones(len(queries)),
            origin=np.full(len(queries), self.origin, dtype=np.int8),
        )


def asked(points: Iterable[ProfilePoint] = (), policy: Policy = POLICY) -> Asked:
    made = tuple(points)
    model = builders.model().name
    profile = Profile(model=model, gpu_type=T4.name, points=made) if made else None
    return Asked(model=model, gpu_type=T4, profile=profile, policy=policy)


def point(batch: int, share: int, latency_ms: float, **changes: object) -> ProfilePoint:
    made = ProfilePoint(
        model=builders.model().name,
        gpu_type=T4.name,
        batch=batch,
        share_pct_sm=share,
        clock_mhz_sm=T4.clock_mhz_sm_max,
        latency_ms_mean=latency_ms,
        memory_mib=700.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def told(model: str, gpu_type: str, origin: Origin) -> str:
    return f"{origin.name.lower()} {model} on {gpu_type}"


def filled(question: Asked, sage: Sage | None = None) -> dict[tuple[int, int], ProfilePoint]:
    found = completed(question, sage or Sage(), told)
    assert found is not None
    cells = {(item.batch, item.share_pct_sm): item for item in found.points if not item.neighbours}
    keys = [(item.neighbours, item.clock_mhz_sm, item.share_pct_sm, item.batch) for item in found.points]
    assert keys == sorted(keys)
    return cells


def test_nothing_measured_gives_a_careful_grid() -> None:
    cells = filled(asked())
    assert {batch for batch, _ in cells} == {1, 2, 4, 8, 16, 32}
    assert {share for _, share in cells} == {*range(10, 101, 10)}
    for (batch, share), found in cells.items():
        latency = 1 + batch * 100 / share
        assert found.latency_ms_mean == pytest.approx(1.1 * latency)
        assert found.latency_ms_p99 == pytest.approx(1.1 * 1.2 * latency)
        assert found.memory_mib == pytest.approx(1.1 * (500 + 10 * batch))
        assert found.power_w == pytest.approx(1.1 * share / 2)
        assert found.clock_mhz_sm == T4.clock_mhz_sm_max
        assert (found.origin, found.source) == (ProfileOrigin.SCALED, "scaled resnet50 on t4")


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        (Origin.MEASURED, ProfileOrigin.FITTED),
        (Origin.LIBRARY, ProfileOrigin.PUBLIC),
        (Origin.SCALED, ProfileOrigin.SCALED),
    ],
)
def test_points_say_where_they_come_from(origin: Origin, shown: ProfileOrigin) -> None:
    found = filled(asked(), Sage(origin=origin))
    assert {item.origin for item in found.values()} == {shown}
    assert shown.is_believed


def test_the_policy_sets_care_and_steps() -> None:
    policy = replace(POLICY, caution_std=3.0, share_step_pct=25)
    cells = filled(asked(policy=policy))
    assert {share for _, share in cells} == {25, 50, 75, 100}
    assert cells[1, 50].latency_ms_mean == pytest.approx(1.3 * 3)


def test_large_batches_need_support() -> None:
    assert max(batch for batch, _ in filled(asked(), Sage(supported=64))) == 64
    assert max(batch for batch, _ in filled(asked(), Sage(supported=16))) == 32


def test_measured_points_stay_and_bound_what_is_believed() -> None:
    slow, fast = point(4, 50, 30.0, latency_ms_p99=40.0), point(16, 50, 31.0)
    cells = filled(asked([slow, fast]))
    assert cells[4, 50] == slow
    assert cells[16, 50] == fast
    # More to do than what was measured slow: not faster. Less to do than what was measured fast: not slower.
    assert cells[8, 50].latency_ms_mean == 30.0
    assert cells[8, 50].latency_ms_p99 == 40.0
    assert cells[8, 60].latency_ms_mean <= 31.0
    assert cells[4, 40].latency_ms_mean == 30.0
    assert cells[1, 100].latency_ms_mean == pytest.approx(1.1 * 2)
    assert all(item.latency_ms_p99 is None or item.latency_ms_p99 >= item.latency_ms_mean for item in cells.values())


def test_believed_points_join_the_highest_measured_clock() -> None:
    lower = T4.clocks_mhz_sm[0]
    found = completed(asked([point(4, 50, 30.0, clock_mhz_sm=lower)]), Sage(), told)
    assert found is not None
    assert {item.clock_mhz_sm for item in found.points} == {lower}


def test_points_above_the_highest_clock_of_the_type_hide_no_belief() -> None:
    above = T4.clock_mhz_sm_max + 15
    small = [point(batch, share, batch * 100 / share) for batch in (1, 4, 8) for share in (25, 50, 100)]
    for measured in (small, small[:1]):
        faster = [replace(each, clock_mhz_sm=above) for each in measured]
        found = completed(asked(faster), Sage(), told)
        assert found is not None
        usable = [item for item in found.points if item.clock_mhz_sm <= T4.clock_mhz_sm_max]
        assert usable == list(filled(asked()).values())
        assert [item for item in found.points if item.clock_mhz_sm == above] == sorted(
            faster, key=lambda item: (item.share_pct_sm, item.batch)
        )


def test_what_no_point_may_be_is_not_believed() -> None:
    assert completed(asked(), Sage(scale=1e9), told) is None
    assert completed(asked(), Sage(scale=1e-9), told) is None
    assert completed(asked(), Sage(memory=1e7), told) is None
    some = filled(asked(), Sage(scale=1e7))
    assert some
    assert max(item.latency_ms_p99 or 0.0 for item in some.values()) <= LATENCY_MS_MAX


def test_missing_memory_is_believed_and_nothing_else_changes() -> None:
    bare = point(4, 50, 5.0, memory_mib=None)
    beside = point(4, 50, 9.0, neighbours=("other",))
    found = completed(asked([bare, beside]), Sage(), told)
    assert found is not None
    assert beside in found.points
    (kept,) = [item for item in found.points if item.origin is ProfileOrigin.MEASURED and not item.neighbours]
    assert kept == replace(bare, memory_mib=1.1 * 540)


def test_without_a_belief_of_memory_nothing_is_added() -> None:
    sage = Sage(knows_memory=False)
    assert completed(asked(), sage, told) is None
    only = point(4, 50, 5.0)
    found = completed(asked([only]), sage, told)
    assert found is not None
    assert found.points == (only,)


def test_what_is_not_known_is_not_believed() -> None:
    assert completed(asked(), Sage(scale=np.nan), told) is None


def test_a_measured_grid_is_left_alone() -> None:
    whole = builders.profile()
    assert is_measured(whole, T4)
    assert completed(replace(asked(), profile=whole), Sage(), told) is whole
    small = [point(batch, share, batch * 100 / share) for batch in (1, 4, 8) for share in (25, 50, 100)]
    assert is_measured(asked(small).profile, T4)
    assert not is_measured(asked([replace(each, memory_mib=None) for each in small]).profile, T4)
    assert not is_measured(asked(small[:6]).profile, T4)
    scattered = [point(2**step, 10 * (step + 1), 5.0) for step in range(8)]
    assert not is_measured(asked(scattered).profile, T4)
    assert not is_measured(None, T4)


def test_what_is_known_of_interference_stays() -> None:
    known = Interference(pressure=0.3, sensitivity=0.5)
    wanted = asked([point(4, 50, 20.0)])
    assert wanted.profile is not None
    made = completed(replace(wanted, profile=replace(wanted.profile, interference=known)), Sage(), lambda *_: "a law")
    assert made is not None
    assert made.interference == known
    assert len(made.points) > 1
