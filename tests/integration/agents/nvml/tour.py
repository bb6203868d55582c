"""Everything the agent asks of NVML, once, as plain data: run over the C library and over the Python double alike.

Run as a program it opens the GPUs of its environment, prints the tour and then answers commands on its standard input,
one JSON line each, until that ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pynvml

from agents.devices.nvml import NvmlBoards, NvmlSetters, open_boards
from agents.devices.parts import ComputeMode
from agents.errors import AgentError


def outcome(ask: Callable[[], Any]) -> Any:
    """What a call gives, or the code of its error."""
    try:
        found = ask()
    except AgentError as error:
        return {"error": error.code, "text": str(error).rpartition("(")[2]}
    return found


def code_of(ask: Callable[[], object]) -> int:
    """The driver's code for a raw call."""
    try:
        ask()
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def steady(reading: dict[str, Any]) -> dict[str, Any]:
    """A reading without what depends on when it was taken."""
    return reading | {"energy_j_total": reading["energy_j_total"] is not None, "sm_activity_pct": None}


def look_round(boards: NvmlBoards) -> list[Any]:
    """Every read of every device."""
    return [
        {
            "inventory": outcome(lambda facts=facts: asdict(facts.inventory())),
            "cuda": facts.cuda_version,
            "source": facts.sm_count_source,
            "settings": outcome(lambda facts=facts: asdict(boards.settings(facts.uuid))),
            "reading": outcome(lambda facts=facts: steady(asdict(boards.reading(facts.uuid)))),
            "processes": outcome(lambda facts=facts: [asdict(found) for found in boards.processes(facts.uuid)]),
        }
        for facts in boards.devices()
    ]


def write_all(boards: NvmlBoards, setters: NvmlSetters) -> list[Any]:
    """Every write on every device, good and bad, and what is read back."""
    found: list[Any] = [dict(setters.refusals())]
    for facts in boards.devices():
        clock, power_w = facts.clocks_mhz_sm[len(facts.clocks_mhz_sm) // 2], facts.power_limit_w_min + 1.0
        for write in (
            lambda uuid=facts.uuid, clock=clock: setters.lock_clock(uuid, clock),
            lambda uuid=facts.uuid, clock=clock: setters.lock_clock(uuid, clock + 1),
            lambda uuid=facts.uuid, power_w=power_w: setters.limit_power(uuid, power_w),
            lambda uuid=facts.uuid: setters.limit_power(uuid, 1e6),
            lambda uuid=facts.uuid: setters.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS),
            lambda uuid=facts.uuid: setters.set_persistence(uuid, True),
        ):
            found.append(outcome(write))
        found.append(outcome(lambda uuid=facts.uuid: asdict(boards.settings(uuid))))
        for reset in (setters.lock_clock, setters.limit_power):
            found.append(outcome(lambda uuid=facts.uuid, reset=reset: reset(uuid, None)))
    return found


def raw_codes() -> list[int]:
    """Codes of calls that the agent never makes as they are."""
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    return [
        code_of(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=0x01000028)),
        code_of(lambda: pynvml.nvmlDeviceGetHandleByIndex(99)),
        code_of(lambda: pynvml.nvmlDeviceGetHandleByUUID(b"GPU-none")),
        code_of(lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 300, 0xFFFFFF01)),
        code_of(lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 0xFFFFFF01, 0xFFFFFF02)),
        code_of(lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 315, 300)),
        code_of(lambda: pynvml.nvmlDeviceResetGpuLockedClocks(gpu)),
        code_of(lambda: pynvml.nvmlDeviceSetPowerManagementLimit_v2(gpu, 0, 1)),
        code_of(lambda: pynvml.nvmlDeviceSetComputeMode(gpu, 1)),
        code_of(lambda: pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)),
        code_of(lambda: pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, 1)),
        code_of(lambda: pynvml.nvmlDeviceGetTemperature(gpu, 0)),
        code_of(lambda: pynvml.nvmlDeviceGetBrand(gpu)),
        len(pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, 405)),
    ]


def tour(boards: NvmlBoards) -> Any:
    """All of it, as it looks in JSON."""
    found = [look_round(boards), write_all(boards, NvmlSetters(boards)), raw_codes(), look_round(boards)]
    return json.loads(json.dumps(found))


def say(answer: object) -> None:
    """One line for the test."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Tour, then commands: `{"call": "reading", "uuid": …}` or `{"set": "lock_clock", "uuid": …, "value": …}`."""
    try:
        boards = open_boards("nvml:all", timeout_s=float(sys.argv[1]), event_wait_ms=50)
    except AgentError as error:
        say({"error": error.code, "text": str(error)})
        return 3
    setters = NvmlSetters(boards)
    say({"tour": tour(boards) if "tour" in sys.argv else None})
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("call") == "events":
            answer: Any = [asdict(event) for event in boards.events()]
        elif order.get("call") == "refusals":
            answer = dict(setters.refusals())
        elif "call" in order:
            answer = outcome(lambda order=order: asdict(getattr(boards, order["call"])(order["uuid"])))
        else:
            answer = outcome(lambda order=order: getattr(setters, order["set"])(order["uuid"], order["value"]))
        say(answer)
    boards.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
