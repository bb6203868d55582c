"""`python -m app`: the same commands as `headroom`, for where the script is not on the path."""

from __future__ import annotations

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main())
