"""The file of `run --prometheus-sources`: further Prometheus servers by the name in `spec.prometheus.source`.

A file, not options: each server has credentials and matchers of its own. Read once, at the start; the files with
tokens, passwords and certificates that it names are read again at each query.
Must not: accept a field that it does not know, or show a value: a password may stand where none belongs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from vllm_autotuner.api.errors import first_errors
from vllm_autotuner.api.fields import DnsLabel
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.options.yaml_file import yaml_document
from vllm_autotuner.observation.access import PrometheusAddress
from vllm_autotuner.observation.errors import Rejected
from vllm_autotuner.observation.label_matchers import matcher
from vllm_autotuner.observation.prometheus import refuse_unusable_url

__all__ = ["load_sources"]


class Server(BaseModel):
    """One Prometheus server; the same settings as the `--prometheus-...` options, in camelCase."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, hide_input_in_errors=True)

    url: str
    match: list[str] = []
    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    headers: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _knows_each_field(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            raise ValueError("write a mapping with url, and where needed match, credentials and headers")
        known = sorted(to_camel(name) for name in cls.model_fields)
        if unknown := sorted(str(name)[:80] for name in given if name not in known):
            raise ValueError(f"unknown field {unknown[0]}; known fields: {', '.join(known)}")
        return given

    @field_validator("url")
    @classmethod
    def _is_usable(cls, url: str) -> str:
        try:
            refuse_unusable_url(url)
        except Rejected as error:
            raise ValueError(str(error)) from error
        if "@" in url:
            raise ValueError("write credentials as username and passwordFile, not in the URL")
        return url

    @field_validator("match")
    @classmethod
    def _are_matchers(cls, match: list[str]) -> list[str]:
        return [matcher(each) for each in match]

    @model_validator(mode="after")
    def _logs_in_one_way(self) -> Self:
        if self.bearer_token_file is not None and self.username is not None:
            raise ValueError("set bearerTokenFile or username, not both")
        if self.password_file is not None and self.username is None:
            raise ValueError("passwordFile needs username")
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("clientKey needs clientCert")
        return self

    def address(self) -> PrometheusAddress:
        """Return it as the operator uses it."""
        return PrometheusAddress(
            url=self.url,
            match=tuple(self.match),
            bearer_token_file=self.bearer_token_file,
            username=self.username,
            password_file=self.password_file,
            ca_file=self.ca_file,
            client_cert=self.client_cert,
            client_key=self.client_key,
            headers=self.headers,
        )


_SERVERS: TypeAdapter[dict[DnsLabel, Server]] = TypeAdapter(dict[DnsLabel, Server])


def load_sources(path: Path | None) -> Mapping[str, PrometheusAddress]:
    """Read a file of servers; none without a file. Raises CommandError."""
    document = yaml_document(path) if path is not None else None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise CommandError(f"{path}: write a mapping from the name of a source to its settings")
    try:
        found = _SERVERS.validate_python(document)
    except ValidationError as error:
        raise CommandError(f"{path}: {first_errors(error, 'sources').replace('.[key]', '')}") from error
    return {name: server.address() for name, server in found.items()}
