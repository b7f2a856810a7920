"""Credentials, certificates and headers for a metrics source.

Must not: read a file. A wrong combination is refused here, with what to write instead.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.values import header_of
from vllm_autotuner.observation.access import Access

__all__ = ["AccessOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The access options as typed."""

    PANEL: ClassVar = "Access to the source"

    bearer_token_file: Annotated[
        Path | None,
        typer.Option(
            "--bearer-token-file",
            "--prometheus-bearer-token-file",
            metavar="FILE",
            help="File with a bearer token. It is read at each request, so a rotated token takes effect.",
        ),
    ] = None
    basic_auth_user: Annotated[
        str | None,
        typer.Option(
            "--basic-auth-user", "--prometheus-username", metavar="NAME", help="User for basic authentication."
        ),
    ] = None
    basic_auth_password_file: Annotated[
        Path | None,
        typer.Option(
            "--basic-auth-password-file",
            "--prometheus-password-file",
            metavar="FILE",
            help="File with the password of that user.",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", "--prometheus-ca-file", metavar="FILE", help="CA certificate to trust (PEM)."),
    ] = None
    client_cert: Annotated[
        Path | None, typer.Option("--client-cert", metavar="FILE", help="Client certificate for mTLS (PEM).")
    ] = None
    client_key: Annotated[
        Path | None,
        typer.Option("--client-key", metavar="FILE", help="Key of that certificate, if in a separate file (PEM)."),
    ] = None
    insecure_skip_tls_verify: Annotated[
        bool,
        typer.Option(
            "--insecure-skip-tls-verify",
            help="Accept any server certificate. Credentials can then be intercepted.",
        ),
    ] = False
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "--prometheus-header", metavar="NAME:VALUE", help="Additional header. Repeatable."),
    ] = None
    org_id: Annotated[
        str | None, typer.Option(metavar="TENANT", help="Tenant of a Mimir or Cortex (header X-Scope-OrgID).")
    ] = None

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return any(getattr(self, one.name) for one in fields(self))

    def access(self) -> Access:
        """Return them as one value. Raises CommandError for options that contradict each other."""
        if self.bearer_token_file is not None and self.basic_auth_user is not None:
            raise CommandError("give --bearer-token-file or --basic-auth-user, not both")
        if (self.basic_auth_user is None) != (self.basic_auth_password_file is None):
            raise CommandError("give --basic-auth-user and --basic-auth-password-file together")
        if self.client_key is not None and self.client_cert is None:
            raise CommandError("--client-key needs --client-cert FILE")
        if self.insecure_skip_tls_verify and self.ca_file is not None:
            raise CommandError("give --insecure-skip-tls-verify or --ca-file, not both")
        headers = dict(header_of("--header", item) for item in self.header or ())
        if self.org_id is not None:
            if not self.org_id.strip() or not self.org_id.isprintable() or not self.org_id.isascii():
                raise CommandError("--org-id needs the name of a tenant, such as team-a")
            headers["X-Scope-OrgID"] = self.org_id.strip()
        return Access(
            bearer_token_file=self.bearer_token_file,
            username=self.basic_auth_user,
            password_file=self.basic_auth_password_file,
            ca_file=self.ca_file,
            client_cert=self.client_cert,
            client_key=self.client_key,
            insecure=self.insecure_skip_tls_verify,
            headers=headers,
        )
