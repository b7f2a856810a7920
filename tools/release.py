"""Builds everything that is published of one version, into `dist/`: `make release VERSION=0.1.0`.

Wheel, sdist, chart, CRD, SBOM (CycloneDX) and checksums; an image where the machine has docker, podman or buildah. The
bytes depend on the commit alone: times are those of the commit, identifiers are derived from it. Publishes nothing.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "charts" / "vllm-autotuner"
IMAGE: Final = "vllm-autotuner"
BUILDERS: Final = {
    "docker": (("build", "--tag", "{tag}", "."), ("save", "--output", "{archive}", "{tag}")),
    "podman": (("build", "--tag", "{tag}", "."), ("save", "--format", "oci-archive", "--output", "{archive}", "{tag}")),
    "buildah": (("build", "--tag", "{tag}", "."), ("push", "{tag}", "oci-archive:{archive}:{tag}")),
}
"""Whatever of these the machine has: how it builds, and how it writes a file."""


class ReleaseError(Exception):
    """The release cannot be made; the text says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build into `--output` and say what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as in pyproject.toml and Chart.yaml")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder to write; an earlier release in it is deleted"
    )
    parser.add_argument("--uv", default="uv", help="the uv to build with")
    parser.add_argument("--helm", default="helm", help="the helm to package with")
    parser.add_argument("--no-image", action="store_true", help="leave the image out")
    given = parser.parse_args(arguments)
    try:
        release(given.version, output=given.output, uv=given.uv, helm=given.helm, image=not given.no_image)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str, *, output: Path, uv: str, helm: str, image: bool) -> None:
    """Build everything. Raises ReleaseError."""
    _check_versions(version)
    if _git("status", "--porcelain"):
        raise ReleaseError("the tree has changes that are not committed: a release is of a commit")
    _refuse_foreign(output)
    commit, epoch = _git("rev-parse", "HEAD"), _git("show", "--no-patch", "--format=%ct", "HEAD")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    sums_file = output / "SHA256SUMS"
    sums_file.touch()  # so that a release that fails half-way can be made again
    environment = os.environ | {"SOURCE_DATE_EPOCH": epoch}
    _run([uv, "build", "--quiet", "--wheel", "--sdist", "--out-dir", str(output), str(ROOT)], environment)
    (output / ".gitignore").unlink(missing_ok=True)  # uv's own, for folders inside of a repository
    _package_chart(output, helm=helm, epoch=int(epoch), environment=environment)
    shutil.copyfile(ROOT / "crds" / "vllmservices.yaml", output / f"vllmservices-{version}.yaml")
    _write_sbom(output / f"vllm-autotuner-{version}.cdx.json", uv=uv, commit=commit, epoch=int(epoch))
    _write_image(output / f"vllm-autotuner-{version}-image.tar", version=version) if image else None
    files = sorted(path for path in output.iterdir() if path.is_file() and path != sums_file)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    sums_file.write_text(sums, encoding="utf-8")
    print(f"release {version} of {commit[:12]} in {output}:\n{sums}", end="")


def _refuse_foreign(output: Path) -> None:
    """Raise ReleaseError for a folder with something else than a release: it would be emptied."""
    if output.is_dir() and any(output.iterdir()) and not (output / "SHA256SUMS").is_file():
        raise ReleaseError(
            f"{output} has files and no SHA256SUMS of an earlier release: name a new folder, or empty it"
        )
    if output.exists() and not output.is_dir():
        raise ReleaseError(f"{output} is not a folder")


def _check_versions(version: str) -> None:
    """One version in all places. Raises ReleaseError."""
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    lines = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    chart = dict(re.findall(r"^(version|appVersion): \"?([^\"\n]+)\"?$", lines, re.MULTILINE))
    found = {"pyproject.toml": package, **{f"Chart.yaml {name}": text for name, text in chart.items()}}
    if wrong := {place: text for place, text in found.items() if text != version}:
        told = ", ".join(f"{place} says {text}" for place, text in wrong.items())
        raise ReleaseError(f"version {version} is asked for, but {told}")


def _package_chart(output: Path, *, helm: str, epoch: int, environment: dict[str, str]) -> None:
    """As helm packages it, from a copy whose files are as old as the commit: the archive keeps their times."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / CHART.name
        shutil.copytree(CHART, copy)
        for path in (copy, *copy.rglob("*")):
            os.utime(path, (epoch, epoch))
        _run([helm, "package", str(copy), "--destination", str(output)], environment)


def _write_sbom(path: Path, *, uv: str, commit: str, epoch: int) -> None:
    """Every dependency of the package, from the lock file."""
    text = _run(
        [uv, "export", "--quiet", "--frozen", "--no-dev", "--all-extras", "--format", "cyclonedx1.5"], dict(os.environ)
    )
    found: dict[str, Any] = json.loads(text)
    found["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'vllm-autotuner@{commit}')}"
    found["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, tz=UTC).isoformat()
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _write_image(archive: Path, *, version: str) -> None:
    """An archive of the image where something can build one; its bytes are the builder's, and differ."""
    builder = next((name for name in BUILDERS if _works(name)), None)
    if builder is None:
        print(f"no image: none of {', '.join(BUILDERS)} works here", file=sys.stderr)
        return
    for command in BUILDERS[builder]:
        words = [word.format(tag=f"{IMAGE}:{version}", archive=archive) for word in command]
        _run([builder, *words], dict(os.environ))


def _works(builder: str) -> bool:
    """Whether it is there, and so is the daemon that it may need."""
    try:
        _run([builder, "info"], dict(os.environ))
    except ReleaseError:
        return False
    return True


def _git(*arguments: str) -> str:
    return _run(["git", *arguments], dict(os.environ)).strip()


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is not on the PATH") from None
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
