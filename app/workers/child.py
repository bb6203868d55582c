"""What the first moments of every child process of ours are for: not to outlive its parent.

Owns the ties between a child and its parent. It refuses to know what children do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """End this process when its parent ends, however that comes; called first thing in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
