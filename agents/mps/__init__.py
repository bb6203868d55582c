"""CUDA MPS: one control daemon per device, a part of it per worker, and proof that the worker has no more.

Owns everything that speaks to MPS. Privileged settings (the compute mode that keeps strays out) are the boards' matter
and must be made before the first client.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.devices.parts import Sharing
from agents.mps.none import NoSharing
from agents.mps.options import MpsOptions, client_slots, default_pipe_base
from agents.mps.sharing import MpsSharing


def open_sharing(options: MpsOptions, now_s: Callable[[], float]) -> Sharing:
    """Sharing by MPS on this host."""
    return MpsSharing(options, now_s)


__all__ = ["MpsOptions", "MpsSharing", "NoSharing", "client_slots", "default_pipe_base", "open_sharing"]
