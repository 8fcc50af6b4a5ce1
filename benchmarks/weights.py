"""(c) A weight push from learner to worker, as in a run (Ray, vLLM), beside copying the same bytes.

Copying is measured twice: into memory that is already there, the least that any transfer must do, and
into fresh memory, which a copy usually needs.
"""

import statistics

import numpy as np

from benchmarks.models import llama_100m
from benchmarks.outcome import in_turns, publish, ratio, seconds
from services import launch
from services.compose import run_settings

ROUNDS = 11


def main() -> None:
    settings = run_settings(
        [
            f"model.path={llama_100m()}",
            "algorithm=supervised",
            "rollout.engine=vllm",
            "rollout.max_concurrent=8",
        ]
    )
    with launch.cluster():
        learner = launch.start_learner(settings, print)
        fleet = launch.start_fleet(settings, settings.model.path, print)
        learner.wait_until_ready()
        fleet.wait_until_ready()
        num_bytes = learner.publish().manifest.num_bytes
        source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)

        def push() -> float:
            return seconds(lambda: fleet.load_weights(learner.publish()))

        found = in_turns(
            {
                "copy": lambda: seconds(lambda: np.copyto(target, source)),
                "copy into fresh memory": lambda: seconds(source.copy),
                "push": push,
            },
            ROUNDS,
            warm_up=3,
        )
        fleet.stop()
        learner.stop()
    rows = {f"{name}, ms": statistics.median(values) * 1000 for name, values in found.items()}
    rows["push / copy (at most 3)"] = ratio(found["push"], found["copy"])
    rows["push / copy into fresh memory"] = ratio(found["push"], found["copy into fresh memory"])
    publish("weights", f"weights: {num_bytes / 1e6:.0f} MB, probe included", rows, found)


if __name__ == "__main__":
    main()
