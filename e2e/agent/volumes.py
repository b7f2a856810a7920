"""A pod's volumes as folders of the machine, and where each container wants to see them.

Files of ConfigMaps, Secrets and projections are swapped in as a whole (`..data`), so that a program that watches them
sees one change. Apart from `pod`, because the refresh goes on while the containers run.
Must not: mount (`launch` does), or invent a volume: what is not supported raises Unstartable with reason FailedMount.
"""

import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.agent.api import ApiClient
from e2e.agent.environment import PodFacts, Source, values_of
from e2e.agent.objects import Object, Unstartable, uid_of
from e2e.agent.process import Mount

ROOT_CA: Final = "kube-root-ca.crt"
_FAILED: Final = "FailedMount"
_CHANGING: Final = ("configMap", "secret", "projected", "downwardAPI")
_REFRESH_TOKEN_AT: Final = 0.8
"""Share of a token's life after which a new one is fetched, as in a kubelet."""

Files = dict[str, tuple[bytes, int | None]]
"""Content and mode by relative path."""

Read = Callable[[Source], Awaitable[Object | None]]
"""Reads a ConfigMap or Secret of the pod's namespace; None when there is none."""


class Volumes:
    """The volumes of one pod below one folder."""

    def __init__(self, folder: Path, *, api: ApiClient, read: Read) -> None:
        self._folder = folder
        self._api = api
        self._read = read
        self._written: dict[str, Files] = {}
        self._tokens: dict[str, tuple[bytes, float]] = {}

    async def write(self, facts: PodFacts) -> None:
        """Make or refresh all volumes. Raises Unstartable, ApiError or one of ConnectionFailed."""
        for volume in facts.pod["spec"].get("volumes") or []:
            await self._write_one(volume, facts=facts)

    def mounts(self, container: Object, *, pod: Object) -> list[Mount]:
        """Return what the container sees where."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
        mounts = []
        for entry in container.get("volumeMounts") or []:
            source = self._path(volumes[entry["name"]])
            if entry.get("subPath"):
                source = source / entry["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)
            mounts.append(Mount(source=os.path.realpath(source), target=entry["mountPath"]))
        return mounts

    def find(self, path: Path, *, container: Object, pod: Object) -> Path | None:
        """Return where on this machine the container's path lies, None when it is on no volume."""
        for mount in sorted(self.mounts(container, pod=pod), key=lambda mount: len(mount.target), reverse=True):
            if path.is_relative_to(mount.target):
                return Path(mount.source) / path.relative_to(mount.target)
        return None

    def _path(self, volume: Object) -> Path:
        return Path(volume["hostPath"]["path"]) if "hostPath" in volume else self._folder / str(volume["name"])

    async def _write_one(self, volume: Object, *, facts: PodFacts) -> None:
        path = self._path(volume)
        if "hostPath" in volume:
            if not path.exists() and volume["hostPath"].get("type") != "DirectoryOrCreate":
                raise Unstartable(_FAILED, f"hostPath {path} does not exist on this machine")
            if not path.exists():
                path.mkdir(parents=True)
        elif "emptyDir" in volume:
            path.mkdir(parents=True, exist_ok=True)
        elif kind := next((kind for kind in _CHANGING if kind in volume), None):
            sources: list[Object] = (
                volume[kind]["sources"] if kind == "projected" else [{kind: _plain(kind, volume[kind])}]
            )
            files: Files = {}
            for source in sources:
                files |= await self._projected(source, facts=facts, volume=volume["name"])
            default = volume[kind].get("defaultMode", 0o644)
            files = {name: (content, mode or default) for name, (content, mode) in files.items()}
            if files != self._written.get(volume["name"]):
                _swap_in(path, files)
                self._written[volume["name"]] = files
        else:
            kinds = ", ".join(sorted(volume.keys() - {"name"}))
            raise Unstartable(_FAILED, f'volume "{volume["name"]}" is a {kinds}, which the process node does not have')

    async def _projected(self, source: Object, *, facts: PodFacts, volume: str) -> Files:
        if token := source.get("serviceAccountToken"):
            return {token["path"]: (await self._token(token, facts=facts, volume=volume), None)}
        if downward := source.get("downwardAPI"):
            return {
                item["path"]: (_downward(item, facts).encode(), item.get("mode"))
                for item in downward.get("items") or []
            }
        for kind, plural in (("configMap", "configmaps"), ("secret", "secrets")):
            if reference := source.get(kind):
                found = await self._read((plural, reference["name"]))
                if found is None and not reference.get("optional"):
                    raise Unstartable(_FAILED, f'{plural[:-1]} "{reference["name"]}" not found')
                return _selected(values_of(found or {}), reference)
        raise Unstartable(_FAILED, f"projected source {sorted(source)} is not known to the process node")

    async def _token(self, wanted: Object, *, facts: PodFacts, volume: str) -> bytes:
        key = f"{volume}/{wanted['path']}"
        token, refresh_at = self._tokens.get(key, (b"", 0.0))
        if time.monotonic() < refresh_at:
            return token
        metadata = facts.pod["metadata"]
        seconds = wanted.get("expirationSeconds", 3600)
        account = facts.field("spec.serviceAccountName")
        answer = await self._api.post(
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {
                    "audiences": [wanted["audience"]] if wanted.get("audience") else [],
                    "expirationSeconds": seconds,
                    "boundObjectRef": {
                        "kind": "Pod",
                        "apiVersion": "v1",
                        "name": metadata["name"],
                        "uid": uid_of(facts.pod),
                    },
                },
            },
        )
        token = str(answer["status"]["token"]).encode()
        self._tokens[key] = (token, time.monotonic() + _REFRESH_TOKEN_AT * seconds)
        return token


def changes(pod: Object) -> bool:
    """Whether the pod has a volume that may change while it runs (its token apart, which lives an hour)."""
    for volume in pod["spec"].get("volumes") or []:
        if "configMap" in volume or "secret" in volume:
            return True
        for source in (volume.get("projected") or {}).get("sources") or []:
            if "secret" in source or source.get("configMap", {}).get("name", ROOT_CA) != ROOT_CA:
                return True
    return False


def relocated(text: str, mounts: Sequence[Mount]) -> str:
    """Replace container paths by those of the machine, for a process that cannot have mounts of its own.

    Only where a path begins: at the start, or after one of `= : , space`.
    """
    if not mounts:
        return text
    sources = {mount.target.rstrip("/"): mount.source for mount in mounts}
    # In one pass, the longest first: what was put in must not be replaced again.
    targets = "|".join(re.escape(target) for target in sorted(sources, key=len, reverse=True))
    pattern = rf"(?:(?<=[=:,\s])|^)({targets})(?=/|$|[:,\s])"
    return re.sub(pattern, lambda match: sources[match[1]], text)


def _plain(kind: str, volume: Object) -> Object:
    # A volume says `secretName`, a projected source `name`.
    return volume | {"name": volume["secretName"]} if kind == "secret" else volume


def _selected(values: Mapping[str, bytes], reference: Object) -> Files:
    items = reference.get("items")
    if items is None:
        return {name: (content, None) for name, content in values.items()}
    files: Files = {}
    for item in items:
        if item["key"] in values:
            files[item["path"]] = (values[item["key"]], item.get("mode"))
        elif not reference.get("optional"):
            raise Unstartable(_FAILED, f"references non-existent config key: {item['key']}")
    return files


def _downward(item: Object, facts: PodFacts) -> str:
    if "fieldRef" in item:
        return facts.field(item["fieldRef"]["fieldPath"])
    return facts.resource(item["resourceFieldRef"], container=item["resourceFieldRef"]["containerName"])


def _swap_in(folder: Path, files: Files) -> None:
    """Write a new set of files and make it visible by one rename."""
    folder.mkdir(parents=True, exist_ok=True)
    former = folder.joinpath("..data").resolve() if folder.joinpath("..data").is_symlink() else None
    fresh = folder / f"..{time.time_ns()}"
    fresh.mkdir()
    for name, (content, mode) in files.items():
        target = fresh / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode or 0o644)
    pointer = folder / "..data_tmp"
    pointer.symlink_to(fresh.name)
    pointer.rename(folder / "..data")
    wanted = {Path(name).parts[0] for name in files}
    for entry in folder.iterdir():
        if entry.is_symlink() and entry.name != "..data" and entry.name not in wanted:
            entry.unlink()
    for name in wanted:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    if former:
        shutil.rmtree(former, ignore_errors=True)
