"""A small client of the API server: requests, and a list-and-watch that never gives up.

Apart from everything else, because it is the one place that knows HTTP status codes and broken watches.
Must not: cache, retry a single request, or know what an object means.
"""

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import yaml

from e2e.agent.objects import Object, uid_of

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"

_REQUEST_SECONDS: Final = 20.0
_WATCH_SECONDS: Final = 300
_LONGEST_PAUSE: Final = 2.0
_LARGEST_OBJECT: Final = 16 * 1024 * 1024

_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """The server refused: `code` is the HTTP status, `reason` its word for it (NotFound, Conflict, ...)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


ConnectionFailed: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""No usable answer: the request may or may not have been done."""


class Follower(Protocol):
    """Who is kept equal to a list of objects."""

    def replace(self, items: list[Object]) -> None:
        """Take the whole list: whatever is not in it is gone."""
        ...

    def apply(self, kind: str, item: Object) -> None:
        """Take one change: ADDED, MODIFIED or DELETED."""
        ...


class ApiClient:
    """Requests with the credentials of a kubeconfig (bearer token or client certificate). Use as a context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self.server: str = cluster["server"].rstrip("/")
        self.ca_data = _content(cluster, "certificate-authority", folder=kubeconfig.parent)
        token = user.get("token") or _content(user, "token", folder=kubeconfig.parent).decode().strip()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = _tls_context(cluster, user, ca_data=self.ca_data, folder=kubeconfig.parent)
        self._session: aiohttp.ClientSession | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the API server."""
        parts = urlsplit(self.server)
        return parts.hostname or "127.0.0.1", parts.port or 443

    async def __aenter__(self) -> "ApiClient":
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            # A watch sends an object as one line.
            read_bufsize=_LARGEST_OBJECT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def get(self, path: str, **parameters: str) -> Object:
        """Read an object or a list. Raises ApiError or one of ConnectionFailed, as all requests do."""
        return await self._request("GET", path, parameters=parameters)

    async def post(self, path: str, body: Object) -> Object:
        """Create an object."""
        return await self._request("POST", path, body=body)

    async def put(self, path: str, body: Object) -> Object:
        """Replace an object."""
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: Object, *, kind: str = STRATEGIC) -> Object:
        """Change an object."""
        return await self._request("PATCH", path, body=body, content_type=kind)

    async def delete(self, path: str, body: Object) -> Object:
        """Delete an object; `body` is the DeleteOptions."""
        return await self._request("DELETE", path, body=body)

    async def follow(
        self, path: str, follower: Follower, *, selector: str = "", listed: Callable[[], None] = lambda: None
    ) -> None:
        """Keep the follower equal to the server's list, for ever; `listed` is called after each complete list."""
        pause = 0.1
        while True:
            try:
                answer = await self.get(path, **({"fieldSelector": selector} if selector else {}))
                follower.replace([_with_kind(item, answer) for item in answer["items"]])
                listed()
                pause = 0.1
                await self._watch(path, follower, selector=selector, version=answer["metadata"]["resourceVersion"])
            except (ApiError, *ConnectionFailed, ValueError) as error:
                logger.info("watch of %s is interrupted: %r", path, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _watch(self, path: str, follower: Follower, *, selector: str, version: str) -> None:
        while True:
            parameters = {
                "watch": "true",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_SECONDS),
            } | ({"fieldSelector": selector} if selector else {})
            async with self._open.get(
                self.server + path,
                params=parameters,
                timeout=aiohttp.ClientTimeout(total=None, connect=_REQUEST_SECONDS, sock_read=_WATCH_SECONDS + 30),
            ) as response:
                await _raise_refusal(response)
                async for line in response.content:
                    event = json.loads(line)
                    item = event["object"]
                    if event["type"] == "ERROR":
                        raise ApiError(item.get("code", 500), item.get("reason", ""), item.get("message", ""))
                    version = item["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        follower.apply(event["type"], item)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        parameters: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        async with self._open.request(
            method,
            self.server + path,
            params=parameters,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
        ) as response:
            await _raise_refusal(response)
            answer: Object = await response.json(content_type=None)
            return answer

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the client as a context manager"
        return self._session


class ObjectsByUid:
    """A follower that only remembers, and calls back after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.items: dict[str, Object] = {}
        self._changed = changed

    def replace(self, items: list[Object]) -> None:
        """See `Follower`."""
        self.items = {uid_of(item): item for item in items}
        self._changed()

    def apply(self, kind: str, item: Object) -> None:
        """See `Follower`."""
        if kind == "DELETED":
            self.items.pop(uid_of(item), None)
        else:
            self.items[uid_of(item)] = item
        self._changed()


async def until_answered(request: Callable[[], Awaitable[_Answer]], *, fine: tuple[int, ...] = ()) -> _Answer | None:
    """Repeat a request until the server has decided. A refusal listed in `fine` gives None, another raises ApiError."""
    pause = 0.1
    while True:
        try:
            return await request()
        except ApiError as error:
            if error.code in fine:
                return None
            if error.code < 500 and error.code != 429:
                raise
            logger.info("the API server answered %s", error)
        except ConnectionFailed as error:
            logger.info("the API server gave no answer: %r", error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _raise_refusal(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    status: dict[str, Any] = {}
    with suppress(ValueError):
        status = json.loads(text)
    raise ApiError(response.status, status.get("reason", response.reason or ""), status.get("message", text[:300]))


def _with_kind(item: Object, answer: Object) -> Object:
    # The items of a list come without their kind, those of a watch with it.
    return {"kind": str(answer.get("kind", "")).removesuffix("List"), "apiVersion": answer.get("apiVersion")} | item


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _content(entry: Object, key: str, *, folder: Path) -> bytes:
    """Return the value that a kubeconfig gives in the field itself or by file, empty when it does not."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    if path := entry.get("tokenFile" if key == "token" else key):
        return folder.joinpath(str(path)).read_bytes()
    return b""


def _tls_context(cluster: Object, user: Object, *, ca_data: bytes, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca_data.decode() or None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "client-certificate" in user:
        context.load_cert_chain(folder / user["client-certificate"], folder / user["client-key"])
    return context
