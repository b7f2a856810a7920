"""`python -m e2e.real_engine_command install|locate`: the real vLLM for the test bed, by hand.

    python -m e2e.real_engine_command install   install vLLM for CPUs and make a model, once
    python -m e2e.real_engine_command locate    print the engine that a bed would run

Apart from `real_engine`, which a bed imports to look for an engine: it must not bring the installation with it.
"""

import argparse
import sys
from collections.abc import Sequence

from e2e.errors import BedError
from e2e.real_engine import ENGINE_VARIABLE, MODEL_VARIABLE, VERSION, locate
from e2e.real_engine_install import install


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when there is an engine, 1 with one line on stderr when there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.real_engine_command",
        description=f"vLLM {VERSION} for CPUs, as the engine of the test bed.",
        epilog=f"{ENGINE_VARIABLE}=/path/to/vllm and {MODEL_VARIABLE}=/path/to/model name one of yours instead.",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("install", help="install it into the user's cache folder (minutes, 10 GB of disk), once")
    actions.add_parser("locate", help="print the engine that a bed would run")
    options = parser.parse_args(arguments)
    try:
        if options.action == "install":
            install()
        engine = locate()
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what was downloaded is kept", file=sys.stderr)
        return 130
    if engine is None:
        print("no real engine is installed: run `python -m e2e.real_engine_command install`", file=sys.stderr)
        return 1
    print(f"command  {' '.join(engine.command)}\nmodel    {engine.model}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
