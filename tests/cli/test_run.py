"""`vllm-autotuner run`: flags become settings, and what cannot work is said before anything starts."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_autotuner.api.spec import Mode
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.run import command as run_module
from vllm_autotuner.cli.run.command import new_identity
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.run import app as control_app
from vllm_autotuner.guardrails.concurrency import Share

URL = ("--prometheus-url", "http://prometheus:9090")


class Started(list[OperatorSettings]):
    """The settings of each operator that was started instead of the real one, and how it ends."""

    failure: Exception | None = None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()

    async def run(settings: OperatorSettings) -> None:
        started.append(settings)
        if started.failure is not None:
            raise started.failure

    monkeypatch.setattr(control_app, "run", run)
    monkeypatch.setattr(run_module, "configure_logging", lambda **_: None)
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    return started


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, ["run", *arguments], env=environment)


def test_the_url_is_enough(started: Started) -> None:
    assert invoke(*URL).exit_code == 0
    (settings,) = started
    assert settings.prometheus.url == "http://prometheus:9090"
    assert (settings.interval, settings.window) == (timedelta(seconds=15), timedelta(seconds=30))
    assert (settings.namespaces, settings.kubeconfig) == ((), None)
    assert (settings.lease_namespace, settings.lease_name) == ("default", "vllm-autotuner")
    assert (settings.listen_address, settings.web) == ("0.0.0.0:8080", False)
    assert (settings.mode_ceiling, settings.kill_switch, settings.limits_configmap) == (Mode.AUTOMATIC, False, "")
    assert not settings.read_only
    assert (settings.changes_at_once.text, settings.extra_gpus.text) == ("5%", "10%")


def test_the_url_may_come_from_the_environment(started: Started) -> None:
    assert invoke(PROMETHEUS_URL="http://elsewhere:9090").exit_code == 0
    assert started[0].prometheus.url == "http://elsewhere:9090"


def test_every_flag_arrives(started: Started) -> None:
    result = invoke(
        *URL,
        *("--prometheus-bearer-token-file", "token", "--prometheus-username", "me"),
        *("--prometheus-password-file", "password", "--prometheus-ca-file", "ca.crt"),
        *("--prometheus-header", "X-Scope-OrgID=gpu", "--prometheus-header", "X-Team: a=b"),
        *(
            "--prometheus-match",
            "cluster=eu",
            "--prometheus-client-cert",
            "tls.crt",
            "--prometheus-client-key",
            "tls.key",
        ),
        *("--interval", "5s", "--window", "1m", "--namespace", "chat", "-n", "search", "-n", "chat"),
        *("--lease-namespace", "ops", "--lease-name", "tuner", "--listen-address", "[::1]:9", "--web"),
        *("--mode-ceiling", "Approve", "--kill-switch", "--read-only", "--limits-configmap", "tuner-limits"),
        *("--max-concurrent-changes", "3", "--max-extra-gpus", "20%"),
        *("--kubeconfig", "config", "--log-format", "json", "--log-level", "debug"),
    )
    assert result.exit_code == 0, result.output
    (settings,) = started
    prometheus = settings.prometheus
    assert (prometheus.bearer_token_file, prometheus.username) == (Path("token"), "me")
    assert (prometheus.password_file, prometheus.ca_file) == (Path("password"), Path("ca.crt"))
    assert (prometheus.match, prometheus.client_cert, prometheus.client_key) == (
        ('cluster="eu"',),
        Path("tls.crt"),
        Path("tls.key"),
    )
    assert prometheus.headers == {"X-Scope-OrgID": "gpu", "X-Team": "a=b"}
    assert (settings.interval, settings.window) == (timedelta(seconds=5), timedelta(minutes=1))
    assert settings.namespaces == ("chat", "search")
    assert (settings.lease_namespace, settings.lease_name) == ("ops", "tuner")
    assert (settings.listen_address, settings.web, settings.kubeconfig) == ("[::1]:9", True, Path("config"))
    assert (settings.mode_ceiling, settings.kill_switch, settings.limits_configmap) == (
        Mode.APPROVE,
        True,
        "tuner-limits",
    )
    assert settings.read_only
    assert (settings.changes_at_once, settings.extra_gpus) == (Share(number=3), Share(percent=20))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param((), "--prometheus-url", id="no Prometheus"),
        pytest.param((*URL, "--interval", "soon"), "such as 500ms, 30s", id="no duration"),
        pytest.param((*URL, "--interval", "500ms"), "at least 1s", id="an interval that would only burn CPU"),
        pytest.param((*URL, "--window", "5s"), "window", id="a window shorter than the interval"),
        pytest.param((*URL, "--listen-address", "8080"), "host:port", id="no address"),
        pytest.param((*URL, "--prometheus-header", "X"), "NAME:VALUE", id="no header"),
        pytest.param((*URL, "--prometheus-match", "cluster"), "write LABEL=VALUE", id="no matcher"),
        pytest.param((*URL, "--prometheus-client-key", "k"), "needs --prometheus-client-cert", id="a key alone"),
        pytest.param((*URL, "--mode-ceiling", "Auto"), "Automatic", id="no mode"),
        pytest.param(
            (*URL, "--max-concurrent-changes", "0"), "a number of at least 1", id="no change at all is a ceiling"
        ),
        pytest.param((*URL, "--max-extra-gpus", "200%"), "1% to 100%", id="more than all"),
        pytest.param((*URL, "--log-level", "loud"), "warning", id="no level"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    started: Started, arguments: tuple[str, ...], says: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")
    assert not started


def test_a_header_that_is_none_is_not_shown(started: Started) -> None:
    result = invoke(*URL, "--prometheus-header", "s3cret-token")
    assert (result.exit_code, "s3cret" in result.output) == (2, False)


def test_a_failure_is_one_line_and_a_code(started: Started) -> None:
    started.failure = control_app.OperatorFailed("the cluster does not know VLLMService: run this")
    result = invoke(*URL)
    assert result.exit_code == 1
    assert result.stderr == "vllm-autotuner: the cluster does not know VLLMService: run this\n"


def test_help_has_examples() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "vllm-autotuner run --prometheus-url http://prometheus.monitoring:9090" in result.output


def test_an_identity_is_of_a_process_not_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "tuner-0")
    first, second = new_identity(), new_identity()
    assert first.startswith("tuner-0_")
    assert first != second
