"""Evaluate a model with EleutherAI's evaluation harness (lm-eval).

run or model ─▶ checks ─▶ lm_eval.simple_evaluate ─▶ metrics with their standard errors, by task
"""

import difflib
import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from rollout_workers.engines.choice import choose_dtype, choose_engine
from rollout_workers.engines.traits import traits_of
from services.inference.generation.run_model import RunModel
from services.runs.standard_errors import ERROR
from services.terminal.doing import doing

INSTALL = "pip install 'lm_eval[hf]'"
YAML = (".yaml", ".yml")
LM_EVAL_MODELS = {"transformers": "hf", "vllm": "vllm"}  # our engines by the harness's names


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """Options of `whetstone evaluate --tasks`.

    Example: `HarnessOptions(("gsm8k", "tasks/ours.yaml"), shots=5, limit=100)`
    """

    tasks: tuple[str, ...]  # names, or the user's YAML files
    shots: int | None = None  # examples before each question; None: the task's default
    limit: int | None = None  # questions of each task; None: all
    chat: bool = False  # ask through the tokenizer's chat template
    seed: int = 0


def check_harness(options: HarnessOptions) -> None:
    """Refuse impossible options before the harness is imported.

    Raises:
        InputError: lm-eval is not installed, or a task's file is missing.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise InputError(f"--tasks needs EleutherAI's lm-eval, which is not installed: {INSTALL}")
    for task in options.tasks:
        if task.endswith(YAML) and not Path(task).is_file():
            raise InputError(f"--tasks {task}: there is no such file; expected a task's name or a YAML file")


def evaluate_tasks(model: RunModel, options: HarnessOptions) -> dict[str, Any]:
    """Return the harness's version, metrics by task, and the number of questions of each task.

    Raises:
        InputError: there is no such task, or its data can't be loaded.
    """
    with doing("loading lm-eval"):
        import torch
        from lm_eval import __version__, simple_evaluate
        from lm_eval.tasks import TaskManager

        logging.getLogger("lm_eval").setLevel(logging.WARNING)
        tasks = TaskManager()
    named = [task for task in options.tasks if not task.endswith(YAML)]
    for name in named:
        if not tasks.match_tasks([name]):
            near = difflib.get_close_matches(name, tasks.all_tasks, n=1)
            meant = f"; did you mean '{near[0]}'?" if near else ";"
            raise InputError(f"--tasks {name}: lm-eval has no such task{meant} `lm-eval ls tasks` lists them")
    on_gpu = torch.cuda.is_available()
    engine = engine_of(model, on_gpu=on_gpu)
    arguments: dict[str, Any] = {
        "pretrained": model.path,
        "tokenizer": str(model.files.tokenizer_folder),
        "dtype": choose_dtype(model.rollout.dtype, on_gpu=on_gpu),
    }
    if traits_of(engine).splits:
        arguments |= {"tensor_parallel_size": model.rollout.tensor_parallel_size, "seed": options.seed}
    else:
        arguments["revision"] = None
    with doing(f"asking {len(options.tasks)} of lm-eval's tasks with {engine}"):
        try:
            results = simple_evaluate(
                model=LM_EVAL_MODELS[engine],
                model_args=arguments,
                tasks=[*tasks.match_tasks(named), *(task for task in options.tasks if task.endswith(YAML))],
                num_fewshot=options.shots,
                limit=options.limit,
                batch_size="auto" if on_gpu else 8,
                device="cuda" if on_gpu else "cpu",
                apply_chat_template=options.chat,
                log_samples=False,
                task_manager=tasks,
                random_seed=options.seed,
                numpy_random_seed=options.seed,
                torch_random_seed=options.seed,
                fewshot_random_seed=options.seed,
            )
        except (OSError, ValueError) as error:  # a missing data set or template
            raise InputError(f"--tasks {','.join(options.tasks)}: lm-eval says: {error}") from error
    return {
        "lm_eval": __version__,
        "metrics": metrics_of(results["results"]),
        "num_questions": {name: count["effective"] for name, count in results["n-samples"].items()},
    }


def engine_of(model: RunModel, *, on_gpu: bool) -> str:
    """Return the engine; `auto` is vLLM on a GPU if it is installed.

    Raises:
        InputError: the harness has no such engine.
    """
    chosen = model.rollout.engine
    if chosen == "auto" and not on_gpu:
        return "transformers"
    engine = choose_engine(chosen, is_encoder_decoder=model.files.is_encoder_decoder)
    if engine not in LM_EVAL_MODELS:
        raise InputError(
            f"rollout.engine={engine}: lm-eval does not know it; expected one of {', '.join(LM_EVAL_MODELS)}"
        )
    return engine


def metrics_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return numbers by task and metric, with each error beside its metric.

    >>> metrics_of({"arc": {"alias": "arc", "acc,none": 0.5, "acc_stderr,none": 0.02, "em,strict": 0.25}})
    {'arc/acc': 0.5, 'arc/acc/standard_error': 0.02, 'arc/em/strict': 0.25}
    """
    metrics: dict[str, float] = {}
    for task, values in results.items():
        for key, value in values.items():
            metric, _, rule = key.partition(",")
            if isinstance(value, bool) or not isinstance(value, int | float) or not rule:
                continue
            of_error = metric.endswith("_stderr")
            name = "/".join([task, metric.removesuffix("_stderr"), *([rule] if rule != "none" else [])])
            metrics[f"{name}{ERROR}" if of_error else name] = float(value)
    return metrics
