"""Gavel's fair sharing of GPU types among training jobs, and POP's way of solving it in parts."""
