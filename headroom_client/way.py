"""Which way a request takes: straight, or through the proxy that the environment names; straight to this machine."""

from __future__ import annotations

import ipaddress
import ssl
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx


def proxy_of(address: httpx.URL) -> httpx.URL | None:
    """The proxy on the way to an address. Raises ValueError where the environment names one that cannot be used."""
    named = getproxies()
    proxy = named.get(address.scheme) or named.get("all")
    if not proxy or _is_here(address.host) or proxy_bypass(f"{address.host}:{address.port or ''}".rstrip(":")):
        return None
    try:
        found = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
    except httpx.InvalidURL:
        raise ValueError(f"the proxy that the environment names for {address.scheme}:// is no address") from None
    if found.scheme not in ("http", "https") and (not found.scheme.startswith("socks5") or not find_spec("socksio")):
        raise ValueError(
            f"{_told(found)}, the proxy that the environment names, needs httpx[socks], or is unknown to it"
        )
    return found


def way(address: httpx.URL) -> dict[str, Any]:
    """What httpx is told of the way to an address."""
    # Where nothing is encrypted nobody's certificate is believed: to read whom the system trusts takes long.
    verify = httpx.create_ssl_context() if address.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"proxy": proxy_of(address), "trust_env": False, "verify": verify}


def through(address: httpx.URL) -> str:
    """What a complaint says of the way: the proxy, without who asks it; nothing where there is none."""
    proxy = proxy_of(address)
    return f" through the proxy {_told(proxy)} that the environment names" if proxy is not None else ""


def _told(proxy: httpx.URL) -> str:
    return str(httpx.URL(scheme=proxy.scheme, host=proxy.host, port=proxy.port))


def _is_here(host: str) -> bool:
    name = host.rstrip(".").lower()
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    inner = getattr(found, "ipv4_mapped", None) or found
    return bool(inner.is_loopback or inner.is_unspecified)
