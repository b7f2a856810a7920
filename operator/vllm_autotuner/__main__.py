"""Entry point of `vllm-autotuner` and `python -m vllm_autotuner`."""

from vllm_autotuner.cli.command_tree import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
