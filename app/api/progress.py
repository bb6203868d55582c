"""The header that says how far what is believed has come with what is stored.

Owns its name and its description. It refuses to judge: `app.services.beliefs.beliefs` says it.
"""

from __future__ import annotations

from typing import Any

from app.services.beliefs.beliefs import Progress

_NAME = "Headroom-Belief"
BELIEF_HEADER: dict[str, Any] = {
    _NAME: {
        "schema": {"type": "string", "enum": [item.value for item in Progress]},
        "description": "`learned`: from everything that is stored; `learning`: from what was learned before, while the "
        "rest is being learned; `failed`: the same, because no model copes with what is stored.",
    }
}


def belief_header(progress: Progress) -> dict[str, str]:
    """The header of an answer."""
    return {_NAME: progress.value}
