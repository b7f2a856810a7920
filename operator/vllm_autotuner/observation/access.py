"""Credentials and TLS for a metrics source: tokens, passwords, client certificates, CAs and extra headers.

Separate from the HTTP clients, because two of them (queries and page scrapes here, the doctor's library client) need
the same headers and the same TLS. Every file is read again when it is needed, so that rotated tokens and certificates
work. Must not: print or log; `scrubbed` removes secrets from the texts of servers and libraries.
"""

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from vllm_autotuner.observation.errors import UnusableFile

__all__ = ["OPEN", "Access", "PrometheusAddress", "TrustedConnection", "advised", "scrubbed", "shown_url"]

SHORTEST_SECRET: Final = 6
"""Characters from which a credential is taken out of foreign error texts: a shorter one would blank ordinary words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials and trust. `str()` of it never shows a value of a header."""

    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    """PEM, with its chain. For mutual TLS."""
    client_key: Path | None = None
    """PEM, not encrypted. None: it is in `client_cert`."""
    insecure: bool = False
    """True accepts any certificate: for a look at a laptop's own test server, never for a credential that matters."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def request_headers(self) -> dict[str, str]:
        """Return the headers of one request. Raises UnusableFile when a file cannot be read or is no credential."""
        headers = dict(self.headers)
        if self.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {_token(self.bearer_token_file)}"
        elif self.username is not None:
            password = _text(self.password_file) if self.password_file is not None else ""
            pair = base64.b64encode(f"{self.username}:{password}".encode()).decode("ascii")
            headers["Authorization"] = f"Basic {pair}"
        return headers


OPEN: Final = Access()
"""No credentials, and the usual CAs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAddress(Access):
    """Where a Prometheus answers and how to be let in."""

    url: str
    match: tuple[str, ...] = ()
    """PromQL matchers (`label_matchers.matcher`) that every series must meet."""
    timeout: timedelta = timedelta(seconds=10)
    """A query that takes longer is a failed query. Longer delays the loop, shorter fails on big fleets. Our choice."""


class TrustedConnection:
    """The TLS side of an access, kept up with files that are rotated under it."""

    def __init__(self, access: Access) -> None:
        """Raises UnusableFile for files that can never work."""
        self._access = access
        self._seen: tuple[tuple[int, int], ...] = ()
        self.context = self._context()
        self.renew()

    def renew(self) -> None:
        """Read the certificate again when it changed; connections that are made from now on use it."""
        access = self._access
        if access.client_cert is None:
            return
        files = [file for file in (access.client_cert, access.client_key) if file is not None]
        try:
            seen = tuple((found.st_mtime_ns, found.st_ino) for found in (file.stat() for file in files))
            if seen == self._seen:
                return
            # Without a password OpenSSL would ask for one at the terminal of an encrypted key.
            self.context.load_cert_chain(access.client_cert, access.client_key, password="")
        except OSError as error:
            place = " and ".join(str(file) for file in files)
            raise UnusableFile(f"cannot use the client certificate {place}: {error.strerror or error}") from error
        self._seen = seen

    def _context(self) -> ssl.SSLContext:
        try:
            # Without a CA of its own: the bundle of the HTTP library, which is there in the smallest image as well.
            file = self._access.ca_file
            context = httpx.create_ssl_context() if file is None else ssl.create_default_context(cafile=file)
        except OSError as error:
            raise UnusableFile(f"cannot read the CA file {self._access.ca_file}: {error.strerror or error}") from error
        if self._access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _token(file: Path) -> str:
    token = _text(file)
    # A line break inside would end up, secret and all, in the error text of the HTTP library.
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UnusableFile(f"cannot read the credentials: {file} is not a token (one line of printable characters)")
    return token


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UnusableFile(f"cannot read the credentials: {file}: {why}") from error


def advised(reason: str) -> str:
    """Return why a server could not be reached, with what to do about a certificate of a CA that is not trusted."""
    if "self-signed" in reason or "unable to get local issuer certificate" in reason:
        return f"{reason}; name the CA that signed it with --ca-file FILE (operator: --prometheus-ca-file)"
    return reason


def scrubbed(text: str, *, headers: Mapping[str, str]) -> str:
    """Take the credentials of a request out of what a server or a library said about it."""
    for value in headers.values():
        for secret in (value, *value.split()):
            if len(secret) >= SHORTEST_SECRET and secret not in ("Bearer", "Basic"):
                text = text.replace(secret, "(hidden)")
    return text


def shown_url(url: str) -> str:
    """Return the URL without user, password, query and fragment: what may stand in a message, a report or a label."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
