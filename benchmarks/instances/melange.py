"""Problems of Melange's form: buckets of requests by input and output length, GPU types, slices of buckets.

Owns a seeded generator. The inputs behind the published runs were drawn at random and are not on record, so these are
others of the same form and size: a square grid of lengths, a two-humped mix of requests over it, types that differ in
price, in how well they prefill and decode, and in the lengths they can hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole

PART_TOO_LONG = 0.25
"""Share of the types that cannot hold the longest requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Buckets of like requests, cut into slices; one slice on a type keeps a part of one of its GPUs busy."""

    load: Floats
    """Bucket x type: GPUs one slice keeps busy; `inf` where the type cannot serve the bucket."""
    slices: Whole
    """By bucket."""
    usd: Floats
    """By type: of one GPU."""


def melange_slices(buckets: int, types: int, slices: int, rate_rps: float, seed: int) -> Slices:
    """`buckets` should be a square number."""
    rng = np.random.default_rng(seed)
    side = math.isqrt(buckets)
    lengths = np.geomspace(32, 16_000, side)
    tokens_in, tokens_out = (grid.ravel() for grid in np.meshgrid(lengths, lengths / 4, indexing="ij"))
    humps = [
        np.exp(-((np.log(tokens_in / a)) ** 2 + (np.log(tokens_out / b)) ** 2) / 2) for a, b in ((400, 150), (4000, 60))
    ]
    weight = (humps[0] + 0.5 * humps[1]) * rng.uniform(0.5, 1.5, len(tokens_in))
    rate = rate_rps * weight / weight.sum()
    power = np.geomspace(1, 16, types) * rng.uniform(0.8, 1.25, types)
    prefill_tokens_per_s = 4000 * power * rng.uniform(0.7, 1.4, types)
    decode_tokens_per_s = 900 * power**0.85 * rng.uniform(0.7, 1.4, types)
    usd = np.round(0.7 * power**0.95 * rng.uniform(0.85, 1.2, types), 3)
    longest = np.where(np.arange(types) < PART_TOO_LONG * types, 6000.0, np.inf)
    seconds = tokens_in[:, None] / prefill_tokens_per_s + tokens_out[:, None] / decode_tokens_per_s
    load = rate[:, None] / slices * seconds
    load[(tokens_in + tokens_out)[:, None] > longest[None, :]] = np.inf
    return Slices(load=load, slices=np.full(len(rate), slices), usd=usd)
