"""Keeps a GPU busy with matrix products until it is ended; says `burning` once it does. Needs PyTorch alone."""

from __future__ import annotations

import sys


def main() -> int:
    """Burn."""
    try:
        import torch
    except ImportError as error:
        print(error, flush=True)
        return 1
    size = 8192
    one = torch.randn(size, size, device="cuda", dtype=torch.float16)
    other = torch.randn(size, size, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    print("burning", flush=True)
    while True:
        for _ in range(8):
            torch.mm(one, other)
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
