"""(c) A weight push from learner to worker (Ray, vLLM), whole or only changes, and a copy of its bytes.

A copy is measured into existing memory, the minimum of any transfer, and into fresh memory, the usual case. A
push is measured directly into the layout of vLLM's kernels, and by vLLM's reload. Changes are a bfloat16
engine's weights after each of Adam's first steps, on 1,024 random tokens.
"""

import itertools
import random
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import ray

from benchmarks.models import gpt2_98m, llama_100m
from benchmarks.outcome import in_turns, publish, ratio, seconds
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.actors.group import LearnerGroup
from rollout_workers.fleet.fleet import Fleet
from services.cluster.ray_cluster import cluster
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.models.files import read_model
from services.training.preflight.capacity.gpu_defaults import fitted
from services.training.preflight.deployment import deployment_of
from services.training.train import launch
from services.training.train.ray_machine import gpu_machine, ray_machine

ROUNDS = 11
STEPS = 3  # pushes of changes, each after a step
WAYS = ("whole", "changed")
Found = dict[str, list[float]]


def main() -> None:
    rows: dict[str, float] = {}
    details: Found = {}
    with cluster():
        for shape, model in (("GPT-2", gpt2_98m()), ("Llama", llama_100m())):
            num_bytes, times = beside_a_copy(model)
            title = f"{shape}, {num_bytes / 1e6:.0f} MB"
            rows |= {
                f"{title}: {name}, ms": statistics.median(values) * 1000 for name, values in times.items()
            }
            for push in ("push", "push by vLLM's reload"):
                rows[f"{title}: {push} / copy (at most 3)"] = ratio(times[push], times["copy"])
            rows[f"{title}: push / copy into fresh memory"] = ratio(
                times["push"], times["copy into fresh memory"]
            )
            details |= {f"{title}: {name}": values for name, values in times.items()}
        changes = beside_changes(("1e-6", "1e-4"))
    rows |= {name: statistics.median(values) for name, values in changes.items()}
    publish("weights", "weights: a push, its probe included", rows, details | changes)


def beside_a_copy(model: Path) -> tuple[int, Found]:
    learner, fleet = started(settings(f"model.path={model}"))
    num_bytes = learner.publish().manifest.num_bytes
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    times = in_turns(
        {
            "copy": lambda: seconds(lambda: np.copyto(target, source)),
            "copy into fresh memory": lambda: seconds(source.copy),
            "push": lambda: push_seconds(learner, fleet, by_reload=False),
            "push by vLLM's reload": lambda: push_seconds(learner, fleet, by_reload=True),
            "publication alone": lambda: seconds(learner.publish),
        },
        ROUNDS,
        warm_up=3,
    )
    fleet.stop()
    learner.stop()
    return num_bytes, times


def push_seconds(learner: LearnerGroup, fleet: Fleet, by_reload: bool) -> float:
    workers = fleet._pool._calls.workers.values()
    ray.get([worker.actor.apply.remote(choose_way, by_reload=by_reload) for worker in workers])
    return seconds(lambda: fleet.load_weights(learner.publish()))


def choose_way(worker: Any, by_reload: bool) -> None:
    """Let a worker's engine load directly, its default, or only by vLLM's reload."""
    for loader in worker._engine._loaders.values():
        loader.unfit = "a benchmark wants the reload" if by_reload else None


def beside_changes(rates: tuple[str, ...]) -> Found:
    """Measure megabytes and milliseconds of whole pushes and of changes, for each learning rate.

    Measure them in turn, because two learners and two engines would fill the memory.
    """
    figures: Found = {}
    for rate, way in itertools.product(rates, WAYS):
        chosen = settings("rollout.dtype=bfloat16", f"algorithm.learning_rate={rate}", f"learner.push={way}")
        learner, fleet = started(chosen)
        pushed(learner, fleet)  # the first push is always whole
        sizes, times = [], []
        for _ in range(STEPS):
            learner.update([written(i) for i in range(16)], lambda *_: None)
            size, spent = pushed(learner, fleet)
            sizes.append(size / 1e6)
            times.append(spent * 1000)
        figures |= {f"bfloat16, rate {rate}, {way}, MB": sizes, f"bfloat16, rate {rate}, {way}, ms": times}
        fleet.stop()
        learner.stop()
    return figures


def pushed(learner: LearnerGroup, fleet: Fleet) -> tuple[int, float]:
    began = perf_counter()
    published = learner.publish()
    fleet.load_weights(published)
    return published.manifest.num_bytes, perf_counter() - began


def settings(*overrides: str) -> RunSettings:
    return run_settings(
        [
            f"model.path={llama_100m()}",
            "algorithm=supervised",
            "rollout.engine=vllm",
            "rollout.max_concurrent=8",
            *overrides,
        ]
    )


def started(chosen: RunSettings) -> tuple[LearnerGroup, Fleet]:
    """Start a learner and workers like a run, on all existing GPUs."""
    if (machine := gpu_machine()).num_gpus:
        chosen, _ = fitted(chosen, read_model(chosen.model), machine)
    deployed = deployment_of(chosen, read_model(chosen.model), ray_machine())
    learner = launch.start_learner(chosen, deployed, print)
    if deployed.placement.workers_beside_a_learner:  # as in a run: vLLM measures what a GPU has left
        learner.wait_until_ready()
    fleet = launch.start_fleet(
        launch.model_of(chosen.model, chosen.algorithm, chosen.environment), deployed, print
    )
    learner.wait_until_ready()
    fleet.wait_until_ready()
    return learner, fleet


def written(index: int) -> Rollout:
    draw = random.Random(index)
    tokens = tuple(draw.randrange(1, 8192) for _ in range(64))
    turn = Turn(tokens[:16], tokens[16:], "", (0.0,) * 48, (0,) * 48)
    return Rollout(index, index, Prompt(str(index), ""), (turn,), FinishReason.LENGTH)


if __name__ == "__main__":
    main()
