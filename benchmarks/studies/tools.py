"""Learn to use a calculator for products of two numbers; only the right final answer earns a reward.

A tiny chat model can't multiply, so it must write a call with both numbers, and copy the tool's result.
`python -m benchmarks.studies.tools` writes questions and an untrained model. It warms the model up on
transcripts of other questions, and trains it with GRPO, one run per seed. Engine, learner, environment and
reward are plain classes in this process. `--seeds` and `--only` run a part; finished runs stay.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from benchmarks.outcome import OUT
from benchmarks.studies.arithmetic_files import make_model
from contracts.settings import build
from rollout_workers.tools.tool_calls import Call, written
from rollout_workers.tools.tool_functions import FunctionTools
from services.config.settings import RunSettings
from services.runs.standard_errors import standard_error, standard_error_of_change

ROOT = OUT / "tools"
MODEL, RUNS = ROOT / "untrained", ROOT / "runs"
LARGEST, NUM_SHOWN, NUM_ASKED, HELD_OUT = 99, 600, 1000, {"validation": 20, "test": 100}
# Only the schemas' names, because a whole schema would fill most of a small model's prompt.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHARED: dict[str, Any] = {
    "model": {"path": str(MODEL)},
    "output_dir": str(RUNS),
    "evaluate_every": 0,
    "save_every": 0,
    "evaluation": {"num_prompts": None, "samples_per_prompt": 4},
    "reward": "exact_match",
    "metrics": [],
    "learner": {"device": "cpu", "num_threads": 1},
    "tracking": {"enabled": False},
}
DRAWN = {"engine": "transformers", "num_threads": 1, "max_tokens": 48, "kv_cache_gib": 0.25}
WARM_UP: dict[str, Any] = {
    "algorithm": {"name": "supervised", "learning_rate": 3e-3, "minibatch_size": 32},
    "rollout": {**DRAWN, "prompts_per_iteration": 2 * NUM_SHOWN},
    "iterations": 8,
}
TRAINED: dict[str, Any] = {
    "algorithm": {"name": "grpo", "learning_rate": 5e-4, "num_epochs": 2, "minibatch_size": 64},
    "rollout": {**DRAWN, "prompts_per_iteration": 16, "group_size": 8},
    "environment": {
        "name": "tools",
        "tools": ["calculator"],
        "max_turns": 3,
        "num_parallel": 64,
        "isolated": False,
    },
    "iterations": 20,
}


def questions(seed: int = 0) -> Iterator[tuple[int, int]]:
    """Yield each pair of numbers once, in a random order."""
    pairs = [(a, b) for a in range(11, LARGEST + 1) for b in range(11, LARGEST + 1)]
    random.Random(seed).shuffle(pairs)
    yield from pairs


def transcript(a: int, b: int) -> list[dict[str, str]]:
    """Return the messages of a question answered with the calculator."""
    call = written([Call("calculator", {"expression": f"{a} * {b}"})])
    return [
        {"role": "user", "content": f"{a} * {b} ?"},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": str(a * b)},
        {"role": "assistant", "content": str(a * b)},
    ]


def write_files() -> None:
    """Write the warm start's conversations, the questions, and the untrained model."""
    drawn, tools = questions(), list(FunctionTools(["calculator"]).schemas)
    held_out = {split: list(islice(drawn, count)) for split, count in HELD_OUT.items()}
    shown, trained = list(islice(drawn, NUM_SHOWN)), list(islice(drawn, NUM_ASKED))
    talks = [transcript(a, b) for a, b in shown]
    _write("shown", "train", [{"messages": talk[:end], "tools": tools} for talk in talks for end in (2, 4)])
    for split, pairs in {**held_out, "train": trained}.items():
        _write("asked", split, [{"prompt": f"{a} * {b} ?", "answer": str(a * b)} for a, b in pairs])
        if split != "train":
            of_split = [{"messages": transcript(a, b)[:2], "tools": tools} for a, b in pairs]
            _write("shown", split, of_split)
    make_model(MODEL, [f"{message['role']}\n{message['content']}" for talk in talks for message in talk])
    file = MODEL / "chat_template.jinja"
    file.write_text(TEMPLATE)


def _write(folder: str, split: str, rows: Sequence[dict[str, Any]]) -> None:
    file = ROOT / folder / f"{split}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def run(name: str, folder: str, options: dict[str, Any]) -> None:
    """Train in this process unless the run is done."""
    from tests.local_run import train_here

    if (RUNS / name / "model" / "config.json").exists():
        return
    task = {"name": "prompts", "data_files": str(ROOT / folder)}
    print(name, flush=True)
    train_here(build(RunSettings, {**SHARED, "run_name": name, "task": task, **options}, where=""))


def rows_of(name: str, epoch: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        (RUNS / name / f"epoch_{epoch}_test_split_predictions.json").read_text()
    )
    return rows


def line(seed: int) -> str:
    """Return a seed's row of the table."""
    name = f"grpo-seed{seed}"
    before, after = rows_of(name, 0), rows_of(name, TRAINED["iterations"])
    scores = [[float(row["reward"]) for row in rows] for rows in (before, after)]
    prompts = [[row["sample_id"] for row in rows] for rows in (before, after)]
    means = [
        f"{_mean(correct):.3f} ± {standard_error(correct, ids):.3f}"
        for correct, ids in zip(scores, prompts, strict=True)
    ]
    gain = _mean(scores[1]) - _mean(scores[0])
    error = standard_error_of_change(scores[0], prompts[0], scores[1], prompts[1]) or float("nan")
    calls, errors = (_mean([row[f"environment/{key}"] for row in after]) for key in ("calls", "call_errors"))
    alone = sum(row["reward"] > 0 and not row["environment/calls"] for row in (*before, *after))
    return (
        f"| {seed} | {means[0]} | {means[1]} | +{gain:.3f} ± {error:.3f} | {gain / error:.1f} | "
        f"{calls:.2f} | {errors:.2f} | {alone} |"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--only", nargs="+", choices=("warm", "grpo", "table"), default=["warm", "grpo", "table"]
    )
    arguments = parser.parse_args()
    if not (MODEL / "chat_template.jinja").exists():
        write_files()
    if "warm" in arguments.only:
        run("warm", "shown", WARM_UP)
    for seed in arguments.seeds if "grpo" in arguments.only else ():
        start = {"model": {"path": str(RUNS / "warm" / "model")}, "seed": seed}
        run(f"grpo-seed{seed}", "asked", {**TRAINED, **start})
    if "table" in arguments.only:
        print("\n".join(line(seed) for seed in arguments.seeds))


if __name__ == "__main__":
    main()
