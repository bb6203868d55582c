"""Power domains: idle power counts, but not of what nobody rented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.domain.device import Offer, PowerCap, PowerScope
from solvers.domain.ids import GpuTypeName
from solvers.problems.fleet import PowerDomains, RoomSearch, Seat, open_fleet
from solvers.problems.needs import needs_of
from tests import builders


def test_a_domain_lets_in_what_is_left_under_its_cap() -> None:
    domains = PowerDomains(of_device=np.array([0, 0, -1]), headroom_w=np.array([30.0]))
    assert domains.within(np.array([30.0, 31.0, 1e9]), np.arange(3)).tolist() == [True, False, True]
    domains.book(1, 10.0)
    domains.book(2, 10.0)
    assert domains.headroom_w.tolist() == [20.0]


def test_an_offered_gpu_draws_its_idle_power_only_once_it_is_used() -> None:
    cap = PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=90.0)
    picture = builders.snapshot((builders.device("a", 0, "t4"),), [builders.service()], power_caps=(cap,))
    picture = replace(picture, offers=(Offer(name="more", gpu_type=GpuTypeName("t4"), count_max=50),)).with_offers()
    (need,) = needs_of(picture, builders.everything_movable(picture))
    fleet = open_fleet(picture, {})
    assert fleet.domains[0].headroom_w.tolist() == [80.0]
    offered = next(index for index, device in enumerate(fleet.devices) if device.node.startswith("offer."))
    owned = next(index for index, device in enumerate(fleet.devices) if device.node == "a")
    seat = Seat(
        workload=need.workload, project=need.project, device=offered, share_pct=50, memory_mib=1000, power_w=45.0
    )
    fleet.put(seat)
    assert fleet.domains[0].headroom_w.tolist() == [25.0]
    wanted = RoomSearch(need=need, share_pct=10, memory_mib=1000, power_w=20.0)
    assert fleet.fits(wanted, owned)
    # A second offered one would add its idle power: 10 W and 20 W are too much.
    other = next(index for index in range(len(fleet.devices)) if index not in (offered, owned))
    assert not fleet.fits(wanted, other)
    fleet.lift(seat)
    assert fleet.domains[0].headroom_w.tolist() == [80.0]
