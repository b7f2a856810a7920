"""The web page of a running operator (`run --web`): what it shows of a real change, and what nobody gets from it."""

import base64
import hashlib
import re
from typing import Any, Final

import httpx
import pytest
import yaml
from tests.overview.elements import Elements, runs_and_loads_nothing

from e2e.side_by_side import CROWD, PATIENCE, Play, side_by_side
from e2e.stage import engine_env, plain_client, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRETS: Final = ("hidden-engine-key", "hidden-token")
"""In arguments and environment of the service: where people put what they should not."""


async def ask(play: Play, path: str, *, method: str = "GET") -> httpx.Response:
    async with plain_client(f"http://{play.stage.address}") as client:
        return await client.request(method, path)


def token_of(play: Play) -> str:
    """What the operator itself may not show: its credentials."""
    found: dict[str, Any] = yaml.safe_load(play.stage.kubeconfig.read_text(encoding="utf-8"))
    return str(found["users"][0]["user"]["token"])


@side_by_side(stage="web")
async def test_pages_show_a_change_and_neither_run_a_script_nor_take_a_write_nor_tell_a_secret(play: Play) -> None:
    template = engine_env(step_base_ms=40, step_per_seq_ms=0.5, startup_seconds=1)
    template["spec"]["containers"][0]["env"].append({"name": "TOKEN", "value": SECRETS[1]})
    await play.serves("shown", clients=CROWD, podTemplate=template, engine={"args": ["--api-key", SECRETS[0]]})
    ended = await play.finished("shown")
    own = f"/services/{play.stage.namespace}/shown"

    async def told() -> bool:
        return "-change-0" in (await ask(play, own)).text

    await until("the change is on the page", told, seconds=PATIENCE)
    page = Elements((await ask(play, own)).text)
    [mark] = [found["aria-label"] for tag, found in page.elements if (found.get("href") or "").endswith("-change-0")]
    assert f"maxNumSeqs {ended['fromValue']} -> {ended['toValue']}" in (mark or "")
    for path, status in (("/", 200), ("/?q=shown", 200), ("/?q=%3Cscript%3E", 200), (own, 200), ("/services/a/b", 404)):
        answer = await ask(play, path)
        assert answer.status_code == status, path
        [style] = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';"), path
        assert "unsafe" not in policy
        runs_and_loads_nothing(answer.text)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            refused = await ask(play, path, method=method)
            assert refused.status_code == httpx.codes.METHOD_NOT_ALLOWED, (method, path)
    for path in ("/", own, "/services/a/b", "/metrics", "/healthz", "/readyz"):
        text = (await ask(play, path)).text
        assert [each for each in (*SECRETS, token_of(play)) if each in text] == [], path
    args = (await play.stage.deployment("shown"))["spec"]["template"]["spec"]["containers"][0]
    assert all(each in str(args) for each in SECRETS), "the secrets are where they were put"
