"""NVIDIA GPUs through NVML, by way of `nvidia-ml-py`.

Reading devices is `open_boards`, writing what is device-wide `NvmlSetters`. Nothing here is imported on hosts that play
their GPUs.
"""

from __future__ import annotations

from agents.devices.nvml.boards import NvmlBoards, open_boards
from agents.devices.nvml.setters import NvmlSetters

__all__ = ["NvmlBoards", "NvmlSetters", "open_boards"]
