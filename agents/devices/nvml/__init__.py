"""NVIDIA GPUs through NVML, by way of `nvidia-ml-py`.

Owns reading devices (`open_boards`), writing what is device-wide (`NvmlSetters`) and the arithmetic of energy counters.
Refuses everything about processes and MPS. Nothing here is imported on hosts that play their GPUs.
"""

from __future__ import annotations

from agents.devices.nvml.boards import NvmlBoards, open_boards
from agents.devices.nvml.energy import EnergyMeter
from agents.devices.nvml.setters import NvmlSetters

__all__ = ["EnergyMeter", "NvmlBoards", "NvmlSetters", "open_boards"]
