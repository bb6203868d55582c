"""The built-in library as a value: what our own code fitted to public measurements, each with source and error.

Owns the records; the numbers themselves are data that the shell ships and loads, and what they mean is known to
`solvers.models.belief`. It refuses numbers without a source.
"""

from __future__ import annotations

from solvers.domain.value import check_name, check_not_negative, check_text, value


@value
class LibraryEntry:
    """What is known of one model on one GPU type.

    `parameters` are those of the belief's shape, in its order; `spread` the standard deviation of each, on the scale
    that the shape learns on (logarithms where it says so).
    """

    model: str
    gpu_type: str
    parameters: tuple[float, ...]
    spread: tuple[float, ...]
    error_pct_mean: float
    points: int
    source: str
    licence: str

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("gpu_type", self.gpu_type)
        check_not_negative("error_pct_mean", self.error_pct_mean)
        check_text("source", self.source)
        check_text("licence", self.licence)


@value
class Library:
    """Entries and what all models have in common: mean and covariance (rows) of the shape's parameters over models."""

    version: str
    shape_version: str
    population_mean: tuple[float, ...]
    population_covariance: tuple[tuple[float, ...], ...]
    entries: tuple[LibraryEntry, ...] = ()
