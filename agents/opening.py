"""Opens the parts of a real GPU host and makes one of them: which, with what, and what is done where one is missing.

Opening starts no daemon and no worker, and finds those of an earlier agent. An SM count that the driver does not tell
is read by a process on the device.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

from agents.config import AgentConfig, NvidiaConfig
from agents.crew import CrewOptions, open_crew, users_of
from agents.devices.nvidia.control import HostParts, Onlooker, SettingsJournal
from agents.devices.nvidia.host import NvidiaDevices
from agents.devices.nvml import NvmlBoards, NvmlSetters, open_boards
from agents.devices.parts import Setters
from agents.errors import SharingError
from agents.helper.client import HelperSetters
from agents.mps import MpsOptions, MpsSharing, NoSharing, client_slots, default_pipe_base
from agents.mps.daemon import daemon_in
from agents.mps.proofs import probe
from agents.state import StateDirectory, host_boot_id
from agents.wire import mirrored

PROBE_COMMAND = (sys.executable, "-P", "-m", "agents.probe")
STARTS_MAX = 8
MIG_PART_LEAST = 1.0 / 7.0
"""The smallest slice there is: a MIG device has room for at least this part of a GPU's clients."""


def open_host(
    config: AgentConfig, options: NvidiaConfig, state: StateDirectory, now_s: Callable[[], float]
) -> NvidiaDevices:
    """The GPUs that were chosen. Raises AgentError."""
    boards = open_boards(options.selection, now_s=now_s)
    _ask_for_sm_counts(boards)
    sm_counts = {device.uuid: device.sm_count for device in boards.inventory()}
    mps, refusal = _mps(options, state, boards, now_s)
    setters: Setters
    setters, let_go = (Onlooker(), lambda: None) if config.dry_run else _setters(options, boards)
    at_once = max(1, min(STARTS_MAX, (os.cpu_count() or 1) // 2))
    told = mirrored(
        CrewOptions, options, config, state_dir=state.path, host=options.worker_host, starts_at_once=at_once
    )
    crew = open_crew(told, now_s)
    parts = HostParts(
        boards=boards,
        setters=setters,
        mps=mps,
        plain=NoSharing(sm_counts),
        crew=crew,
        state=state,
        journal=SettingsJournal(state, host_boot_id()),
        now_s=now_s,
        mps_refusal=refusal,
        observing=config.dry_run,
        left_out=boards.left_out,
        lost=(*crew.lost, "" if mps is None else mps.state_lost),
        let_go=let_go,
    )
    return NvidiaDevices(parts)


def _setters(options: NvidiaConfig, boards: NvmlBoards) -> tuple[Setters, Callable[[], None]]:
    """Who writes to devices, and how that is let go of."""
    if options.helper is None:
        return NvmlSetters(boards), lambda: None
    helper = HelperSetters(options.helper)
    return helper, helper.close


def _mps(
    options: NvidiaConfig, state: StateDirectory, boards: NvmlBoards, now_s: Callable[[], float]
) -> tuple[MpsSharing | None, str]:
    binary = shutil.which(options.mps_control)
    if binary is None:
        return None, f"{options.mps_control} is not on this host"
    apart, pipes = users_of(options) is not None, default_pipe_base(os.environ, state.path)
    if apart and not any(daemon_in(pipe, binary) for pipe in pipes.glob("*")):
        # Where other users find their way to; daemons of an agent before are left where they are as long as they live.
        pipes = options.worker_homes / ".mps"
    mps = MpsOptions(
        state_dir=state.path,
        pipe_base=options.mps_pipes or pipes,
        control_binary=binary,
        protocol=options.mps_protocol,
        sm_counts={device.uuid: device.sm_count for device in boards.inventory()},
        client_slots={
            facts.uuid: client_slots(facts.cuda_version, device_part=MIG_PART_LEAST if facts.sliced else 1.0)
            for facts in boards.devices()
        },
        probe_command=PROBE_COMMAND,
        many_users=apart,
    )
    return MpsSharing(mps, now_s), ""


def _ask_for_sm_counts(boards: NvmlBoards) -> None:
    """Ask devices themselves where the driver does not tell; who does not answer stays left out."""
    found = {}
    for facts in boards.devices():
        if facts.sm_count is not None:
            continue
        try:
            found[facts.uuid] = probe(PROBE_COMMAND, {"CUDA_VISIBLE_DEVICES": facts.uuid}).sm_count
        except SharingError:
            continue
    boards.correct_sm_counts(found)
