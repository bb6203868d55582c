"""Order of changes on a device: idempotence, shadows, gaps, and that any target is reached without ever exceeding a
limit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.devices.base import WorkerState
from agents.devices.fake.host import FakeDevices
from agents.loop.steps import (
    DeviceSteps,
    DeviceView,
    StepKind,
    WorkerStep,
    check_target,
    next_steps,
    steps_without_device,
)
from agents.wire import DeviceTarget, ReplicaTarget
from tests.unit.agents.builders import (
    NODE,
    FakeClock,
    device_target,
    fake_devices,
    node_target,
    replica_target,
    worker_spec,
)
from tests.unit.agents.devices.nvidia.doubles import COMMAND


class Device:
    """One simulated device and its next steps."""

    def __init__(self, gpu_type: str = "v100") -> None:
        self.clock = FakeClock()
        self.devices: FakeDevices = fake_devices(self.clock, (gpu_type,))
        self.inventory = self.devices.inventory()[0]
        self.uuid = self.inventory.uuid

    def view(self) -> DeviceView:
        return DeviceView(
            inventory=self.inventory, settings=self.devices.settings(self.uuid), workers=self.devices.workers()
        )

    def plan(self, *replicas: ReplicaTarget, **more: object) -> DeviceSteps:
        return next_steps(self.view(), device_target(self.uuid, *replicas, **more))

    def take(self, steps: tuple[WorkerStep, ...]) -> None:
        for step in steps:
            match step.kind:
                case StepKind.LOWER_POWER | StepKind.RAISE_POWER:
                    self.devices.set_power_limit(self.uuid, step.power_limit_w)
                case StepKind.LOWER_CLOCK | StepKind.RAISE_CLOCK:
                    self.devices.set_clock(self.uuid, step.clock_mhz_sm)
                case StepKind.STOP:
                    self.devices.stop(step.worker)
                case StepKind.DRAIN:
                    self.devices.drain(step.worker)
                case StepKind.SET_MODE if step.mode is not None:
                    self.devices.set_mode(self.uuid, step.mode)
                case StepKind.TUNE if step.spec is not None:
                    self.devices.tune(step.worker, step.spec)
                case StepKind.START if step.spec is not None:
                    self.devices.start(self.uuid, step.spec)
                case _:
                    raise AssertionError(step)

    def reach(self, target: DeviceTarget, passes_max: int = 200) -> list[WorkerStep]:
        """Take steps until settled; every call must be possible when it is made."""
        taken: list[WorkerStep] = []
        for _ in range(passes_max):
            planned = next_steps(self.view(), target)
            if planned.settled:
                return taken
            self.take(planned.steps)
            taken += planned.steps
            self.clock.pass_s(1.0)
        raise AssertionError(f"not reached; held {self.devices.workers()}, last {taken[-5:]}")

    def hold(self, *replicas: ReplicaTarget) -> None:
        self.reach(device_target(self.uuid, *replicas))

    def held_all(self) -> list[tuple[str, tuple[int, WorkerState]]]:
        return [(each.spec.replica, (each.spec.share_pct_sm, each.state)) for each in self.devices.workers()]

    def held(self) -> dict[str, tuple[int, WorkerState]]:
        return dict(self.held_all())


@pytest.fixture
def device() -> Device:
    return Device()


def kinds(planned: DeviceSteps | list[WorkerStep]) -> list[str]:
    steps = planned.steps if isinstance(planned, DeviceSteps) else planned
    return [f"{step.kind.value} {step.replica}".strip() for step in steps]


def test_applying_twice_is_applying_once(device: Device) -> None:
    target = (replica_target("r1"), replica_target("r2", share=50))
    first = device.plan(*target)
    assert kinds(first) == ["start r1", "start r2"]
    device.take(first.steps)
    again = device.plan(*target)
    assert again.steps == ()
    assert not again.settled
    device.clock.pass_s(10.0)
    assert device.plan(*target) == DeviceSteps(steps=(), settled=True)


def test_an_empty_device_that_shall_be_empty_is_settled(device: Device) -> None:
    assert device.plan() == DeviceSteps(steps=(), settled=True)


def test_a_changed_share_with_room_is_shadowed(device: Device) -> None:
    device.hold(replica_target("r1", share=30))
    grown = replica_target("r1", share=60)
    shadow = device.plan(grown)
    assert kinds(shadow) == ["start r1"]
    device.take(shadow.steps)
    assert device.plan(grown).steps == ()
    device.clock.pass_s(10.0)
    switch = device.plan(grown)
    assert kinds(switch) == ["drain r1"]
    assert not switch.steps[0].gap
    device.take(switch.steps)
    assert kinds(device.plan(grown)) == ["stop r1"]
    device.take(device.plan(grown).steps)
    assert device.held() == {"r1": (60, WorkerState.READY)}
    assert device.plan(grown).settled


def test_a_share_that_leaves_no_room_beside_the_old_one_is_shadowed_too(device: Device) -> None:
    device.hold(replica_target("r1", share=60), replica_target("r2", share=30))
    steps = device.reach(device_target(device.uuid, replica_target("r1", share=70), replica_target("r2", share=30)))
    assert kinds(steps) == ["start r1", "drain r1", "stop r1"]
    assert not any(step.gap for step in steps)


def test_without_memory_for_a_shadow_the_old_one_ends_first_and_the_gap_is_marked(device: Device) -> None:
    device.hold(replica_target("r1", share=10, memory=20_000))
    steps = device.reach(device_target(device.uuid, replica_target("r1", share=10, memory=21_000)))
    assert kinds(steps) == ["drain r1", "stop r1", "start r1"]
    assert [step.gap for step in steps] == [True, False, False]


def test_of_a_training_job_two_never_run(device: Device) -> None:
    device.hold(replica_target("j1", kind="job", share=30))
    steps = device.reach(device_target(device.uuid, replica_target("j1", kind="job", share=40)))
    assert kinds(steps) == ["drain j1", "stop j1", "start j1"]


def test_shrinking_frees_room_before_growing_takes_it(device: Device) -> None:
    device.hold(replica_target("r1", share=50), replica_target("r2", share=30))
    target = device_target(device.uuid, replica_target("r1", share=20), replica_target("r2", share=80))
    steps = device.reach(target)
    assert kinds(steps) == ["start r1", "drain r1", "stop r1", "start r2", "drain r2", "stop r2"]


def test_two_that_swap_sizes_do_so_without_a_gap_the_smaller_first(device: Device) -> None:
    device.hold(replica_target("r1", share=30), replica_target("r2", share=70))
    target = device_target(device.uuid, replica_target("r1", share=70), replica_target("r2", share=30))
    steps = device.reach(target)
    assert device.held() == {"r1": (70, WorkerState.READY), "r2": (30, WorkerState.READY)}
    assert kinds(steps) == ["start r2", "drain r2", "stop r2", "start r1", "drain r1", "stop r1"]


def test_two_that_lack_memory_make_one_gap_at_a_time(device: Device) -> None:
    device.hold(replica_target("r1", memory=12_000), replica_target("r2", memory=20_000))
    target = device_target(device.uuid, replica_target("r1", memory=20_000), replica_target("r2", memory=12_000))
    first = next_steps(device.view(), target)
    assert [(step.kind.value, step.gap) for step in first.steps] == [("drain", True)]
    device.reach(target)


def test_what_is_not_wanted_goes_before_its_memory_is_needed(device: Device) -> None:
    device.hold(replica_target("old", share=80, memory=30_000))
    steps = device.reach(device_target(device.uuid, replica_target("new", share=40)))
    assert kinds(steps) == ["drain old", "stop old", "start new"]
    assert not any(step.gap for step in steps)


def test_a_starting_worker_that_nobody_wants_any_more_is_stopped(device: Device) -> None:
    device.take(device.plan(replica_target("r1")).steps)
    assert kinds(device.plan()) == ["stop r1"]


def test_batch_and_latency_limit_change_in_place(device: Device) -> None:
    device.hold(replica_target("r1", batch=8))
    changed = replica_target("r1", batch=16, latency_ms_limit=90.0)
    planned = device.plan(changed)
    assert kinds(planned) == ["tune r1"]
    device.take(planned.steps)
    assert device.plan(changed).settled


def test_clocks_and_power_fall_before_load_comes_and_rise_after_it_has_gone(device: Device) -> None:
    lowered = device.plan(replica_target("r1"), clock_mhz_sm=1380, power_limit_w=200.0)
    assert kinds(lowered) == ["lower_power", "lower_clock", "start r1"]
    device.take(lowered.steps)
    device.clock.pass_s(10.0)
    steps = device.reach(device_target(device.uuid, clock_mhz_sm=1530))
    assert kinds(steps) == ["drain r1", "stop r1", "raise_power", "raise_clock"]
    assert kinds(device.plan()) == ["raise_clock"]


def test_another_mode_waits_until_the_device_is_empty(device: Device) -> None:
    device.hold(replica_target("r1", share=40))
    steps = device.reach(device_target(device.uuid, replica_target("r1", share=100), mode="dedicated"))
    assert kinds(steps) == ["drain r1", "stop r1", "set_mode", "start r1"]
    assert steps[0].gap


def test_a_dedicated_device_replaces_without_a_shadow(device: Device) -> None:
    device.reach(device_target(device.uuid, replica_target("r1", share=40), mode="dedicated"))
    steps = device.reach(device_target(device.uuid, replica_target("r1", share=50), mode="dedicated"))
    assert kinds(steps) == ["drain r1", "stop r1", "start r1"]


def test_a_replica_awaited_on_another_device_serves_here_until_it_is_ready_there(device: Device) -> None:
    device.hold(replica_target("r1", share=40))
    target = device_target(device.uuid)
    assert next_steps(device.view(), target, {"r1"}).steps == ()
    assert kinds(next_steps(device.view(), target)) == ["drain r1"]
    beside = device_target(device.uuid, replica_target("r2", share=80))
    assert kinds(next_steps(device.view(), beside, {"r1"})) == ["start r2"]
    crowded = device_target(device.uuid, replica_target("r2", memory=32_000))
    assert kinds(next_steps(device.view(), crowded, {"r1"})) == ["drain r1"]


class TestRetiring:
    """Replicas on their way out."""

    def test_one_that_runs_goes_on_and_the_device_is_settled_with_it(self, device: Device) -> None:
        device.hold(replica_target("old", share=40))
        planned = device.plan(replica_target("old", share=40, retire_after_s=30.0))
        assert planned == DeviceSteps(steps=(), settled=True)
        beside = (replica_target("old", share=40, retire_after_s=30.0), replica_target("new", share=60))
        assert kinds(device.plan(*beside)) == ["start new"]
        device.reach(device_target(device.uuid, *beside))
        assert set(device.held()) == {"old", "new"}

    def test_one_that_does_not_run_is_never_started(self, device: Device) -> None:
        assert device.plan(replica_target("old", retire_after_s=30.0)) == DeviceSteps(steps=(), settled=True)

    def test_one_that_is_still_starting_or_of_another_size_ends(self, device: Device) -> None:
        device.take(device.plan(replica_target("old", share=40)).steps)
        assert kinds(device.plan(replica_target("old", share=40, retire_after_s=30.0))) == ["stop old"]
        device.clock.pass_s(10.0)
        assert kinds(device.plan(replica_target("old", share=50, retire_after_s=30.0))) == ["drain old"]

    def test_its_share_keeps_nobody_from_starting(self, device: Device) -> None:
        device.hold(replica_target("old", share=40), replica_target("r1", share=50))
        old = replica_target("old", share=40, retire_after_s=30.0)
        target = device_target(device.uuid, old, replica_target("r1", share=90))
        check_target(node_target(1, target), NODE, None, {device.uuid: device.inventory})
        steps = device.reach(target)
        assert kinds(steps) == ["start r1", "drain r1", "stop r1"]

    def test_it_makes_room_before_anybody_else_does(self, device: Device) -> None:
        device.hold(replica_target("old", memory=14_000), replica_target("r1", memory=16_000))
        old = replica_target("old", memory=14_000, retire_after_s=30.0)
        steps = device.reach(device_target(device.uuid, old, replica_target("r1", memory=17_000)))
        assert kinds(steps)[:3] == ["drain old", "stop old", "drain r1"]

    def test_another_mode_ends_it(self, device: Device) -> None:
        device.hold(replica_target("old", share=40))
        assert kinds(device.plan(replica_target("old", share=40, retire_after_s=30.0), mode="dedicated")) == [
            "drain old"
        ]


def test_a_start_that_failed_lately_does_not_hold_up_the_others(device: Device) -> None:
    device.hold(replica_target("r2", memory=20_000))
    target = device_target(device.uuid, replica_target("r1"), replica_target("r2", memory=21_000))
    assert kinds(next_steps(device.view(), target)) == ["start r1"]
    assert kinds(next_steps(device.view(), target, (), {"r1"})) == ["drain r2"]


def test_a_worker_that_never_gets_ready_is_replaced(device: Device) -> None:
    device.devices.start(device.uuid, worker_spec("r1", model="gpt2", launch_s=0.1))
    slow = device.view().workers[0]
    late = DeviceView(
        inventory=device.inventory,
        settings=device.devices.settings(device.uuid),
        workers=(type(slow)(**{name: getattr(slow, name) for name in slow.__slots__} | {"state_s": 61.0}),),
    )
    target = device_target(device.uuid, replica_target("r1", model="gpt2", launch_s=0.1))
    assert kinds(next_steps(late, target)) == ["stop r1", "start r1"]


sizes = st.integers(1, 10).map(lambda tenths: 10 * tenths)


@st.composite
def packings(draw: st.DrawFn) -> tuple[ReplicaTarget, ...]:
    """Some replicas that fit on a V100."""
    chosen, share, memory = [], 0, 0
    for name in ("r1", "r2", "r3", "r4"):
        if not draw(st.booleans()):
            continue
        wanted, limit = draw(sizes), draw(st.sampled_from([1_200, 4_000, 9_000, 20_000]))
        if share + wanted <= 100 and memory + limit <= 32_768:
            share, memory = share + wanted, memory + limit
            chosen.append(replica_target(name, share=wanted, memory=limit, batch=draw(st.integers(1, 8))))
    return tuple(chosen)


@settings(max_examples=150, deadline=None)
@given(
    before=packings(),
    after=packings(),
    interrupted=st.integers(0, 5),
    clocks=st.tuples(st.sampled_from([None, 765, 1530]), st.sampled_from([None, 765, 1380])),
)
def test_every_target_is_reached_from_every_other_also_half_way(
    before: tuple[ReplicaTarget, ...],
    after: tuple[ReplicaTarget, ...],
    interrupted: int,
    clocks: tuple[int | None, int | None],
) -> None:
    device = Device()
    first = device_target(device.uuid, *before, clock_mhz_sm=clocks[0])
    for _ in range(interrupted):
        device.take(next_steps(device.view(), first).steps)
        device.clock.pass_s(1.5)
    device.reach(device_target(device.uuid, *after, clock_mhz_sm=clocks[1]))
    assert device.held() == {replica.replica: (replica.share_pct_sm, WorkerState.READY) for replica in after}
    assert device.devices.settings(device.uuid).clock_mhz_sm == clocks[1]


class TestProcesses:
    """Workers that are described processes."""

    def test_whose_turn_it_is_to_start_is_not_judged_here(self, device: Device) -> None:
        both = (replica_target("r1", worker=COMMAND), replica_target("r2", worker=COMMAND))
        assert kinds(device.plan(*both)) == ["start r1", "start r2"]
        device.take(device.plan(both[0]).steps)
        assert kinds(device.plan(*both)) == ["start r2"]

    def test_each_process_of_one_takes_its_share_and_memory(self, device: Device) -> None:
        two = replace(COMMAND, processes_max=2)
        device.hold(replica_target("r1", share=30, worker=two))
        assert device.plan(replica_target("r1", share=30, worker=two), replica_target("r2", share=50)).steps == ()
        assert kinds(device.plan(replica_target("r1", share=30, worker=two), replica_target("r2", share=40))) == [
            "start r2"
        ]

    def test_another_command_is_another_process(self, device: Device) -> None:
        device.hold(replica_target("r1", worker=COMMAND))
        other = replica_target("r1", worker=replace(COMMAND, command=("other",)))
        assert kinds(device.plan(other)) == ["start r1"]
        patient = replica_target("r1", worker=replace(COMMAND, drain_s=99.0))
        assert device.plan(patient).settled

    def test_a_batch_that_only_a_new_process_can_take_is_another_process(self, device: Device) -> None:
        fixed = replace(COMMAND, batch_change="restart")
        device.hold(replica_target("r1", worker=fixed))
        assert kinds(device.plan(replica_target("r1", batch=16, worker=fixed))) == ["start r1"]

    def test_each_has_the_time_to_drain_that_its_workload_says(self, device: Device) -> None:
        device.hold(replica_target("r1", worker=COMMAND))
        slow = replace(device.view().workers[0], state=WorkerState.DRAINING, drained=False)
        for state_s, told in ((24.9, []), (25.1, ["stop r1"])):
            view = replace(device.view(), workers=(replace(slow, state_s=state_s),), route_grace_s=5.0)
            assert kinds(next_steps(view, device_target(device.uuid))) == told


class TestHandOver:
    """Replacements that do not come up."""

    def test_a_shadow_that_fails_is_ended_and_the_standing_one_goes_on(self, device: Device) -> None:
        device.hold(replica_target("r1", share=30))
        grown = replica_target("r1", share=60)
        device.take(device.plan(grown).steps)
        standing, shadow = sorted(device.view().workers, key=lambda each: each.worker)
        for broken in (
            replace(shadow, state=WorkerState.FAILED),
            replace(shadow, state=WorkerState.STARTING, state_s=61.0),
        ):
            view = replace(device.view(), workers=(standing, broken))
            target = device_target(device.uuid, grown)
            assert [(step.kind.value, step.worker) for step in next_steps(view, target, (), {"r1"}).steps] == [
                ("stop", shadow.worker)
            ]
        view = replace(device.view(), workers=(standing,))
        assert next_steps(view, device_target(device.uuid, grown), (), {"r1"}) == DeviceSteps(steps=(), settled=False)

    def test_what_ends_holds_its_room_until_it_is_gone(self, device: Device) -> None:
        device.hold(replica_target("r1", memory=20_000))
        failed = replace(device.view().workers[0], state=WorkerState.FAILED)
        view = replace(device.view(), workers=(failed,))
        assert kinds(next_steps(view, device_target(device.uuid, replica_target("r1", memory=20_000)))) == ["stop r1"]


class TestFrozen:
    """Nobody answers for what is wanted."""

    def frozen(self, view: DeviceView, *replicas: ReplicaTarget, **more: object) -> list[str]:
        return kinds(next_steps(view, device_target(view.inventory.uuid, *replicas, **more), frozen=True))

    def test_whoever_works_goes_on(self, device: Device) -> None:
        device.hold(replica_target("r1", share=30))
        assert self.frozen(device.view()) == []
        assert self.frozen(device.view(), replica_target("r1", share=60)) == []
        assert self.frozen(device.view(), replica_target("r1", share=30), mode="dedicated") == []

    def test_whoever_failed_is_ended_and_started_again(self, device: Device) -> None:
        device.hold(replica_target("r1", share=30))
        view = device.view()
        dead = replace(view, workers=(replace(view.workers[0], state=WorkerState.FAILED),))
        assert self.frozen(dead, replica_target("r1", share=30)) == ["stop r1", "start r1"]
        assert self.frozen(replace(view, workers=()), replica_target("r1", share=30)) == ["start r1"]

    def test_settings_are_held(self, device: Device) -> None:
        device.hold(replica_target("r1", share=30))
        held = self.frozen(device.view(), replica_target("r1", share=30), clock_mhz_sm=1380, power_limit_w=200.0)
        assert held == ["lower_power", "lower_clock"]

    def test_an_empty_device_may_change_its_mode(self, device: Device) -> None:
        assert self.frozen(device.view(), replica_target("r1"), mode="dedicated") == ["set_mode"]


class TestWithoutDevice:
    """A device that is gone."""

    def test_only_what_is_not_wanted_or_failed_ends(self, device: Device) -> None:
        device.hold(replica_target("r1", share=30), replica_target("r2", share=30))
        one, two = sorted(device.view().workers, key=lambda each: each.worker)
        target = device_target(device.uuid, replica_target("r1", share=30))
        drained = replace(two, state=WorkerState.DRAINING, drained=True)
        late = replace(two, state=WorkerState.DRAINING, drained=False, state_s=1.0)
        for worker, told in (
            (two, ["drain r2"]),
            (drained, ["stop r2"]),
            (late, []),
            (replace(one, state=WorkerState.FAILED), ["stop r1"]),
            (replace(two, state=WorkerState.STARTING), ["stop r2"]),
        ):
            assert kinds(list(steps_without_device((worker,), target, 0.0))) == told
        assert kinds(list(steps_without_device((one,), None, 0.0))) == ["drain r1"]


def test_how_an_empty_device_would_be_shared_is_nobodys_matter(device: Device) -> None:
    assert device.plan(mode="dedicated").settled
