"""vLLM's own router for the tests that put it in front of engines: which one, where, and how it comes there.

    python -m e2e.vllm_router   install it into an environment of its own in the user's cache folder, once (30 MB)

A test only looks (`locate`): it must not need the internet. Must not: need root, or touch any environment but its own.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from e2e.binaries import cache_folder

VERSION: Final = "0.1.17"
MISSING: Final = "vLLM's router is not installed: run `python -m e2e.vllm_router`"
POLICIES: Final = (
    "round_robin",
    "random",
    "power_of_two",
    "cache_aware",
    "kv_aware",
    "consistent_hash",
    "sticky_least_loaded",
)


def router_folder() -> Path:
    """Return where the installation is kept for all checkouts of this user."""
    return cache_folder().with_name(f"vllm-router-{VERSION}")


def locate() -> Path | None:
    """Return the Python that has the router; None when there is none."""
    python = router_folder() / "bin" / "python"
    return python if python.is_file() else None


def install() -> Path:
    """Install the router when it is absent, complete or not there, and return its Python."""
    if (found := locate()) is not None:
        return found
    folder = router_folder()
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(unfinished)], check=True)
        pip = [str(unfinished / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"vllm-router=={VERSION}"], check=True)
        # Only its Python is used, by `-m`: the paths inside scripts may name the folder it was made in.
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder / "bin" / "python"


def command(python: Path, *, policy: str, port: int, metrics_port: int, workers: list[str]) -> list[str]:
    """Return the command line of a router in front of these base URLs."""
    return [
        str(python), "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-port", str(metrics_port), "--policy", policy, "--worker-urls", *workers,
    ]  # fmt: skip


if __name__ == "__main__":
    try:
        print(install())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"vLLM's router could not be installed: {failed}")
