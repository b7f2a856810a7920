"""From a container's spec to the command that runs it: image, environment, command line, mounts, working folder.

Apart from `container`, because all of it happens before the start and may be impossible for a while.
Must not: start anything, or remember anything.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.agent.context import PodContext
from e2e.agent.environment import environment, expand, expand_all, references
from e2e.agent.objects import Object, Unstartable
from e2e.agent.process import Command, Mount
from e2e.agent.volumes import relocated

TERMINATION_LOG: Final = "/dev/termination-log"


async def prepared(container: Object, *, context: PodContext, work: Path, termination_log: Path) -> Command:
    """Return what to run. Raises Unstartable, ApiError or one of ConnectionFailed.

    With mounts of its own the container sees its volumes where it expects them. Without, paths of volumes in its
    arguments and environment are replaced by those of the machine, and TERMINATION_LOG names the file to write to.
    """
    node = context.node
    assert context.network is not None
    isolated = node.network.mode == "namespace"
    mounts = context.volumes.mounts(container, pod=context.pod)
    image = node.images.find(container["image"])
    if not isolated:
        container = _relocated(container, mounts)
    namespace = context.pod["metadata"]["namespace"]
    sources = {source: await node.read(namespace, source) for source in references(container)}
    base = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "HOSTNAME": context.pod["metadata"]["name"],
        "POD_IP": context.ip,
        **(context.variables or {}),
    }
    base |= {name: expand(value, base) for name, value in image.env.items()}
    env = environment(container, facts=context.facts, sources=sources, base=base)
    argv = expand_all(image.command_line(container), env)
    if not argv:
        raise Unstartable("CreateContainerError", "no command specified")
    folder = container.get("workingDir") or str(work)
    if isolated:
        target = container.get("terminationMessagePath") or TERMINATION_LOG
        return Command(
            argv=argv,
            env=env,
            folder=folder,
            prefix=context.network.command_prefix,
            mounts=[*mounts, Mount(source=str(termination_log), target=target)],
            kept=node.kept,
        )
    return Command(
        argv=argv,
        env=env | {"TERMINATION_LOG": str(termination_log)},
        folder=folder,
        prefix=context.network.command_prefix,
    )


def _relocated(container: Object, mounts: Sequence[Mount]) -> Object:
    """Return the spec with other paths in what the manifest says; the image table speaks of this machine already."""
    words = {key: [relocated(word, mounts) for word in container.get(key) or []] for key in ("command", "args")}
    env = [
        entry | {"value": relocated(entry["value"], mounts)} if "value" in entry else entry
        for entry in container.get("env") or []
    ]
    folder = relocated(container.get("workingDir") or "", mounts)
    return container | words | {"env": env, "workingDir": folder}
