"""Readers of public measurements: each module turns one folder below HEADROOM_DATA into samples of `solvers.models`.

None of the measurements is part of this project; `solvers.models.base` says what the columns mean.
"""
