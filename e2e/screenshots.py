"""`make screenshots`: pictures of the pages that people look at, for a desk and a phone, and a check of each of them.

The services are tuned on the bed while this runs, so what a picture shows has happened. Pictures are for the
documentation site and not part of the repository.
Dashboards are drawn by `make prometheus-operator`, which has a Prometheus that scrapes the operator's pod.
Must not: hide what the check finds. A page that is wider than its window, or that axe-core objects to, ends it with 1.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.browser import CHROMIUM, NO_CHROMIUM, WIDTHS, BrowserError, axe_core, look_at, picture

from docs import pictures
from e2e.bed import REPOSITORY, Bed
from e2e.errors import BedError
from e2e.shell import sh
from e2e.side_by_side import CROWD, Play, degrading, staged
from e2e.stage import SIMULATED_ENGINE, NotSeen, plain_client

NAMESPACE: Final = "prod"
GPU: Final = {"product": "NVIDIA-H100-80GB-HBM3"}
TALLEST: Final = 2000
"""Pixels of a picture: what is further down a long report is more of the same."""
RECORDING: Final = "tests/data/vllm-0.32/recordings/kv-saturation.om.gz"


@asynccontextmanager
async def tuned() -> AsyncIterator[Play]:
    """One change that helps, one that hurts, and a service that nobody asks anything."""
    async with Bed(images=[SIMULATED_ENGINE]) as bed, staged(bed, NAMESPACE) as play:
        await asyncio.gather(
            play.serves("chat", clients=CROWD, accelerator=GPU),
            play.serves("batch", clients=CROWD, accelerator=GPU, simulated=degrading()),
            play.serves("code", accelerator=GPU),
        )
        await asyncio.gather(*(play.finished(name) for name in ("chat", "batch")))
        yield play


async def pages(play: Play, *, folder: Path) -> Mapping[str, str]:
    """The address of each page by the name of its picture; files are written into `folder`."""
    bed = play.stage.bed
    report, diagnosis = folder / "report.html", folder / "diagnosis.html"
    await sh(bed, f"vllm-autotuner report -n {NAMESPACE} --since 10m --gpu-price 2.49 "
                  f"--prometheus {bed.prometheus_url} --html {report}")  # fmt: skip
    await sh(bed, f"vllm-autotuner diagnose --recording {RECORDING} --html {diagnosis}")
    return {
        "web-fleet": f"http://{play.stage.address}/",
        "web-kept": f"http://{play.stage.address}/services/{NAMESPACE}/chat",
        "web-rolled-back": f"http://{play.stage.address}/services/{NAMESPACE}/batch",
        "report": report.as_uri(),
        "diagnosis": diagnosis.as_uri(),
    }


async def text_of(url: str) -> str:
    """The page itself."""
    if url.startswith("file:"):
        return Path(url.removeprefix("file://")).read_text(encoding="utf-8")
    async with plain_client() as client:
        return (await client.get(url)).raise_for_status().text


async def taken(axe: Path | None) -> bool:
    """Take all pictures; return whether every page is as it should be."""
    pictures.FOLDER.mkdir(exist_ok=True)
    fine = True
    async with tuned() as play:
        urls = await pages(play, folder=play.stage.bed.state_dir)
        for name in pictures.OF_PAGES:
            url = urls[name]
            page = await text_of(url)
            for width in WIDTHS:
                looked = await asyncio.to_thread(look_at, page, width=width, axe=axe)
                file = pictures.FOLDER / f"{name}-{width}.png"
                await asyncio.to_thread(picture, url, width=width, height=min(looked.height, TALLEST), file=file)
                wide = [f"{looked.width} pixels wide"] if looked.width > width else []
                found = [*wide, *looked.grave]
                fine = fine and not found
                print(f"{file.relative_to(REPOSITORY)}: {'; '.join(found) or 'ok'}", flush=True)
    return fine


def main() -> int:
    """`--prepare` outside of the bed, where npm can be reached; without it the pictures, inside."""
    parser = argparse.ArgumentParser(prog="python -m e2e.screenshots", description=__doc__.split("\n")[0])
    parser.add_argument("--prepare", action="store_true", help="look for Chromium, and get axe-core")
    options = parser.parse_args()
    if CHROMIUM is None:
        print(f"screenshots: {NO_CHROMIUM}", file=sys.stderr)
        return 1
    axe = None
    try:
        axe = axe_core()
    except BrowserError as error:
        print(f"screenshots: {error}", file=sys.stderr)
    if options.prepare:
        return 0
    print("screenshots: the dashboards are drawn by make prometheus-operator", flush=True)
    try:
        return 0 if asyncio.run(taken(axe)) else 1
    except (BedError, BrowserError, NotSeen) as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
