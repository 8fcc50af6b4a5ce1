"""Train one arm with one seed in this process, and keep its measures in a file."""

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.orderings.registry import Arm, Registry, head
from benchmarks.outcome import OUT
from contracts.errors import RunError
from services.config.compose import run_settings
from services.runs.folder import RunFolder

ROOT = OUT / "orderings"
LAST, STEPS = 5, 120  # iterations of `last`; steps of an offline arm
HERE = (
    "evaluate_every=0",
    "save_every=0",
    "tracking.enabled=false",
    "evaluation.samples_per_prompt=4",
    "rollout.engine=transformers",
    "rollout.num_threads=1",
    "learner.num_threads=1",
    "learner.device=cpu",
)
GAMES = ("iterations=10", "rollout.prompts_per_iteration=128", "learner.lr_schedule=linear")
TESTED = {
    "test": "reward/mean",
    "gold": "synthetic/increasing_numbers_in_text",
    "won": "environment/won/mean",
}


def found(arm: Arm, seed: int) -> Mapping[str, Any] | None:
    """Return a finished run's measures, seconds and commit, or None."""
    file = _file(arm, seed)
    whole: dict[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    return whole


def run(registry: Registry, arm: Arm, seed: int) -> None:
    """Train the arm unless it is done, and keep its measures; an interrupted run continues."""
    if found(arm, seed) is not None:
        return
    import torch

    torch.set_num_threads(1)  # small models need no second thread, and on a busy machine would wait for it
    started = perf_counter()
    if arm.offline:
        measures = _offline(arm.offline, seed, noisy=arm.noisy)
    elif arm.games:
        measures = _games(arm.games, seed)
    else:
        measures = _trained(arm, seed, [*registry.shared, *arm.train])
    outcome = {"measures": measures, "seconds": perf_counter() - started, "commit": head()}
    file = _file(arm, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(outcome))


def _file(arm: Arm, seed: int) -> Path:
    return ROOT / "found" / f"{arm.digest}-seed{seed}.json"


def _trained(arm: Arm, seed: int, overrides: Sequence[str]) -> dict[str, float]:
    start = _number_model() if arm.start == "warm" else _number_model().with_name("numbers-untrained")
    folder = _train(f"{arm.digest}-seed{seed}", [*overrides, f"model.path={start}", f"seed={seed}"])
    return {**_tested(folder), "last": _last(folder)}


def _offline(name: str, seed: int, *, noisy: bool) -> dict[str, float]:
    from benchmarks.studies import offline

    model, data, before = _digits()
    result = offline.run(name, seed, model, data, before, is_corrupted=noisy, steps=STEPS)
    return {"sampled": result.sampled, "greedy": result.greedy}


def _games(name: str, seed: int) -> dict[str, float]:
    from benchmarks.studies import games

    shared = ["environment=textworld", "task=textworld", *games.SHARED, *games.SAMPLED]
    untrained = ROOT / "games-untrained"
    if not (untrained / "config.json").exists():
        games.make_model(untrained)
    warm = _train("games-warm", [*shared, f"model.path={untrained}", *games.WARM_UP])
    options = [*games.ALGORITHMS[name], *GAMES, f"model.path={warm.model}", f"seed={seed}"]
    return _tested(_train(f"games-{name}-seed{seed}", [*shared, *options]))


def _train(name: str, overrides: Sequence[str]) -> RunFolder:
    """Train a run, unless it is done."""
    from services.training.train.train import train

    settings = run_settings([*overrides, *HERE, f"output_dir={ROOT / 'runs'}", f"run_name={name}"])
    if code := train(settings, here=True):
        raise RunError(f"{name} ended with exit code {code}")
    return RunFolder(ROOT / "runs" / name)


def _tested(folder: RunFolder) -> dict[str, float]:
    metrics = folder.evaluations("test")[-1]["metrics"]
    return {name: metrics[key] for name, key in TESTED.items() if key in metrics}


def _last(folder: RunFolder) -> float:
    return statistics.fmean(row["reward/mean"] for row in folder.rollout_info()[-LAST:])


@cache
def _number_model() -> Path:
    """Make the demo's start model and the untrained model before it."""
    from services.training.train.demo import make_start_model

    folder = ROOT / "numbers"
    if not (folder / "model.safetensors").exists():
        make_start_model(folder, seed=0)
    return folder


@cache
def _digits() -> tuple[Path, list[Any], float]:
    """Return the warm start on the digits' data, the annotated data, and the warm start's reward."""
    from benchmarks.studies import offline
    from benchmarks.studies.offline_data import annotated, make_data, mean_reward

    rows = make_data()
    model = offline.warm_start(rows)
    data, pair, _ = annotated(rows, model)
    return model, data, mean_reward(pair.lm, sampled=True)
