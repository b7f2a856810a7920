"""Connecting: who we are, freshly read, and what comes out when the server answers nonsense."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_autotuner.cluster import client
from vllm_autotuner.cluster.client import Connection, connect, own_namespace
from vllm_autotuner.cluster.errors import ClusterError, Refused, Unavailable


def kubeconfig(tmp_path: Path, server: str, **user: Any) -> Path:
    names = {"name": "here"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [names | {"cluster": {"server": server}}],
        "users": [names | {"user": user}],
        "contexts": [names | {"context": {"cluster": "here", "user": "here"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def used(api: Any) -> list[str | None]:
    return [request.headers.get("Authorization") for request in list(api)]


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        pytest.param({"token": "secret"}, "Bearer secret", id="a token"),
        pytest.param({"username": "me", "password": "pw"}, "Basic bWU6cHc=", id="user and password"),
        pytest.param({}, None, id="nobody in particular"),
    ],
)
async def test_both_clients_ask_as_the_same_user(
    kmock: Any, tmp_path: Path, user: dict[str, str], expected: str | None
) -> None:
    kmock["get /x"] << {"kind": "X"}
    async with connect(kubeconfig(tmp_path, str(kmock.url), **user)) as connection:
        await connection.request("GET", "/x")
        async with connection.session() as session, session.get(f"{connection.server}/x") as response:
            assert response.status == 200
    assert used(kmock) == [expected, expected]


async def test_a_rotated_token_file_is_read_again(kmock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kmock["get /x"] << {"kind": "X"}
    token = tmp_path / "token"
    token.write_text("one")
    path = kubeconfig(tmp_path, str(kmock.url), tokenFile=str(token))
    async with connect(path) as connection, connection.session() as session:
        await connection.request("GET", "/x")
        token.write_text("two")
        await connection.request("GET", "/x")
        monkeypatch.setattr(client, "CREDENTIALS_AGE", 0.0)
        await connection.request("GET", "/x")
        await (await session.get(f"{connection.server}/x")).read()
    assert used(kmock) == ["Bearer one", "Bearer one", "Bearer two", "Bearer two"], "read each time, or never"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"<html>please log in</html>", id="a login page"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_an_answer_that_is_no_object_is_unavailable(kmock: Any, tmp_path: Path, answer: bytes) -> None:
    kmock["get /x"] << answer
    async with connect(kubeconfig(tmp_path, str(kmock.url))) as connection:
        with pytest.raises(Unavailable):
            await connection.request("GET", "/x")


async def test_a_server_that_does_not_answer_in_time_is_unavailable(kmock: Any, tmp_path: Path) -> None:
    kmock["get /x"] << (lambda: asyncio.sleep(30))
    async with connect(kubeconfig(tmp_path, str(kmock.url))) as connection:
        with pytest.raises(Unavailable) as caught:
            await connection.request("GET", "/x", timeout=0.05)
    assert caught.value.reason == "NoAnswer"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("kind: Config", id="without a context"),
        pytest.param("{", id="not YAML"),
        pytest.param("current-context: x\ncontexts: []", id="a context that is not there"),
    ],
)
async def test_an_unusable_kubeconfig_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(Refused):
        async with connect(path):
            pass


@pytest.mark.parametrize("named", [True, False], ids=["by option", "by KUBECONFIG"])
async def test_a_missing_kubeconfig_is_refused_and_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    absent = tmp_path / "absent"
    monkeypatch.setenv("KUBECONFIG", f"{absent}:")
    with pytest.raises(Refused, match=f"no kubeconfig: {absent} does not exist or is empty; use --kubeconfig FILE"):
        async with connect(absent if named else None):
            pass


async def test_an_empty_kubeconfig_beside_another_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    monkeypatch.setenv("KUBECONFIG", f"{empty}:{kubeconfig(tmp_path, 'http://127.0.0.1:1')}")
    async with connect() as connection:
        assert connection.server == "http://127.0.0.1:1"


async def test_a_folder_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"cannot use the kubeconfig {tmp_path}: Is a directory"):
        async with connect(tmp_path):
            pass


def test_the_namespace_of_the_pod_is_known_only_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "namespace").write_text("tuning\n")
    assert own_namespace() == "tuning"
    (tmp_path / "namespace").unlink()
    assert own_namespace() is None


async def tail(connection: Connection, **limits: int) -> bytes:
    return await connection.tail("/log", query={}, **limits)


async def test_the_end_of_a_log_is_kept_and_an_endless_one_is_cut(kmock: Any, tmp_path: Path) -> None:
    text = b"".join(b"%06d\n" % number for number in range(100_000))
    kmock["get /log"] << text
    async with connect(kubeconfig(tmp_path, str(kmock.url))) as connection:
        assert await tail(connection, keep_bytes=14, read_bytes=10_000_000) == b"099998\n099999\n"
        cut = await tail(connection, keep_bytes=14, read_bytes=70_000)
        assert text.index(cut) < 200_000


async def test_nothing_but_our_errors_leaves_a_broken_connection(tmp_path: Path) -> None:
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1")) as connection:
        with pytest.raises(ClusterError):
            await connection.request("GET", "/x")
