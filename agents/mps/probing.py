"""Asking a device what a share of it really is: a short-lived process in a worker's environment.

Owns running the probe command and judging its answer. The probe is a client itself while it lasts, so it takes a slot.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.devices.parts import ShareOrder
from agents.errors import BypassError, SharingError
from agents.mps.control import plain_environment, shortened

PROBE_TIMEOUT_S = 8.0
MEMORY_SLACK_MIB = 2.0
"""Limits are rounded to pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What a process with some environment sees of its device."""

    uuid: str
    sm_count: int
    memory_mib_free: float | None


def probe(command: tuple[str, ...], environment: Mapping[str, str]) -> ProbeAnswer:
    """Run the probe. Raises SharingError when it cannot tell."""
    try:
        done = subprocess.run(
            list(command),
            env=plain_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SharingError(f"the probe did not answer in {PROBE_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SharingError(f"cannot run the probe {command[0]}: {error.strerror}") from error
    lines = done.stdout.splitlines()
    try:
        found: Any = json.loads(lines[-1]) if lines else {}
        if not found.get("ok"):
            raise SharingError(f"the probe failed: {shortened(str(found.get('error') or done.stderr))}")
        free = found.get("memory_mib_free")
        return ProbeAnswer(
            uuid=str(found["uuid"]),
            sm_count=int(found["sm_count"]),
            memory_mib_free=None if free is None else float(free),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SharingError(f"the probe said {shortened(done.stdout)!r}: {error}") from None


def judge(answer: ProbeAnswer, order: ShareOrder, sm_count_whole: int) -> None:
    """Refuse what is not the ordered part. Shares are rounded down to what the hardware can divide, which only the
    device knows; so any count up to the share will do, but for a part of it never the whole. Raises BypassError.
    """
    if _bare(answer.uuid) != _bare(order.uuid):
        raise BypassError(f"a process of this worker sees device {answer.uuid}")
    ceiling = math.ceil(order.share_pct_sm * sm_count_whole / 100.0)
    if not 0 < answer.sm_count <= ceiling or (order.share_pct_sm < 100 and answer.sm_count >= sm_count_whole):
        raise BypassError(f"{order.share_pct_sm} % of {sm_count_whole} SMs came out as {answer.sm_count}")
    if answer.memory_mib_free is not None and answer.memory_mib_free > order.memory_mib_limit + MEMORY_SLACK_MIB:
        raise BypassError(f"{answer.memory_mib_free:.0f} MiB can be had under a limit of {order.memory_mib_limit} MiB")


def _bare(uuid: str) -> str:
    """The digits alone: MIG devices and whole ones have different prefixes, which the driver's call does not tell."""
    return uuid.partition("-")[2].replace("-", "").lower()
