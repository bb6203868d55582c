"""Process settings: environment in, one frozen value out, built once in bootstrap and handed on.

Nothing else reads the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from logging import getLevelNamesMapping
from math import inf
from pathlib import Path
from typing import Any

from solvers.domain.webhook import SECRET_PREFIX
from solvers.errors import InputError

DESCRIPTORS_SPARE = 256
"""File descriptors that an API process keeps for everything but connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one process runs. Every field is read from `HEADROOM_<FIELD>`; durations in seconds, sizes in bytes."""

    database_url: str = ""
    """SQLAlchemy or libpq URL of any PostgreSQL 15 or newer. Empty: the embedded server under `home`."""
    database_direct_url: str = ""
    """PostgreSQL itself, where `database_url` leads to a pooler of connections: for LISTEN and migrations."""
    database_read_url: str = ""
    """A streaming replica of the same database, for reports and history."""
    read_lag_s_max: float = 10.0
    """How far behind it may be before the primary answers instead."""
    home: Path = Path(".headroom")
    """Where the embedded database, logs, tokens and pid files live."""
    cluster: str = "default"
    host: str = "127.0.0.1"
    port: int = 8080
    log_level: str = "INFO"
    drain_s: float = 0.0
    """How long an API process that was asked to end says that it is not ready, and serves, before it stops."""
    pool_size: int = 20
    """Database connections one API process may hold."""
    place_interval_s: float = 60.0
    tune_interval_s: float = 5.0
    account_interval_s: float = 60.0
    learn_interval_s: float = 60.0
    retention_interval_s: float = 3600.0
    lease_ttl_s: float = 8.0
    solve_grace_s: float = 2.0
    """How long a planner child that has found nothing yet may overrun its deadline before it is killed."""
    solve_memory_mib: int = 8192
    """Memory of a planner child; one that wants more fails, and the best that it had found stands."""
    retention_raw_days: int = 2
    """Of offered load and the log of reports."""
    retention_sample_hours: int = 6
    """Of samples of devices and replicas; what is older is there by the minute."""
    retention_raw_bytes: int = 0
    retention_minute_bytes: int = 0
    """Bounds beside the time; 0 bounds nothing."""
    retention_minute_days: int = 90
    retention_cycle_days: int = 30
    report_interval_s: float = 5.0
    """What joining agents are told."""
    report_clock_skew_s: float = 60.0
    """How far a report's time may lie in the future of this server's."""
    body_bytes_max: int = 4_194_304
    connections_max: int = 16_384
    """Of one API process; fewer where it may not open so many files."""
    connections_per_peer_max: int = 8_192
    """Of one address, which may be a proxy's."""
    rate_limit_per_s: float = 200.0
    """Sustained requests per second allowed per token, doubled for bursts: a quarter for that of a node, five times as
    many for others of agents.
    """
    page_size_max: int = 500
    idempotency_ttl_s: float = 86_400.0
    doorbell_heartbeat_s: float = 20.0
    metrics_public: bool = True
    metrics_fresh_s: float = 5.0
    """What `/metrics` says of the fleet is at most so old; scrapers that come within it share one look."""
    planner_metrics_port: int = 0
    """Where a planner process tells Prometheus of itself; 0: nowhere."""
    planner_metrics_host: str = "127.0.0.1"
    otlp_endpoint: str = ""
    """Where planning cycles are sent as traces (OTLP over HTTP), such as `http://collector:4318`; empty: nowhere."""
    otlp_headers: str = ""
    """What goes along, `NAME=VALUE` by commas."""
    webhook_interval_s: float = 5.0
    """How often the leading planner looks for alarms and for what webhooks are to be told."""
    webhook_networks: str = "public"
    """Where webhooks may lead, by commas: networks, and `public` for whatever is routed in the internet."""
    webhook_secrets_dir: str = ""
    """Folder of the files that webhooks may name as their secrets; empty: none."""
    public_url: str = ""
    """Where browsers reach this server, such as `https://headroom.example`; for sign-in by a provider."""
    oidc_issuer: str = ""
    """An identity provider (OpenID Connect) that people sign in with at the console; empty: by tokens alone."""
    oidc_client: str = ""
    oidc_secret_file: str = ""
    """File of the client's secret; empty: it has none."""
    oidc_claim: str = "groups"
    """What of an id token says who may look."""
    oidc_roles: str = ""
    """`VALUE=ROLE` or `VALUE=ROLE@PROJECT` by commas: what each value of that claim grants."""
    tls: bool = False
    """Speak TLS alone, with a certificate of the own authority unless `tls_cert` names one."""
    tls_cert: str = ""
    tls_key: str = ""
    """Files of the server's own certificate and key, if they come from elsewhere."""
    tls_names: str = ""
    """Names and addresses of this server, by commas, for the certificate that the own authority signs; empty: this
    host's.
    """
    ca: str = ""
    """File of the own authority, which API processes share; empty: `authority.pem` under `home`."""
    nodes_ca: str = ""
    """File of authorities from elsewhere that sign nodes' certificates; the own one then signs for nobody."""
    nodes_tls: str = "optional"
    """Over TLS: `optional`, nodes without certificates go on by their token alone; `required`, none is let in."""
    node_certificate_days: float = 30.0

    @property
    def session_url(self) -> str:
        """Where a connection is a session of PostgreSQL; empty: the embedded server."""
        return self.database_direct_url or self.database_url

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # A retention below 0 would drop what is not even old, and no clock comes to an interval of NaN.
            if isinstance(value, (int, float)) and not 0 <= value < inf:
                raise InputError(f"HEADROOM_{field.name.upper()} must be a number from 0 on")
        for name in (
            "place_interval_s", "tune_interval_s", "account_interval_s", "learn_interval_s", "retention_interval_s",
            "lease_ttl_s", "report_interval_s", "node_certificate_days", "webhook_interval_s", "doorbell_heartbeat_s",
            "pool_size", "page_size_max", "body_bytes_max", "solve_memory_mib",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise InputError(f"HEADROOM_{name.upper()} must be greater than 0")
        if self.log_level.upper() not in getLevelNamesMapping():
            raise InputError(f"HEADROOM_LOG_LEVEL={self.log_level!r} is no level; one is INFO, another WARNING")
        if self.nodes_tls not in ("optional", "required"):
            raise InputError("HEADROOM_NODES_TLS must be optional or required")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InputError("HEADROOM_TLS_CERT and HEADROOM_TLS_KEY belong together")
        for name in ("port", "planner_metrics_port"):
            if getattr(self, name) > 65_535:
                raise InputError(f"HEADROOM_{name.upper()} must lie between 0 and 65535")


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Build settings from an environment; a value that cannot be read is an InputError naming its variable."""
    arguments: dict[str, Any] = {}
    for field in fields(Settings):
        variable = f"HEADROOM_{field.name.upper()}"
        text = environment.get(variable)
        if text is None:
            continue
        try:
            arguments[field.name] = _parse(str(field.type), text)
        except ValueError:
            raise InputError(f"{variable}={text!r} is not a valid {field.type}") from None
    return Settings(**arguments)


def secret_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that webhooks may name as their secrets: those whose names say so."""
    return {name: text for name, text in environment.items() if name.startswith(SECRET_PREFIX)}


def _parse(kind: str, text: str) -> object:
    if kind == "bool":
        lowered = text.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise ValueError(text)
    parsers = {"int": int, "float": float, "str": str, "Path": Path}
    return parsers[kind](text)
