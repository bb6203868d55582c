"""The agent's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.config import read_config
from agents.errors import ConfigError

LEAST = ["--server", "http://api:8080/", "--devices", "fake:T4, v100"]


def test_defaults_fit_a_node_of_one_machine() -> None:
    config = read_config([*LEAST, "--node", "node-1"], {})
    assert config.servers == ("http://api:8080",)
    assert config.gpu_types == ("t4", "v100")
    assert (config.listen_host, config.listen_port, config.endpoint) == ("127.0.0.1", 0, None)
    assert config.state_dir == Path.home() / ".headroom" / "agents" / "node-1"
    assert (config.rack, config.failure_domain, config.region) == ("rack-0", "zone-0", "default")
    assert (config.time_factor, config.restore_on_exit, config.join_token) == (1.0, False, "")


def test_server_and_token_may_come_from_the_environment_and_options_win(tmp_path: Path) -> None:
    environment = {"HEADROOM_SERVER": "http://other", "HEADROOM_TOKEN": "from-environment"}
    assert read_config(["--devices", "fake:t4"], environment).servers == ("http://other",)
    assert read_config(LEAST, environment).join_token == "from-environment"
    assert read_config([*LEAST, "--token", "given"], environment).join_token == "given"
    file = tmp_path / "token"
    file.write_text("from-file\n", encoding="utf-8")
    assert read_config([*LEAST, "--token-file", str(file)], environment).join_token == "from-file"


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


class TestRealGpus:
    """Options of hosts with real GPUs."""

    def test_no_gpu_is_taken_unasked_and_devices_are_given_back(self) -> None:
        config = read_config(["--server", "http://api", "--devices", "nvml:all"], {})
        assert config.nvidia is not None
        assert (config.gpu_types, config.nvidia.selection, config.restore_on_exit) == ((), "nvml:all", True)
        assert (config.nvidia.ports, config.nvidia.worker_host) == (range(21000, 22000), "127.0.0.1")
        assert (config.nvidia.helper, config.nvidia.mps_pipes, config.nvidia.executables) == (None, None, None)
        assert (config.nvidia.environment, config.nvidia.secret_dirs, config.nvidia.secret_env) == ((), (), ())
        assert config.nvidia.secret_command is None
        assert (config.nvidia.workers_as_agent, config.nvidia.worker_uids) == (False, None)
        assert (config.nvidia.mps_protocol, config.route_grace_s) == ("auto", 5.0)
        assert (config.alone_after_s, config.governed, config.dry_run) == (600.0, True, False)
        with pytest.raises(SystemExit):
            read_config(["--server", "http://api"], {})

    def test_every_option_arrives(self) -> None:
        options = ["--devices", "nvml:GPU-1,GPU-2", "--helper", "/run/h.sock", "--ports", "5000-5009", "--keep-on-exit"]
        options += ["--mps-protocol", "2", "--mps-pipes", "/run/p", "--executables", "/bin/a,/bin/b", "--log-mib", "2"]
        options += ["--route-grace-s", "0", "--alone-after", "30", "--governor", "off", "--dry-run"]
        options += ["--worker-host", "10.0.0.7", "--listen", "0.0.0.0:9000"]
        options += ["--secret-dir", "/run/secrets/{project},/etc/shared", "--secret-env", "HF_TOKEN,shop:API_KEY"]
        options += ["--secret-command", "/opt/ask-vault"]
        options += ["--environment", "PYTHONPATH,HOME", "--worker-uids", "200000-265535", "--worker-homes", "/srv/w"]
        config = read_config(["--server", "http://api", *options], {})
        found = config.nvidia
        assert found is not None
        assert (found.selection, found.helper, found.ports) == (
            "nvml:GPU-1,GPU-2",
            Path("/run/h.sock"),
            range(5000, 5010),
        )
        assert (found.mps_protocol, found.mps_pipes, found.executables) == ("2", Path("/run/p"), ("/bin/a", "/bin/b"))
        assert (found.environment, found.secret_env) == (("PYTHONPATH", "HOME"), ("HF_TOKEN", "shop:API_KEY"))
        assert (found.worker_uids, found.worker_homes) == (range(200_000, 265_536), Path("/srv/w"))
        assert found.secret_command == "/opt/ask-vault"
        assert found.secret_dirs == ("/run/secrets/{project}", "/etc/shared")
        assert (config.route_grace_s, found.log_bytes_max, found.worker_host) == (0.0, 2 * 2**20, "10.0.0.7")
        assert (config.restore_on_exit, config.alone_after_s, config.governed, config.dry_run) == (
            False,
            30.0,
            False,
            True,
        )

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--ports", "9"], "FIRST-LAST"),
            (["--ports", "80-90"], "1024"),
            (["--ports", "70000-70001"], "65535"),
            (["--ports", "5009-5000"], "between"),
            (["--executables", "serve"], "absolute"),
            (["--secret-dir", "secrets"], "secret-dir"),
            (["--secret-dir", "/"], "secret-dir"),
            (["--secret-env", "HF_TOKEN,no name"], "secret-env"),
            (["--secret-command", "ask-vault"], "secret-command"),
            (["--environment", "LD_*"], "environment"),
            (["--route-grace-s", "-1"], "route-grace"),
            (["--alone-after", "nan"], "alone-after"),
            (["--log-mib", "0"], "log-mib"),
            (["--worker-uids", "0-70000"], "1024"),
            (["--worker-uids", "2000-4294967295"], "FIRST-LAST"),
            (["--worker-uids", "+2000-3000"], "FIRST-LAST"),
            (["--listen", "0.0.0.0:1"], "worker-host"),
        ],
    )
    def test_what_cannot_work_is_refused(self, options: list[str], reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            read_config(["--server", "http://api", "--devices", "nvml:all", *options], {})


def test_several_servers_are_named_one_by_one_or_at_once() -> None:
    several = ["--server", "http://a:1/, http://b:1", "--server", "http://c:1", "--devices", "fake:T4"]
    assert read_config(several, {}).servers == ("http://a:1", "http://b:1", "http://c:1")
    environment = {"HEADROOM_SERVER": "http://a:1,http://b:1"}
    assert read_config(["--devices", "fake:T4"], environment).servers == ("http://a:1", "http://b:1")
