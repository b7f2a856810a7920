"""Being let in: the real client against a real TLS server, and that no credential is ever shown."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.tls import Authority, serving_tls
from typer.testing import CliRunner, Result

from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.observation.access import Access, PrometheusAddress, scrubbed, shown_url
from vllm_autotuner.observation.errors import Rejected, Unreachable
from vllm_autotuner.observation.prometheus import PrometheusSource

EMPTY = '{"status":"success","data":{"resultType":"vector","result":[]}}'


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def asked(url: str, **access: Any) -> None:
    source = PrometheusSource(PrometheusAddress(url=url, **access))
    try:
        await source.query("up", at=0)
    finally:
        await source.close()


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, ["diagnose", *args])
    assert "Traceback" not in result.output
    return result


async def test_a_ca_of_its_own_is_trusted_and_others_are_not(authority: Authority, tmp_path: Path) -> None:
    with serving_tls(EMPTY, server=authority.sign("server")) as (url, visits):
        await asked(url, ca_file=authority.file)
        with pytest.raises(Unreachable, match=r"CERTIFICATE_VERIFY_FAILED.*name the CA that signed it with --ca-file"):
            await asked(url)
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await asked(url, ca_file=Authority(tmp_path, name="other").file)
    assert len(visits.headers) == 1


async def test_any_certificate_passes_only_where_that_was_asked_for(authority: Authority) -> None:
    with serving_tls(EMPTY, server=authority.sign("server")) as (url, visits):
        await asked(url, insecure=True)
    assert len(visits.headers) == 1


async def test_a_client_certificate_is_shown(authority: Authority) -> None:
    mine = authority.sign("autotuner")
    with serving_tls(EMPTY, server=authority.sign("server"), clients_of=authority.file) as (url, visits):
        await asked(url, ca_file=authority.file, client_cert=mine.cert, client_key=mine.key)
        with pytest.raises(Unreachable):
            await asked(url, ca_file=authority.file)
    assert visits.clients == ["autotuner"]


async def test_a_rotated_client_certificate_is_used_from_the_next_request_on(authority: Authority) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    with serving_tls(EMPTY, server=authority.sign("server"), clients_of=authority.file) as (url, visits):
        address = PrometheusAddress(url=url, ca_file=authority.file, client_cert=first.cert, client_key=first.key)
        source = PrometheusSource(address)
        await source.query("up", at=0)
        second.cert.replace(first.cert)
        second.key.replace(first.key)
        await source.query("up", at=0)
        await source.close()
    assert visits.clients == ["first", "second"]


def test_a_certificate_and_a_key_that_do_not_belong_together_are_refused(authority: Authority) -> None:
    one, other = authority.sign("one"), authority.sign("other")
    with pytest.raises(Rejected, match="client certificate"):
        PrometheusSource(PrometheusAddress(url="https://x", client_cert=one.cert, client_key=other.key))


def test_all_of_it_by_options(authority: Authority, tmp_path: Path) -> None:
    mine, token = authority.sign("cli"), tmp_path / "token"
    token.write_text("t0p-secret-token\n")
    with serving_tls(EMPTY, server=authority.sign("server"), clients_of=authority.file) as (url, visits):
        result = run(
            *("--prometheus", url, "--ca-file", str(authority.file), "--client-cert", str(mine.cert)),
            *("--client-key", str(mine.key), "--bearer-token-file", str(token)),
            *("--header", "X-Team: search", "--header", "X-Key=a:b", "--org-id", "team-a"),
        )
    assert result.exit_code == 2, result.output
    sent = visits.headers[0]
    assert sent["Authorization"] == "Bearer t0p-secret-token"
    assert (sent["X-Team"], sent["X-Key"], sent["X-Scope-OrgID"]) == ("search", "a:b", "team-a")
    assert visits.clients[0] == "cli"


def test_an_engine_behind_a_proxy_is_let_in_the_same_way(authority: Authority, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2-hunter2")
    page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    with serving_tls(page, server=authority.sign("server")) as (url, visits):
        result = run(
            *("--metrics", url, "--ca-file", str(authority.file), "--for", "200ms", "--scrape-interval", "100ms"),
            *("--basic-auth-user", "me", "--basic-auth-password-file", str(password)),
        )
    assert result.exit_code == 0, result.output
    assert visits.headers[0]["Authorization"] == "Basic bWU6aHVudGVyMi1odW50ZXIy"


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 500, 503])
def test_a_server_that_repeats_a_credential_does_not_get_it_printed(
    authority: Authority, tmp_path: Path, status: int
) -> None:
    token = tmp_path / "token"
    token.write_text("t0p-secret-token")
    says = "who is Bearer t0p-secret-token with s3cret-header?"
    with serving_tls(says, server=authority.sign("server"), status=status) as (url, _):
        where = url.replace("https://", "https://me:url-passw0rd@")
        result = run(
            *("--prometheus", where, "--ca-file", str(authority.file), "--bearer-token-file", str(token)),
            *("--header", "X-Key: s3cret-header"),
        )
    assert result.exit_code == 1
    for secret in ("t0p-secret-token", "s3cret-header", "url-passw0rd"):
        assert secret not in result.output


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is not a token"), ("two\nlines", "is not a token"), ("two words", "is not a token")],
    ids=["an empty file", "two lines", "two words"],
)
def test_a_file_that_holds_no_token_is_refused_without_showing_it(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(Rejected, match=says) as caught:
        Access(bearer_token_file=file).request_headers()
    assert "two" not in str(caught.value).replace(str(file), "")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--client-key", "k"], "--client-key needs --client-cert"),
        (["--client-cert", "nothing.pem"], "client certificate nothing.pem"),
        (["--ca-file", "c", "--insecure-skip-tls-verify"], "or --ca-file, not both"),
        (["--bearer-token-file", "t", "--basic-auth-user", "u"], "not both"),
        (["--header", "s3cret"], "--header needs NAME:VALUE"),
        (["--header", "X: a\x07"], "--header needs NAME:VALUE"),
        (["--header", "Content-Length: 9999"], "--header: Content-Length tells how long a request is"),
        (["--org-id", ""], "--org-id needs the name of a tenant"),
        (["--org-id", "a\x07"], "--org-id needs the name of a tenant"),
    ],
)
def test_options_that_do_not_fit_are_one_line(args: list[str], says: str) -> None:
    result = run("--prometheus", "http://127.0.0.1:1", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr
    assert "s3cret" not in result.stderr


def test_the_representation_of_an_access_hides_its_headers() -> None:
    assert "s3cret" not in repr(Access(headers={"X-Key": "s3cret"}))


@given(st.text(min_size=6).filter(str.split), st.text(), st.text())
def test_no_text_keeps_a_credential(secret: str, before: str, after: str) -> None:
    headers = {"X-Key": secret}
    assert secret not in scrubbed(before + secret + after, headers=headers).replace("(hidden)", "\0")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:pw@host:9090/p?token=x#y", "http://host:9090/p"),
        ("http://host", "http://host"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_a_url_is_shown_without_what_is_private(url: str, shown: str) -> None:
    assert shown_url(url) == shown
