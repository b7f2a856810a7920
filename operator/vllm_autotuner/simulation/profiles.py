"""Loads profiles of models on GPUs from data files by name, and rejects invalid ones.

Separate from `configuration`, which defines a profile. The files are in `profiles/` beside this module; they are
written by `benchmarks/curves.py --write-profiles` and carry what they were fitted on, the error and the valid range.
Must not: fit, or fill in what a file leaves out of its own figures.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from vllm_autotuner.simulation.configuration import GpuMemory, Profile
from vllm_autotuner.simulation.step_duration import StepTimes

__all__ = ["ProfileDocument", "ProfileError", "load_profile", "profile_document", "profile_names", "profile_text"]

FOLDER: Final = Path(__file__).with_suffix("")
_PARTS: Final = {"step": StepTimes, "memory": GpuMemory, "engine": Profile}
_NEEDED: Final = {
    "step": ("base_ms", "per_sequence_ms", "per_ktoken_ms", "prefill_per_token_ms"),
    "engine": ("attention_heads", "kv_heads", "kv_bytes_per_token", "model_max_len"),
}
"""What a file must say: the defaults of `Profile` are those of another model."""


class ProfileError(ValueError):
    """A profile that does not exist, cannot be read, or describes no engine; names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDocument:
    """A profile and where it comes from."""

    name: str
    model: str
    gpu: str
    tensor_parallel_sizes: tuple[int, ...]
    """Those that were measured; others are scaled from them."""
    profile: Profile
    provenance: Mapping[str, Any] = field(default_factory=dict)


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_profile(name: str) -> Profile:
    """Return the profile of that name, or of the file when `name` ends in `.json`. Raises ProfileError."""
    return profile_document(name).profile


def profile_document(name: str) -> ProfileDocument:
    """Return the profile with its provenance. Raises ProfileError."""
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    if not name.endswith(".json") and name not in profile_names():
        raise ProfileError(f"unknown profile {name!r}: use one of {', '.join(profile_names())}, or a .json file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from None
    except RecursionError:
        raise ProfileError(f"{path}: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError as error:
        # A number of thousands of digits.
        raise ProfileError(f"{path}: {error}") from None
    try:
        return _document(path.stem, data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ProfileError(f"{path}: {reason}") from None


def profile_text(document: ProfileDocument) -> str:
    """Return the file of a profile: what `profile_document` reads back. Defaults that it need not say are left out."""
    profile, default = document.profile, Profile()
    data = {
        "model": document.model,
        "gpu": document.gpu,
        "tensor_parallel_sizes": list(document.tensor_parallel_sizes),
        "provenance": document.provenance,
        "step": _said(asdict(profile.step), asdict(default.step), part="step"),
        "memory": None if profile.memory is None else asdict(profile.memory),
        "engine": _said(asdict(profile), asdict(default), part="engine"),
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _said(values: Mapping[str, Any], defaults: Mapping[str, Any], *, part: str) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if name not in ("step", "memory") and (name in _NEEDED[part] or value != defaults[name])
    }


def _document(name: str, data: Any) -> ProfileDocument:
    if not isinstance(data, dict):
        raise TypeError("not a JSON object")
    parts = {part: _numbers(data[part], part=part) for part in ("step", "engine")}
    for part, names in _NEEDED.items():
        if missing := [name for name in names if name not in parts[part]]:
            raise ValueError(f"{part}.{missing[0]} is missing")
    memory = None if data.get("memory") is None else GpuMemory(**_numbers(data["memory"], part="memory"))
    profile = Profile(step=StepTimes(**parts["step"]), memory=memory, **parts["engine"])
    _refuse_impossible(profile)
    sizes = data["tensor_parallel_sizes"]
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError("tensor_parallel_sizes is not a list of whole numbers from 1")
    provenance = data.get("provenance") or {}
    if not isinstance(provenance, dict):
        raise TypeError("provenance is not an object")
    return ProfileDocument(
        name=name,
        model=str(data["model"]),
        gpu=str(data["gpu"]),
        tensor_parallel_sizes=tuple(sizes),
        profile=profile,
        provenance=provenance,
    )


def _numbers(given: Any, *, part: str) -> dict[str, Any]:
    """Return the numbers of one part. Raises for a name that does not exist and for what is no number of its kind.

    Which numbers can be, the values themselves know.
    """
    if not isinstance(given, dict):
        raise TypeError(f"{part} is not an object")
    kinds = {each.name: each.type for each in fields(_PARTS[part]) if each.name not in ("step", "memory")}
    for name, value in given.items():
        if name not in kinds:
            raise ValueError(f"{part}.{name} does not exist; there are {', '.join(kinds)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{part}.{name} is {value!r}, not a number")
        if kinds[name] in (int, "int") and value != int(value):
            raise ValueError(f"{part}.{name} is {value}, not a whole number")
    return {name: int(value) if kinds[name] in (int, "int") else float(value) for name, value in given.items()}


def _refuse_impossible(profile: Profile) -> None:
    if profile.attention_heads % profile.kv_heads:
        raise ValueError(f"{profile.attention_heads} attention heads cannot share {profile.kv_heads} KV heads")
    if profile.memory is not None and profile.memory.fixed_gib >= profile.memory.total_gib:
        raise ValueError(f"memory.fixed_gib is {profile.memory.fixed_gib}, all of the GPU's {profile.memory.total_gib}")
