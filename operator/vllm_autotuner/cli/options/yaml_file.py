"""A file of the administrator in YAML, with an error that names the file and what is wrong with it.

Must not: know what is in it.
"""

from pathlib import Path

import yaml

from vllm_autotuner.cli.errors import CommandError

__all__ = ["yaml_document"]


def yaml_document(path: Path) -> object:
    """Return the parsed document, None for an empty file. Raises CommandError."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from error
    except RecursionError:
        raise CommandError(f"{path} is nested too deeply") from None
    except yaml.YAMLError as error:
        raise CommandError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, LookupError, AttributeError) as error:
        # A date such as 2026-13-01, or a tag on what is not of its type: the library lets these through as they are.
        raise CommandError(f"{path} has a value that is not of its YAML type: {error}") from error
