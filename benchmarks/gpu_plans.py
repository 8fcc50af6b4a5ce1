"""Plan made-up GPU machines for Qwen2.5's shapes. `python -m benchmarks.gpu_plans` writes docs/gpus.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.qwen_shapes import CONFIGS, files_of
from contracts.settings import build, with_options
from services.config.settings import RunSettings
from services.training.preflight.capacity.fitting import Fit, Misfit
from services.training.preflight.capacity.gpu_defaults import alternative, choice, written
from services.training.preflight.deployment import Machine, deployment_of
from services.training.preflight.picture import pictured

ROOT = Path(__file__).parents[1]
PAGE, PLANS = (
    ROOT / "docs" / "gpus.md",
    ROOT / "tests" / "services" / "training" / "preflight" / "gpu_plans.json",
)
GB = 1e9  # real GPUs of this name have a little more
MACHINES = {
    "1×24 GB": Machine(16.0, 1, gpu_bytes=24 * GB, nodes=(1,), host_bytes=120 * GB),
    "1×80 GB": Machine(16.0, 1, gpu_bytes=80 * GB, nodes=(1,), host_bytes=240 * GB),
    "8×80 GB": Machine(128.0, 8, gpu_bytes=80 * GB, nodes=(8,), host_bytes=960 * GB),
    "2×8×80 GB": Machine(256.0, 16, gpu_bytes=80 * GB, nodes=(8, 8), host_bytes=960 * GB),
}
HEAD = """# Which settings for which GPUs

**No run of this page has been tried.** `python -m benchmarks.gpu_plans` calculates it from the plan, for PPO
with its defaults and Qwen2.5's shapes. Only the 0.5B learner was measured on GPUs; [its
memory](results/gpu.md) agrees with the plan to 0.1 %. 80 GB are 80·10⁹ bytes. A node's host memory is 120 GB
for a GPU of 24 GB, 240 GB for one GPU of 80 GB, and 960 GB for eight.

`whetstone train` chooses open values of `learner.token_budget`, `model.gradient_checkpointing`,
`rollout.gpu_memory_utilization` and `rollout.sleep`. `whetstone plan` shows the choice and the sums. If the
defaults can't fit, the run is refused with fitting options (column *set*). More processes come first, then
`learner.offload`, which trains the same model more slowly, then adapters.
"""


def run_of(algorithm: str = "ppo", **options: Any) -> RunSettings:
    whole = {"algorithm": algorithm, "task": "increasing_numbers", "model": {"path": "Qwen/Qwen2.5"}}
    return build(RunSettings, {**whole, "rollout": {"engine": "vllm"}, **options}, where="")


def plans(algorithm: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the options to set, the chosen options and the sums for each machine and model."""
    return {
        machine: {model: _plan(algorithm, MACHINES[machine], model) for model in CONFIGS}
        for machine in MACHINES
    }


def _plan(algorithm: str, machine: Machine, name: str) -> dict[str, Any]:
    run, model = run_of(algorithm), files_of(name)
    default = choice(run, model, machine)
    if isinstance(default, Fit):
        return _row({}, default)
    assert isinstance(default, Misfit)
    instead = alternative(run, model, machine)
    if instead is None:
        return {"refused": default.words}
    return {"refused": default.words, **_row(*instead)}


def _row(options: Mapping[str, Any], fit: Fit) -> dict[str, Any]:
    return {"set": written(options), "chosen": written(fit.chosen), "sum": fit.words}


def page(plans_of: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return docs/gpus.md from PPO's plans: a table for each machine, and the picture of the largest."""
    parts = [HEAD]
    for machine, models in plans_of.items():
        rows = [f"{name}|{_cell(row, 'set')}|{_cell(row, 'chosen')}\n" for name, row in models.items()]
        parts.append(f"## {machine}\n\nmodel|set|chosen\n---|---|---\n{''.join(rows)}")
    picture = "\n".join(_picture("32B", "2×8×80 GB"))
    parts.append(f"## Where processes lie\n\n32B on 2×8×80 GB:\n\n```\n{picture}\n```\n")
    return "\n".join(parts)


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key not in row:
        return "nothing fits" if key == "set" else "–"
    return " ".join(f"`{option}`" for option in row[key]) or "–"


def _picture(name: str, machine: str) -> list[str]:
    instead = alternative(run_of(), files_of(name), MACHINES[machine])
    assert instead is not None
    run = with_options(run_of(), instead[0])
    return pictured(deployment_of(run, files_of(name), MACHINES[machine]).placement, MACHINES[machine])


def main() -> None:
    plans_by_algorithm = {algorithm: plans(algorithm) for algorithm in ("ppo", "grpo")}
    PLANS.write_text(json.dumps(plans_by_algorithm, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(plans_by_algorithm["ppo"]))


if __name__ == "__main__":
    main()
