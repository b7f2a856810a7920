"""A throw-away CA, the certificates it signs, and an HTTPS server that may ask for a client's."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typing_extensions import override

LOOPBACK = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    """Writes its files into `folder`."""

    def __init__(self, folder: Path, *, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        self._self = _built(self._subject, issuer=self._subject, key=self._key, signer=self._key, ca=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._self.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _built(_name(name), issuer=self._subject, key=key, signer=self._key, ca=False)
        files = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        files.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _built(
    subject: x509.Name,
    *,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    ca: bool,
) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2099, 1, 1, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(LOOPBACK, critical=False)
        .sign(signer, hashes.SHA256())
    )


@dataclass(slots=True)
class Visits:
    """What clients of a server showed: header values, and the common names of their certificates."""

    headers: list[dict[str, str]]
    clients: list[str]


@contextmanager
def serving_tls(
    body: str, *, server: Certificate, status: int = 200, clients_of: Path | None = None
) -> Iterator[tuple[str, Visits]]:
    """Serve `body` over TLS until left; `clients_of`: the CA that clients' certificates must come from."""
    visits = Visits([], [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer()

        def _answer(self) -> None:
            visits.headers.append(dict(self.headers.items()))
            shown = self.connection.getpeercert()
            subject = dict(pair for part in (shown or {}).get("subject", ()) for pair in part)
            visits.clients.append(subject.get("commonName", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body.encode())

        @override
        def log_message(self, *args: object) -> None:
            """Stay silent."""

    class Server(ThreadingHTTPServer):
        @override
        def handle_error(self, request: object, client_address: object) -> None:
            """A refused handshake is what some tests are about."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.cert, server.key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of)
    httpd = Server(("127.0.0.1", 0), Handler)
    # The handshake belongs to the thread of the request: a client that refuses must not stop the server.
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"https://127.0.0.1:{httpd.server_address[1]}", visits
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
