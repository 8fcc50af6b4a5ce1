"""`whetstone demo [instruct]`: train a small model from nothing, or a real chat model, in minutes."""

import argparse
from collections.abc import Sequence

INSTRUCT = "instruct"


def run(argv: Sequence[str]) -> int:
    """Run a demo. Further arguments are overrides of its training run, as for `whetstone train`."""
    parser = argparse.ArgumentParser(prog="whetstone demo", description=__doc__)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="instruct | override",
        help="instruct: a real chat model learns to answer in one sentence, in 15 minutes; overrides: as for "
        "whetstone train, e.g. iterations=20",
    )
    overrides = parser.parse_args(argv).overrides
    if overrides[:1] == [INSTRUCT]:
        from services.training.train.demo_instruct import demo_instruct

        return demo_instruct(overrides[1:])
    from services.training.train.demo import demo

    return demo(overrides)
