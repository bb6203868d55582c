"""CUDA MPS: one control daemon per device, a part of it per worker, and proof that the worker has no more.

Everything that speaks to MPS is here. Privileged settings (the compute mode that keeps strays out) are the boards'
matter and must be made before the first client.
"""

from agents.mps.sharing import MpsOptions, MpsSharing, NoSharing, client_slots, default_pipe_base

__all__ = ["MpsOptions", "MpsSharing", "NoSharing", "client_slots", "default_pipe_base"]
