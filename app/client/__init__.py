"""Client of Headroom's HTTP API for scripts and the command line, and what both keep in files: where the control plane
is, and documents to declare.

    from app.client import Client, ApiError

    with Client("http://127.0.0.1:8080", token) as headroom:
        headroom.put("service", {"project": "default", "name": "resnet50", ...})
        print(headroom.fleet())
"""

from __future__ import annotations

from app.client.client import ApiAnswer, ApiError, Client, Document, UnreachableError, key_of

__all__ = ["ApiAnswer", "ApiError", "Client", "Document", "UnreachableError", "key_of"]
