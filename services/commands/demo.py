"""`whetstone demo`: train a small model from nothing, in minutes, on this machine."""

import argparse
from collections.abc import Sequence

from services.train.demo import demo


def run(argv: Sequence[str]) -> int:
    """Run the demo. Further arguments are overrides of its training run, as for `whetstone train`."""
    parser = argparse.ArgumentParser(prog="whetstone demo", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="as for whetstone train, e.g. iterations=20")
    return demo(parser.parse_args(argv).overrides)
