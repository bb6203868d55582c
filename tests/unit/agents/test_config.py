"""The agent's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.config import read_config
from agents.errors import ConfigError

LEAST = ["--server", "http://api:8080/", "--devices", "fake:T4, v100"]


def test_defaults_fit_a_node_of_one_machine() -> None:
    config = read_config([*LEAST, "--node", "node-1"], {})
    assert config.server == "http://api:8080"
    assert config.gpu_types == ("t4", "v100")
    assert (config.listen_host, config.listen_port, config.advertise) == ("127.0.0.1", 0, None)
    assert config.state_dir == Path.home() / ".headroom" / "agents" / "node-1"
    assert (config.rack, config.failure_domain, config.region) == ("rack-0", "zone-0", "default")
    assert (config.time_factor, config.restore_on_exit, config.token) == (1.0, False, "")


def test_server_and_token_may_come_from_the_environment_and_options_win(tmp_path: Path) -> None:
    environment = {"HEADROOM_SERVER": "http://other", "HEADROOM_TOKEN": "from-environment"}
    assert read_config(["--devices", "fake:t4"], environment).server == "http://other"
    assert read_config(LEAST, environment).token == "from-environment"
    assert read_config([*LEAST, "--token", "given"], environment).token == "given"
    file = tmp_path / "token"
    file.write_text("from-file\n", encoding="utf-8")
    assert read_config([*LEAST, "--token-file", str(file)], environment).token == "from-file"


def test_addresses_of_both_families_are_read() -> None:
    config = read_config([*LEAST, "--listen", "[::1]:9000"], {})
    assert (config.listen_host, config.listen_port) == ("::1", 9000)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--devices", "fake:t4"], "no server"),
        (["--server", "http://x", "--devices", "nvml"], "fake:TYPE"),
        (["--server", "http://x", "--devices", "fake:"], "fake:TYPE"),
        (["--server", "http://x", "--devices", "fake:t4,,t4"], "fake:TYPE"),
        ([*LEAST, "--node", "Node_1"], "lower-case"),
        ([*LEAST, "--node", "x" * 64], "63"),
        ([*LEAST, "--listen", "9000"], "HOST:PORT"),
        ([*LEAST, "--listen", "localhost:70000"], "HOST:PORT"),
        ([*LEAST, "--time-factor", "0"], "time-factor"),
        ([*LEAST, "--time-factor", "nan"], "time-factor"),
        ([*LEAST, "--token-file", "/nonexistent/token"], "token file"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_config(arguments, {})
