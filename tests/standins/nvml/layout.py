"""The memory that C stand-in, Python double and tests share, as ctypes sees it: twins of the structures in nvml.c.

Owns field names, order and sizes; `build.py`'s compiled library tells its own sizes, and a test compares them.
"""

from __future__ import annotations

from ctypes import Structure, c_char, c_double, c_uint32, c_uint64
from enum import IntFlag

GPUS, MIGS, CLOCKS, MEMORY_CLOCKS, EVENTS = 16, 7, 320, 8, 64
MAGIC = 0x4D4C5648


class Lacks(IntFlag):
    """What a product cannot do: NVML code 3."""

    POWER_LIMIT = 1
    CLOCK_LOCK = 2
    MEMORY_LOCK = 4
    ENERGY = 8
    GPM = 16
    ECC = 32
    EVENTS = 64
    UTILISATION = 128
    INSTANT_POWER = 256
    MIG = 512
    PERSISTENCE = 1024
    CORES = 2048
    POWER = 4096
    TEMPERATURE = 8192


class Missing(IntFlag):
    """What a driver's library does not have at all: NVML code 13."""

    TEMPERATURE_V = 1
    EVENT_REASONS = 2
    MEMORY_V2 = 4
    MPS_PROCESSES = 8
    GPM = 16
    CORES = 32


class MigState(Structure):
    """A MIG device."""

    _fields_ = [
        ("memory_bytes", c_uint64),
        ("uuid", c_char * 96),
        ("profile", c_char * 32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
        ("sm_count", c_uint32),
        ("slices", c_uint32),
        ("compute_mode", c_uint32),
        ("spare", c_uint32),
    ]


class GpuState(Structure):
    """A GPU: what it is, what was set, what tests say."""

    _fields_ = [
        ("memory_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("uuid", c_char * 96),
        ("product", c_char * 96),
        ("sm_count", c_uint32),
        ("core_count", c_uint32),
        ("cc_major", c_uint32),
        ("cc_minor", c_uint32),
        ("minor", c_uint32),
        ("lacks", c_uint32),
        ("idle_mw", c_uint32),
        ("tdp_mw", c_uint32),
        ("limit_mw_min", c_uint32),
        ("limit_mw_max", c_uint32),
        ("limit_mw_default", c_uint32),
        ("clock_count", c_uint32),
        ("clocks", c_uint32 * CLOCKS),
        ("memory_clock_count", c_uint32),
        ("memory_clocks", c_uint32 * MEMORY_CLOCKS),
        ("mig_mode", c_uint32),
        ("mig_count", c_uint32),
        ("migs", MigState * MIGS),
        ("locked_min", c_uint32),
        ("locked_max", c_uint32),
        ("memory_locked_min", c_uint32),
        ("memory_locked_max", c_uint32),
        ("limit_mw", c_uint32),
        ("compute_mode", c_uint32),
        ("persistence", c_uint32),
        ("setter_calls", c_uint32),
        ("load_pct", c_double),
        ("energy_mj", c_double),
        ("energy_at_s", c_double),
        ("hang_until_s", c_double),
        ("throttle_reasons", c_uint64),
        ("throttle_mhz", c_uint32),
        ("limit_mw_outside", c_uint32),
        ("lost", c_uint32),
        ("handle_code", c_uint32),
        ("setter_code", c_uint32),
        ("read_code", c_uint32),
        ("ignores_locks", c_uint32),
        ("memory_unknown", c_uint32),
        ("ecc_corrected", c_uint32),
        ("ecc_uncorrected", c_uint32),
        ("recovery_action", c_uint32),
        ("reads", c_uint32),
    ]


class EventState(Structure):
    """Something a GPU said."""

    _fields_ = [("type", c_uint64), ("data", c_uint64), ("gpu", c_uint32), ("spare", c_uint32)]


class HostState(Structure):
    """A host and its GPUs."""

    _fields_ = [
        ("magic", c_uint32),
        ("size", c_uint32),
        ("gpu_count", c_uint32),
        ("forbid_setters", c_uint32),
        ("init_code", c_uint32),
        ("missing", c_uint32),
        ("event_count", c_uint64),
        ("hang_until_s", c_double),
        ("driver", c_char * 80),
        ("cuda", c_uint32),
        ("spare", c_uint32),
        ("events", EventState * EVENTS),
        ("gpus", GpuState * GPUS),
    ]


LAYOUTS = (HostState, GpuState, MigState, EventState)
"""In the order in which the library's `standin_layout` tells their sizes."""
