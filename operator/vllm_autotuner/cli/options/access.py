"""The options that let a command in: one spelling for `diagnose`, `doctor` and `record`.

Must not: read a file. A wrong combination is refused here, with what to write instead.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.observation.access import Access

__all__ = [
    "BasicAuthPasswordFile",
    "BasicAuthUser",
    "BearerTokenFile",
    "CAFile",
    "ClientCert",
    "ClientKey",
    "Header",
    "Insecure",
    "OrgID",
    "access_of",
]

_PANEL = "Access"

BearerTokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--bearer-token-file",
        "--prometheus-bearer-token-file",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="A bearer token; read again on each request, so a rotated one just works.",
    ),
]
BasicAuthUser: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--basic-auth-user",
        "--prometheus-username",
        metavar="NAME",
        rich_help_panel=_PANEL,
        help="User for basic authentication.",
    ),
]
BasicAuthPasswordFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--basic-auth-password-file",
        "--prometheus-password-file",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="The password of that user.",
    ),
]
CAFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca-file", "--prometheus-ca-file", metavar="FILE", rich_help_panel=_PANEL, help="The CA to trust (PEM)."
    ),
]
ClientCert: TypeAlias = Annotated[
    Path | None,
    typer.Option("--client-cert", metavar="FILE", rich_help_panel=_PANEL, help="Client certificate for mTLS (PEM)."),
]
ClientKey: TypeAlias = Annotated[
    Path | None,
    typer.Option("--client-key", metavar="FILE", rich_help_panel=_PANEL, help="Its key (PEM), if in a file apart."),
]
Insecure: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--insecure-skip-tls-verify",
        rich_help_panel=_PANEL,
        help="Accept any certificate. Anyone on the way can then read your credentials.",
    ),
]
Header: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "--prometheus-header",
        metavar="NAME:VALUE",
        rich_help_panel=_PANEL,
        help="An extra header; repeatable.",
    ),
]
OrgID: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TENANT", rich_help_panel=_PANEL, help="Tenant of a Mimir or Cortex (X-Scope-OrgID)."),
]


def access_of(
    *,
    bearer_token_file: Path | None,
    basic_auth_user: str | None,
    basic_auth_password_file: Path | None,
    ca_file: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    insecure: bool,
    headers: Sequence[str],
    org_id: str | None,
) -> Access:
    """Gather the options. Raises CommandError for those that do not fit together."""
    if bearer_token_file is not None and basic_auth_user is not None:
        raise CommandError("give a bearer token or a user name, not both")
    if (basic_auth_user is None) != (basic_auth_password_file is None):
        raise CommandError("--basic-auth-user and --basic-auth-password-file belong together")
    if client_key is not None and client_cert is None:
        raise CommandError("--client-key needs --client-cert")
    if insecure and ca_file is not None:
        raise CommandError("--insecure-skip-tls-verify accepts any certificate: then --ca-file has no meaning")
    extra = [*headers, *([] if org_id is None else [f"X-Scope-OrgID:{org_id}"])]
    return Access(
        bearer_token_file=bearer_token_file,
        username=basic_auth_user,
        password_file=basic_auth_password_file,
        ca_file=ca_file,
        client_cert=client_cert,
        client_key=client_key,
        insecure=insecure,
        headers=dict(_header(item) for item in extra),
    )


def _header(item: str) -> tuple[str, str]:
    # Neither sign can stand in a name, so the first one ends it.
    ends = [place for place in (item.find(":"), item.find("=")) if place >= 0]
    name, value = (item[: min(ends)].strip(), item[min(ends) + 1 :].strip()) if ends else ("", "")
    if not name or " " in name or not value or not item.isprintable() or not item.isascii():
        # Not what was written: it may be a credential.
        raise CommandError("--header needs NAME:VALUE (or NAME=VALUE), such as X-Scope-OrgID:team-a")
    return name, value
