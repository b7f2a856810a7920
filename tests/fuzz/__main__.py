"""`python -m tests.fuzz`: many inputs for every parser of what others write; `--save` keeps the figures for the docs.

Apart from `test_fuzz.py`, whose inputs are always the same. `--seed` plays a run again, `--only` one parser of it.
"""

import argparse
import logging
import math
import secrets
import sys
from collections.abc import Sequence

from tests.fuzz.parsers import PARSERS, Outcome, tried

from benchmarks.result_files import require_clean_tree, write_result

AT_ONCE = 1000
"""Inputs of a parser before the next one has its turn, so that all are tried when a run is ended early."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code is 1 with a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all parsers together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="default: another one in each run")
    parser.add_argument("--only", default="", help="the parsers with this in their name")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/fuzzing.json")
    asked = parser.parse_args(arguments)
    if asked.save:
        require_clean_tree()
    logging.disable(logging.CRITICAL)
    seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
    chosen = [each for each in PARSERS if asked.only in each.name]
    sys.stderr.write(f"fuzz: {asked.inputs} inputs, --seed {seed}\n")
    outcomes = {each.name: Outcome(name=each.name) for each in chosen}
    # Cheap parsers get more: as many as in every run, in proportion.
    weight = sum(each.in_every_run for each in chosen)
    wanted = {each.name: math.ceil(asked.inputs * each.in_every_run / weight) for each in chosen}
    while any(outcomes[name].inputs < count for name, count in wanted.items()):
        for each in chosen:
            total = outcomes[each.name]
            rest = min(AT_ONCE, wanted[each.name] - total.inputs)
            _add(total, tried(each, seed=seed, first=total.inputs, count=rest))
    for total in outcomes.values():
        sys.stdout.write(
            f"{total.name:40} {total.inputs:9,} inputs  {total.refused / max(1, total.inputs):4.0%} refused  "
            f"{total.seconds:7.1f} s  slowest {total.slowest * 1000:6.1f} ms  {len(total.findings)} findings\n"
        )
        for finding in total.findings[:10]:
            where = f"--seed {seed} --only '{total.name}', input {finding.number}"
            sys.stdout.write(f"    {where}: {finding.problem}\n")
    if asked.save:
        figures = [
            {
                "parser": total.name,
                "inputs": total.inputs,
                "refused": total.refused,
                "seconds": round(total.seconds, 1),
                "slowest_ms": round(total.slowest * 1000, 1),
                "findings": len(total.findings),
            }
            for total in outcomes.values()
        ]
        saved = write_result("fuzzing", {"seed": seed, "parsers": figures})
        sys.stdout.write(f"{saved}\n")
    return 1 if any(total.findings for total in outcomes.values()) else 0


def _add(total: Outcome, part: Outcome) -> None:
    total.inputs += part.inputs
    total.refused += part.refused
    total.seconds += part.seconds
    total.slowest = max(total.slowest, part.slowest)
    total.findings += part.findings


if __name__ == "__main__":
    sys.exit(main())
