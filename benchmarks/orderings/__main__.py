"""`python -m benchmarks.orderings [NAME …]`: run the registered orderings, seed by seed, and write the page.

Finished runs stay, so the same command continues. `--page` only writes the page of existing runs.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.orderings.arms import run
from benchmarks.orderings.page import write_page
from benchmarks.orderings.registry import read_registry, registration
from contracts.errors import InputError, there_are


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--page", action="store_true", help="run nothing")
    arguments = parser.parse_args(argv)
    registry = read_registry()
    for name in arguments.names:
        if name not in registry.orderings:
            raise InputError(f"{name}: there is no such ordering; {there_are(registry.orderings)}")
    registration()
    for name in () if arguments.page else arguments.names or registry.orderings:
        ordering, started = registry.orderings[name], time.perf_counter()
        for seed in registry.seeds:
            for arm in ordering.arms.values():
                run(registry, arm, seed)
            print(f"{name}: seed {seed} done after {time.perf_counter() - started:.0f} s", flush=True)
            write_page(registry)
    write_page(registry)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        sys.exit(f"error: {error}")
