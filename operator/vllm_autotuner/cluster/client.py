"""One authenticated HTTP connection to the Kubernetes API, JSON in and out.

Apart from `adapter`, because authentication (service account, kubeconfig) and requests are different concerns.
The generated client provides authentication, TLS and the connection pool; its typed models are not used: they cost
memory and start-up time, and every caller here works with plain dicts.
Must not: depend on a kind, retry, or write to the kubeconfig.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration

from vllm_autotuner.cluster.bounded_json import BoundedResponse, decoded
from vllm_autotuner.cluster.errors import (
    NOT_CONFIGURED,
    UNREADABLE,
    Refused,
    Unavailable,
    from_response,
    translated,
)

JSON: Final = "application/json"
SERVER_SIDE_APPLY: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"

REQUEST_TIMEOUT: Final = 10.0
"""Seconds until a request counts as unanswered. The client's own default is 300 s: twenty ticks."""
POOL_SIZE: Final = 16
"""Connections. The write throttle admits as many at a time."""
CREDENTIALS_AGE: Final = 60.0
"""Seconds after which kubeconfig credentials are read again; bound tokens live an hour, rotated at 80 % of it."""
DEFAULT_NAMESPACE: Final = "default"

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Connection:
    """An open connection. Made by `connect`, closed by its context manager."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = REQUEST_TIMEOUT,
    ) -> dict[str, Any]:
        """Send one request and return the decoded object. `timeout` in seconds, whole answer. Raises ClusterError."""
        name = f"{method} {path}"
        async with self._response(
            method, path, query=query, body=body, content_type=content_type, accept=accept, timeout=timeout
        ) as response:
            with translated(name):
                answer = await decoded(await response.read())
        if not isinstance(answer, dict):
            raise Unavailable(f"{name}: the response is not a JSON object", reason=UNREADABLE)
        return answer

    async def tail(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        keep_bytes: int,
        read_bytes: int,
        timeout: float = REQUEST_TIMEOUT,
    ) -> bytes:
        """Read a byte stream and keep its last `keep_bytes`; stop after `read_bytes`. Raises ClusterError."""
        kept = bytearray()
        seen = 0
        async with self._response("GET", path, query=query, accept="*/*", timeout=timeout) as response:
            with translated(f"GET {path}"):
                async for chunk in response.content.iter_chunked(65_536):
                    seen += len(chunk)
                    kept += chunk
                    del kept[:-keep_bytes]
                    if seen >= read_bytes:
                        break
        return bytes(kept)

    @property
    def server(self) -> str:
        """Base URL of the API."""
        return str(self._client.configuration.host)

    async def authorization(self) -> str | None:
        """Return the Authorization header as of now, None when a client certificate says who we are."""
        with translated("credentials"):
            settings = await self._client.configuration.auth_settings()
        value: str | None = settings.get("BearerToken", {}).get("value")
        return value.strip() if value else None

    def session(self) -> aiohttp.ClientSession:
        """Return a new session for another HTTP client (kopf's watches): same trust, proxy, user and bounds of answers.

        Each request carries the credentials of its moment, so that a rotated token interrupts nothing. The caller
        closes it. Connections are not limited: each watch keeps one for itself.
        """
        configuration = self._client.configuration

        async def authorize(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            if (header := await self.authorization()) is not None:
                request.headers["Authorization"] = header
            return await handler(request)

        connector = aiohttp.TCPConnector(limit=0, ssl=self._client.rest_client.ssl_context)
        return aiohttp.ClientSession(
            connector=connector,
            middlewares=(authorize,),
            proxy=configuration.proxy,
            trust_env=True,
            response_class=BoundedResponse,
        )

    async def close(self) -> None:
        """Close all connections. Requests in progress fail."""
        await self._client.close()  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        name = f"{method} {path}"
        with translated(name):
            serialized = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=dict(body) if body is not None else None,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*serialized, _request_timeout=aiohttp.ClientTimeout(total=timeout))
        response: aiohttp.ClientResponse = answer.response
        try:
            if not 200 <= response.status < 300:
                with translated(name):
                    text = await response.read()
                raise from_response(status=response.status, body=text, headers=response.headers, request=name)
            yield response
        finally:
            response.release()


@asynccontextmanager
async def connect(
    kubeconfig: Path | None = None, *, context: str | None = None, pool_size: int = POOL_SIZE
) -> AsyncIterator[Connection]:
    """Connect as the pod's service account, or by a kubeconfig when one is named or there is no service account.

    `context` chooses one of the kubeconfig; None is its current one. Raises Refused when there is nothing to connect
    with. Nothing is sent yet: the first request finds out whether the API answers.
    """
    configuration, files = Configuration(), _kubeconfigs(kubeconfig)
    by_account = kubeconfig is None and context is None and _in_cluster()
    if not by_account and not any(map(_holds_something, files)):
        message = f"no kubeconfig: {_shown(files)} does not exist or is empty; use --kubeconfig FILE, or set KUBECONFIG"
        raise Refused(message, reason=NOT_CONFIGURED)
    try:
        if by_account:
            kubernetes_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            await _load_kubeconfig(configuration, kubeconfig=_joined(files), context=context)
        configuration.connection_pool_maxsize = pool_size
        # As kubectl does: OpenSSL's strict mode (Python 3.13's default) refuses the CA of many existing clusters.
        configuration.disable_strict_ssl_verification = True
        client = ApiClient(configuration)
    except Exception as error:
        # Whatever is wrong with the files (syntax, missing keys, unreadable certificates) comes as an exception of its
        # own kind; for the administrator they are all the same.
        why = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        source = "the pod's service account" if by_account else f"the kubeconfig {_shown(files)}"
        message = f"cannot use {source}: {why}"
        raise Refused(message, reason=NOT_CONFIGURED) from error
    client.user_agent = "vllm-autotuner"
    connection = Connection(client)
    try:
        yield connection
    finally:
        await connection.close()


def namespace_in_use(kubeconfig: Path | None = None, *, context: str | None = None) -> str:
    """Return the namespace that `connect` with the same arguments means if none is named, as kubectl does."""
    if kubeconfig is None and context is None and _in_cluster():
        return own_namespace() or DEFAULT_NAMESPACE
    try:
        files = _joined(_kubeconfigs(kubeconfig))
        known, current = kubernetes_config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
    except Exception:  # as in `connect`, which has told what is wrong with the file
        return DEFAULT_NAMESPACE
    chosen = current if context is None else next((each for each in known if each["name"] == context), None)
    return str(((chosen or {}).get("context") or {}).get("namespace") or DEFAULT_NAMESPACE)


def own_namespace() -> str | None:
    """Return the namespace this pod runs in, None outside a cluster."""
    file = _SERVICE_ACCOUNT / "namespace"
    return file.read_text().strip() or None if file.exists() else None


def _in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (_SERVICE_ACCOUNT / "token").exists()


def _kubeconfigs(kubeconfig: Path | None) -> list[Path]:
    """The files that are read, as by kubectl: the one that is named, those of KUBECONFIG, else the usual one."""
    if kubeconfig is not None:
        return [kubeconfig]
    named = [each for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    return [Path(each).expanduser() for each in named or ["~/.kube/config"]]


def _holds_something(file: Path) -> bool:
    return file.exists() and not (file.is_file() and file.stat().st_size == 0)


def _joined(files: Sequence[Path]) -> str:
    """The files as KUBECONFIG names them. An empty one is passed over, as by kubectl: the library fails on it."""
    return os.pathsep.join(str(file) for file in files if _holds_something(file))


def _shown(files: Sequence[Path]) -> str:
    return " and ".join(str(path) for path in files)


async def _load_kubeconfig(configuration: Configuration, *, kubeconfig: str, context: str | None) -> None:
    loader = await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
        config_file=kubeconfig,
        context=context,
        client_configuration=configuration,
        persist_config=False,
    )
    clock = asyncio.get_running_loop().time
    read_at = clock()

    async def refresh(target: Configuration) -> None:
        # A kubeconfig may name a token file or a program: both hand out tokens that live shorter than we do.
        nonlocal read_at
        if clock() - read_at >= CREDENTIALS_AGE:
            read_at = clock()
            await loader.load_and_set(target)

    configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]  # generated as `None`
