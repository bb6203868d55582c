"""Serve one workload on the fleet as it is now: configuration by price, device by best fit, next configuration when
there is no room.

The inner loop of the greedy planner adds replicas until the rate and the floor are met, and says what blocks when they
are not. It does not move what other workloads hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.models.options import Beliefs
from solvers.planners.case import Menu
from solvers.planners.seating import Placed, Settled, seat_of
from solvers.problems.choice import ChoiceAsk, Option, OptionChoice, choose
from solvers.problems.fleet import Fleet, RoomSearch
from solvers.problems.needs import Need


@dataclass(slots=True)
class Filler:
    """Adds replicas of one workload to what is already placed of it."""

    fleet: Fleet
    beliefs: Beliefs
    menu: Menu
    fewest: bool = False

    def fill(self, settled: Settled) -> None:
        """Place until served or blocked; blockers are left in `settled`."""
        need, options = settled.need, self.menu.options
        exhausted = np.zeros(len(options), dtype=bool)
        while settled.rate_rps_wanting > 0 or len(settled.placed) < need.replicas_floor:
            room = self._room(settled, exhausted)
            choice = choose(options, self._ask(settled, room))
            if choice is None:
                settled.blockers.extend(self._blockers(settled, room))
                return
            option = self.beliefs.option(need, options, choice.option)
            if not self._place(settled, option, choice):
                # Whatever is at least as large in every respect would find no room either.
                exhausted |= (
                    (options.device_class == option.device_class)
                    & (options.share_pct >= option.share_pct)
                    & (options.memory_mib >= option.memory_mib)
                    & (options.power_w >= option.power_w)
                )

    def _place(self, settled: Settled, option: Option, choice: OptionChoice) -> bool:
        # While failure domains are missing, every replica may want another type, so they are chosen one by one.
        for _ in range(1 if self._lacks_domains(settled) else choice.replicas):
            found = self._device_for(settled, option)
            if isinstance(found, ReasonCode):
                settled.blockers.append(_blocked(found, option))
                return False
            settled.add(Placed(seat=seat_of(settled.need, option, found), option=option))
        return True

    @staticmethod
    def _lacks_domains(settled: Settled) -> bool:
        return len(settled.domains) < settled.need.affinity.failure_domains_min

    def _device_for(self, settled: Settled, option: Option) -> int | ReasonCode:
        spread = self._lacks_domains(settled)
        search = RoomSearch(
            need=settled.need,
            share_pct=option.share_pct,
            memory_mib=option.memory_mib,
            power_w=option.power_w,
            device_class=option.device_class,
            domains_used=settled.domains if spread else frozenset(),
            press=option.press,
        )
        taken = {item.seat.device for item in settled.placed}
        for device in self.menu.familiar:
            known = int(self.fleet.failure_domain[device]) in search.domains_used
            right_class = self.fleet.class_of[device] == option.device_class
            if device not in taken and right_class and not known and self.fleet.fits(search, device):
                return device
        return self.fleet.find(search)

    def _ask(self, settled: Settled, room: Floats) -> ChoiceAsk:
        need, count = settled.need, len(settled.placed)
        budget = np.inf if need.budget_usd_per_h is None else need.budget_usd_per_h - settled.usd_per_h
        return ChoiceAsk(
            rate_rps=settled.rate_rps_wanting,
            floor=max(0, need.replicas_floor - count),
            ceiling=need.replicas_max - count,
            room=room,
            budget_usd_per_h=max(0.0, float(budget)),
            quota_gpus=max(0.0, self.fleet.quota_left.get(need.project, np.inf)),
            fewest=self.fewest,
        )

    def _room(self, settled: Settled, exhausted: Flags) -> Floats:
        """Room per option; only in new failure domains while some are missing and there is any."""
        if self._lacks_domains(settled) and settled.placed:
            elsewhere = np.where(exhausted, 0.0, self._room_outside(settled.need, settled.domains))
            if elsewhere.any():
                return elsewhere
        return np.where(exhausted, 0.0, self._room_outside(settled.need, frozenset()))

    def _room_outside(self, need: Need, domains: frozenset[int]) -> Floats:
        options = self.menu.options
        room = np.zeros(len(options))
        for index in np.unique(options.device_class):
            mine = options.device_class == index
            sizes = options.share_pct[mine].astype(np.float64), options.memory_mib[mine].astype(np.float64)
            room[mine] = self.fleet.replicas_bound(need, self.fleet.open_to(need, domains, int(index)), sizes)
        return room

    def _blockers(self, settled: Settled, room: Floats) -> list[Reason]:
        """Why nothing more can be added: the owner's own bounds, else what each class lacks."""
        need, options = settled.need, self.menu.options
        if len(settled.placed) >= need.replicas_max:
            return [
                Reason(
                    code=ReasonCode.REPLICAS_MAX,
                    subject=need.workload,
                    facts=(Fact(name="replicas_max", value=float(need.replicas_max)),),
                )
            ]
        if not len(options):
            return [self.menu.refusals[index] for index in sorted(self.menu.refusals)]
        ask = self._ask(settled, room)
        reasons: list[Reason] = []
        for index in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == index)
            smallest = self.beliefs.option(need, options, int(mine[np.argmin(options.share_pct[mine])]))
            found = self._device_for(settled, smallest)
            if isinstance(found, ReasonCode):
                reasons.append(_blocked(found, smallest))
            elif smallest.usd_per_h > ask.budget_usd_per_h:
                reasons.append(_limited(ReasonCode.BUDGET, smallest, "budget_usd_per_h", need.budget_usd_per_h or 0.0))
            elif float(options.gpus[mine].min()) > ask.quota_gpus:
                reasons.append(_limited(ReasonCode.QUOTA, smallest, "quota_gpus_left", ask.quota_gpus))
        return [*reasons, *(self.menu.refusals[index] for index in sorted(self.menu.refusals))]


def _blocked(code: ReasonCode, option: Option) -> Reason:
    facts = (
        Fact(name="share_pct_sm", value=float(option.share_pct)),
        Fact(name="memory_mib", value=float(option.memory_mib)),
        Fact(name="power_w", value=round(option.power_w, 3)),
    )
    return Reason(code=code, subject=option.gpu_type, facts=facts)


def _limited(code: ReasonCode, option: Option, name: str, limit: float) -> Reason:
    facts = (Fact(name="usd_per_h", value=round(option.usd_per_h, 6)), Fact(name=name, value=round(limit, 6)))
    return Reason(code=code, subject=option.gpu_type, facts=facts)
