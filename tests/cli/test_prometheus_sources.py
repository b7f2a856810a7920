"""`run --prometheus-sources`: a file of servers becomes addresses by name, and what cannot work names its place."""

from pathlib import Path

import pytest
from tests.cli.test_run import URL, Started, invoke, started

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.run.prometheus_sources import load_sources
from vllm_autotuner.observation.access import PrometheusAddress

__all__ = ["started"]

EVERYTHING = """
eu:
  url: https://mimir.eu/prometheus
  match: [cluster=eu, 'team!~"test.*"']
  bearerTokenFile: /etc/eu/token
  caFile: /etc/eu/ca.crt
  clientCert: /etc/eu/tls.crt
  clientKey: /etc/eu/tls.key
  headers: {X-Scope-OrgID: gpu}
us-1:
  url: http://us
  username: reader
  passwordFile: /etc/us/password
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "sources.yaml"
    path.write_text(text)
    return path


def test_every_setting_of_a_server_arrives(tmp_path: Path) -> None:
    assert load_sources(file(tmp_path, EVERYTHING)) == {
        "eu": PrometheusAddress(
            url="https://mimir.eu/prometheus",
            match=('cluster="eu"', 'team!~"test.*"'),
            bearer_token_file=Path("/etc/eu/token"),
            ca_file=Path("/etc/eu/ca.crt"),
            client_cert=Path("/etc/eu/tls.crt"),
            client_key=Path("/etc/eu/tls.key"),
            headers={"X-Scope-OrgID": "gpu"},
        ),
        "us-1": PrometheusAddress(url="http://us", username="reader", password_file=Path("/etc/us/password")),
    }


@pytest.mark.parametrize("text", ["", "{}", "# none yet\n"])
def test_a_file_may_be_empty(tmp_path: Path, text: str) -> None:
    assert load_sources(file(tmp_path, text)) == {}


def test_without_a_file_there_is_none() -> None:
    assert load_sources(None) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("- eu", "write a mapping from the name of a source to its settings", id="a list"),
        pytest.param("eu: http://eu", "sources.eu: write a mapping with url", id="an address alone"),
        pytest.param("eu: {}", "sources.eu.url: Field required", id="no address"),
        pytest.param("eu: {url: 'eu:9090'}", "is not a URL such as http://localhost:9090", id="no URL"),
        pytest.param("eu: {url: 'http://me:secret@eu'}", "write credentials as username", id="a password in the URL"),
        pytest.param("EU: {url: http://eu}", "sources.EU: write a name of at most 63", id="no name for a source"),
        pytest.param("1: {url: http://eu}", "sources[1]: Input should be a valid string", id="a name that is a number"),
        pytest.param(
            "eu: {url: http://eu, tokenFile: t}",
            "sources.eu: unknown field tokenFile; known fields: bearerTokenFile, caFile",
            id="an unknown field",
        ),
        pytest.param("eu: {url: http://eu, match: cluster=eu}", "eu.match: Input should be a valid list", id="no list"),
        pytest.param("eu: {url: http://eu, match: [cluster]}", "eu.match: label matcher 'cluster'", id="no matcher"),
        pytest.param("eu: {url: http://eu, headers: {Tenant: 7}}", "eu.headers.Tenant", id="a header of digits"),
        pytest.param(
            "eu: {url: http://eu, username: me, bearerTokenFile: t}",
            "sources.eu: set bearerTokenFile or username, not both",
            id="two ways to log in",
        ),
        pytest.param("eu: {url: http://eu, passwordFile: p}", "passwordFile needs username", id="a password alone"),
        pytest.param("eu: {url: http://eu, clientKey: k}", "clientKey needs clientCert", id="a key alone"),
        pytest.param("eu: [", "is not YAML", id="no YAML"),
        pytest.param("[" * 20_000, "is nested too deeply", id="nested"),
    ],
)
def test_what_cannot_work_is_named_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(CommandError) as refused:
        load_sources(path)
    assert str(refused.value).startswith(str(path))
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot read .*missing\.yaml: No such file"):
        load_sources(tmp_path / "missing.yaml")


def test_the_operator_is_started_with_the_servers_of_the_file(started: Started, tmp_path: Path) -> None:
    assert invoke(*URL, "--prometheus-sources", str(file(tmp_path, "eu: {url: http://eu}"))).exit_code == 0
    assert started[0].sources == {"eu": PrometheusAddress(url="http://eu")}
    assert started[0].prometheus.url == URL[1]


def test_a_wrong_file_is_told_before_anything_starts(started: Started, tmp_path: Path) -> None:
    result = invoke(*URL, "--prometheus-sources", str(file(tmp_path, "eu: {}")))
    assert result.exit_code == 2
    assert "Field required" in result.output
    assert not started
