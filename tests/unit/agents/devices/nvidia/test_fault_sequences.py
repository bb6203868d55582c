"""A thousand random sequences of desired states, crashes and faults on a host in memory: whatever happens, no device
ever holds more than it has, the last desired state is reached, and nothing is left behind in the end.
"""

from __future__ import annotations

import random

import pytest

from agents.devices.base import Mode, WorkerState
from agents.devices.nvidia.host import NvidiaDevices
from agents.devices.parts import BoardEvent, ComputeMode
from agents.errors import DeviceError, DeviceTimeoutError, NoPermissionError, SharingError, WorkerError
from agents.loop.apply import Applier
from agents.wire import NodeTarget
from tests.standins.hosts.sequences import draw_target, held
from tests.unit.agents.builders import NODE
from tests.unit.agents.devices.nvidia.doubles import COMMAND, MEMORY_MIB, POWER_W_MAX, KilledError, World

SEQUENCES = 1000
BUNDLE = 100
EVENTS_MAX = 8
VERBS = ("settings", "reading", "processes", "set_clock", "set_power", "set_compute_mode", "open", "grant", "check")
VERBS += ("launch", "revoke", "shut", "set_persistence")
ERRORS = (DeviceTimeoutError("no answer"), NoPermissionError("not root"), SharingError("down"), WorkerError("no"))


class Sequence:
    """One random life of a host."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.generation = 0
        self.target: NodeTarget | None = None
        self.capped: set[str] = set()
        self.world.watch = self.look
        self.devices, self.applier = self.agent()

    def agent(self) -> tuple[NvidiaDevices, Applier]:
        """Another agent finds what an earlier one left."""
        devices = self.world.devices()
        applier = Applier(NODE, devices, self.world.clock, random.Random(self.rng.random()))
        if self.target is not None:
            applier.accept(self.target)
        return devices, applier

    def look(self) -> None:
        """What must be true at every moment."""
        for uuid, card in self.world.cards.items():
            orders = [process.order for process in self.world.on(uuid)]
            assert sum(order.spec.memory_mib_limit for order in orders) <= MEMORY_MIB, uuid
            cap = self.cap(uuid)
            if cap is not None and (card.power_limit_w or POWER_W_MAX) <= cap:
                self.capped.add(uuid)
            assert uuid not in self.capped or cap is None or (card.power_limit_w or POWER_W_MAX) <= cap, uuid
        newest = max(self.world.processes.values(), key=lambda each: each.pid, default=None)
        if newest is not None and newest.began_s == self.world.clock():
            cap, card = self.cap(newest.order.uuid), self.world.cards[newest.order.uuid]
            assert cap is None or (card.power_limit_w or POWER_W_MAX) <= cap, "load came before the limit"

    def cap(self, uuid: str) -> float | None:
        """The power limit that is wanted now."""
        devices = self.target.devices if self.target is not None else ()
        return next((device.power_limit_w for device in devices if device.uuid == uuid), None)

    def want(self, target: NodeTarget) -> None:
        """Another desired state."""
        self.capped.clear()
        self.target = target
        self.applier.accept(target)

    def draw(self) -> None:
        """Any other desired state."""
        self.generation += 1
        self.want(draw_target(self.rng, self.generation, self.devices.inventory(), COMMAND))

    def event(self) -> None:
        """Something happens."""
        world, rng = self.world, self.rng
        uuid = rng.choice(list(world.cards))
        card = world.cards[uuid]
        match rng.randrange(16):
            case 0 | 1 | 2:
                self.draw()
            case 3 | 4:
                world.calls_left = None
                self.devices, self.applier = self.agent()
            case 5 if world.processes:
                world.crash(rng.choice(sorted(world.processes)))
            case 6:
                world.crash_daemon(uuid)
            case 7:
                card.lost = not card.lost
            case 8:
                card.healthy = False
                world.events.append(BoardEvent(uuid=uuid, kind="xid", detail=95, at_s=world.clock()))
            case 9:
                card.throttled = not card.throttled
            case 10:
                world.bypassing = not world.bypassing
            case 11:
                world.hopeless = not world.hopeless
            case 12:
                world.reboot()
                world.calls_left = None
                self.capped.clear()
                self.devices, self.applier = self.agent()
            case 13 | 14:
                world.calls_left = rng.randint(1, 40)
            case _:
                self.break_something()

    def break_something(self) -> None:
        """Some verbs fail now and then from now on."""
        broken, error, rng = set(self.rng.sample(VERBS, 3)), self.rng.choice(ERRORS), random.Random(self.rng.random())

        def fault(verb: str, uuid: str) -> DeviceError | None:
            return error if verb in broken and rng.random() < 0.5 else None

        self.world.fault = fault

    def passes(self, count: int) -> bool:
        """So many passes; whether the last one found everything as wanted."""
        settled = False
        for _ in range(count):
            try:
                settled = self.applier.run_pass().settled
            except KilledError:
                self.devices, self.applier = self.agent()
            self.world.pass_s(1.0)
            if self.world.calls_left is None and self.rng.random() < 0.2:
                self.check_books()
        return settled

    def check_books(self) -> None:
        """Sums of workers never exceed their device."""
        self.applier.receipt("boot", 0.0)
        for sample in self.devices.collect():
            assert sum(worker.energy_j for worker in sample.workers) <= sample.energy_j + 1e-6
            assert sum(worker.memory_mib_used for worker in sample.workers) <= sample.memory_mib_used + 1e-6

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        world = self.world
        world.fault = lambda verb, uuid: None
        world.calls_left = None
        world.bypassing = world.hopeless = False
        for card in world.cards.values():
            card.lost, card.healthy, card.throttled = False, True, False

    def reach(self) -> None:
        """The last desired state is held within minutes."""
        for step_s in (*[1.0] * 40, *[10.0] * 60):
            if self.applier.run_pass().settled:
                return
            self.world.pass_s(step_s)
        raise AssertionError(f"never reached: {self.applier.receipt('late', 0.0)}")

    def check_held(self) -> None:
        """It reads back as wanted, and is so."""
        assert self.target is not None
        workers = {worker.spec.replica: worker for worker in self.devices.workers()}
        wanted = held(self.target)
        retiring = {item.replica for device in self.target.devices for item in device.replicas} - wanted.keys()
        assert workers.keys() - retiring == wanted.keys()
        for replica, (uuid, share, memory, batch) in wanted.items():
            found = workers[replica]
            assert (found.uuid, found.spec.share_pct_sm, found.spec.memory_mib_limit) == (uuid, share, memory)
            assert (found.spec.batch, found.state) == (batch, WorkerState.READY)
            process = self.world.processes[found.worker]
            card = self.world.cards[uuid]
            assert (self.devices.settings(uuid).mode is Mode.MPS) == (process.pid in card.served)
        for device in self.target.devices:
            card = self.world.cards[device.uuid]
            assert (card.clock_lock, card.power_limit_w) == (device.clock_mhz_sm, device.power_limit_w)
            there = any(uuid == device.uuid for uuid, _, _, _ in wanted.values())
            if there and device.mode == Mode.TIME_SLICED:
                assert card.compute_mode is ComputeMode.DEFAULT
            if there and device.mode == Mode.MPS:
                guarded = card.compute_mode is ComputeMode.EXCLUSIVE_PROCESS
                assert guarded or any("compute mode" in problem for problem in self.devices.problems())

    def leave(self) -> None:
        """Nothing is wanted any more: nothing is left."""
        self.generation += 1
        self.want(NodeTarget(node=NODE, generation=self.generation, plan=None, devices=()))
        self.reach()
        self.devices.restore()
        assert self.world.processes == {}
        assert self.world.granted == {}
        for card in self.world.cards.values():
            assert (card.clock_lock, card.power_limit_w, card.compute_mode) == (None, None, ComputeMode.DEFAULT)
            assert (card.persistence, card.daemon, card.served) == (False, False, set())

    def live(self) -> None:
        """From the first target to the last."""
        self.draw()
        for _ in range(self.rng.randint(2, EVENTS_MAX)):
            self.passes(self.rng.randint(0, 5))
            self.event()
        self.passes(self.rng.randint(0, 3))
        self.heal()
        self.reach()
        self.check_held()
        self.check_books()
        self.leave()


@pytest.mark.parametrize("first", range(0, SEQUENCES, BUNDLE))
def test_any_sequence_ends_in_the_last_desired_state_and_never_exceeds_a_limit(first: int) -> None:
    for seed in range(first, first + BUNDLE):
        try:
            Sequence(seed).live()
        except (AssertionError, DeviceError) as error:
            raise AssertionError(f"sequence {seed}: {error}") from error
