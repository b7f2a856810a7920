"""Commands as a user types them, on the bed: in a shell, in the repository, as the admin, with the bed's programs.

Apart from `Bed.kubectl`, which takes arguments and not text: what a page says is run to the letter.
"""

import asyncio
import os
import sys
from pathlib import Path

from e2e.bed import REPOSITORY, Bed, import_path


async def sh(bed: Bed, script: str) -> str:
    """Return both outputs. Raises AssertionError with them when a command fails."""
    commands = (bed.bin["kubectl"].parent, bed.bin["helm"].parent, Path(sys.executable).parent)
    path = os.pathsep.join([*map(str, commands), os.environ.get("PATH", "")])
    own = {"PATH": path, "KUBECONFIG": str(bed.admin_kubeconfig), "PYTHONPATH": import_path()}
    process = await asyncio.create_subprocess_exec(
        *("sh", "-ec", script),
        cwd=REPOSITORY,
        env=os.environ | own,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{script}\n{output.decode()}"
    return output.decode()
