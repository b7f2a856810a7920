"""The real vLLM as the bed's engine, where somebody asked for it: which one, and how the process node runs it.

Apart from `real_engine_install`, because a bed only looks: installing takes minutes, 6 GB and the internet, which a
network namespace does not have. Must not: install, or need a GPU.

A manifest names `example/tiny` and the real image, as it does for the simulated engine. The model is found under that
name because the row points HF_HOME at a Hugging Face cache that holds nothing else.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.binaries import cache_folder
from e2e.errors import EngineError
from e2e.stage import MODEL, SIMULATED_ENGINE

VERSION: Final = "0.32.0"
"""The version whose names, texts and flags the product knows best."""
ENGINE_VARIABLE: Final = "AUTOTUNER_VLLM"
MODEL_VARIABLE: Final = "AUTOTUNER_VLLM_MODEL"
MARKER: Final = "complete"
"""The last file that an installation writes."""
KV_BLOCKS: Final = 256
"""Of 128 tokens each: 32,768 tokens, so that seats and not the pool are what a small load runs out of."""
ENVIRONMENT: Final[Mapping[str, str]] = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # Two engines stand side by side during a roll. Bound to cores they would take the same ones; with more threads
    # each, they would wait for one another at every step.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # The model runs inside the engine core. A worker of its own would import everything once more, and the two would
    # wait for each other in busy loops: half the start-up time, and both cores. Ranks of TP 2 remain processes.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealEngine:
    """A vLLM that can be started on this machine."""

    command: tuple[str, ...]
    """What the container image has as its entry point: `vllm serve`."""
    model: Path
    """The folder with the weights; pods name it `example/tiny`."""
    env: Mapping[str, str]


def locate() -> RealEngine | None:
    """Return the engine that the environment names, else the installed one; None when there is none.

    Raises EngineError when the environment names something that cannot be run.
    """
    folder = engine_folder()
    installed = (folder / MARKER).is_file()
    vllm, model = vllm_of(folder), model_of(folder)
    if named := os.environ.get(ENGINE_VARIABLE):
        vllm = Path(named).absolute()
        if not (vllm.is_file() and os.access(vllm, os.X_OK)):
            raise EngineError(f"{ENGINE_VARIABLE}={named} is no executable file: name the `vllm` command, or unset it")
    elif not installed:
        return None
    if named := os.environ.get(MODEL_VARIABLE):
        model = Path(named).absolute()
        if not (model / "config.json").is_file():
            raise EngineError(f"{MODEL_VARIABLE}={named} has no config.json: name a model's folder, or unset it")
    elif not installed:
        raise EngineError(f"{ENGINE_VARIABLE} is set and {MODEL_VARIABLE} is not: name the folder of a model for it")
    home = hugging_face_home(model)
    env = {**ENVIRONMENT, "HF_HOME": str(home), "VLLM_CACHE_ROOT": str(home / "vllm")}
    return RealEngine(command=(str(vllm), "serve"), model=model, env=env)


def image_row(engine: RealEngine, *, kv_blocks: int | None = KV_BLOCKS) -> Mapping[str, object]:
    """Return the row of the process node's image table under which vLLM's image runs this engine.

    `kv_blocks` None: the manifest sets the pool, by --kv-cache-memory-bytes, and it then depends on flags as on a GPU.
    """
    pool = () if kv_blocks is None else ("--num-gpu-blocks-override", str(kv_blocks))
    # Where it is set, it wins over the flag.
    hidden = {"VLLM_CPU_KVCACHE_SPACE"} if kv_blocks is None else set()
    return {
        "match": SIMULATED_ENGINE["match"],
        "command": list(engine.command),
        "env": {name: value for name, value in engine.env.items() if name not in hidden},
        "append": ["--host", "$(POD_IP)", "--enforce-eager", *pool],
    }


def engine_folder() -> Path:
    """Return where the installation is kept for all checkouts of this user."""
    return cache_folder().with_name(f"vllm-{VERSION}")


def vllm_of(folder: Path) -> Path:
    """Return the command of an installation."""
    return folder / "venv" / "bin" / "vllm"


def model_of(folder: Path) -> Path:
    """Return the model of an installation."""
    return folder / "model"


def hugging_face_home(model: Path) -> Path:
    """Return a Hugging Face cache in which `example/tiny` is this model; it is made of one link and one line."""
    digest = hashlib.sha256(str(model).encode()).hexdigest()[:12]
    home = cache_folder().with_name("vllm-models") / digest
    repository = home / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = repository / "snapshots" / "local"
    try:
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text("local", encoding="ascii")
        if not snapshot.is_symlink():
            snapshot.symlink_to(model)
    except FileExistsError:
        pass  # another process made the same link
    except OSError as error:
        raise EngineError(f"cannot name the model {MODEL} in {home}: {error}") from error
    return home
