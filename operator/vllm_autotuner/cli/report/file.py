"""Writing the report file. Apart from the page, because only this touches the disk.

Must not: leave half a file where there was a whole one.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.cli.diagnosis.answer import Answer
from vllm_autotuner.cli.errors import CommandError
from vllm_autotuner.cli.report.page import ReportFacts, page
from vllm_autotuner.observation.whole_file import replacing

__all__ = ["own_version", "refuse_unwritable", "write_report", "written"]


def own_version() -> str:
    """The version of this package, as it is installed."""
    try:
        return version("vllm-autotuner")
    except PackageNotFoundError:
        return "(not installed)"


def refuse_unwritable(path: Path, *, option: str, source: Path | None = None) -> None:
    """Raise CommandError for a path that must not be written, before a minute is spent on its content.

    `source`: the file that is read, which a mistyped name must not cost.
    """
    if str(path) == "-":
        raise CommandError(f"{option} -: give a file name; it is not written to the standard output")
    try:
        itself = source is not None and path.exists() and source.exists() and path.samefile(source)
    except OSError as error:
        # A name that is too long, or a folder that may not be looked into.
        raise CommandError(f"{option} {path}: {error.strerror or error}") from error
    if itself:
        raise CommandError(f"{option} {path} is the recording itself: give another file name")
    if path.is_dir():
        raise CommandError(f"{option} {path} is a folder: give a file name")
    if not path.parent.is_dir():
        raise CommandError(f"{option} {path}: folder {path.parent} does not exist")


def write_report(path: Path, *, answer: Answer, source: str, knobs: EngineKnobs) -> None:
    """Write the report. Raises CommandError."""
    facts = ReportFacts(
        source=source, at=answer.at, span=answer.span, version=own_version(), knobs=knobs, notes=answer.notes
    )
    written(path, page(answer.reports, facts=facts))


def written(path: Path, text: str) -> None:
    """Write a page. Raises CommandError."""
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
