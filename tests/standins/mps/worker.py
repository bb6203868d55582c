"""A worker process that opens its device and answers lines: `sm`, `mib N`, `sync`, `end`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("cuda", Path(__file__).with_name("cuda.py"))
assert spec is not None
assert spec.loader is not None
cuda = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cuda)


def answer(device: cuda.Cuda, words: list[str]) -> str:
    """One answer to one line."""
    try:
        if words[0] == "sm":
            return str(device.sm_count())
        if words[0] == "mib":
            device.allocate(int(words[1]))
        elif words[0] == "sync":
            device.synchronize()
    except cuda.CudaError as error:
        return f"error {error.code}"
    return "ok"


def main() -> int:
    try:
        device = cuda.Cuda()
    except cuda.CudaError as error:
        sys.stdout.write(f"error {error.code}\n")
        return 1
    sys.stdout.write("open\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "end":
            break
        sys.stdout.write(answer(device, line.split()) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
