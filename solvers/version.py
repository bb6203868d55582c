"""Which version this is, for product, agents and laboratory, and for the distribution that carries them."""

from __future__ import annotations

VERSION = "0.1.0"
