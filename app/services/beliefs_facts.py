"""What performance models may know without measuring: nothing, or what is built in.

Owns the choice between the two for everything that makes models outside of a cluster. It refuses to know documents.
"""

from __future__ import annotations

from solvers.models.base import Facts


def built_in_facts() -> Facts:
    """The built-in library, its GPU types and its models."""
    return Facts()


def no_facts() -> Facts:
    """Nothing: a model made with these learns from measurements alone."""
    return Facts()
