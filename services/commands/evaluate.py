"""`whetstone evaluate`: score any model on held-out prompts, exactly as in training.

run's config.yaml or conf/ ─▶ + overrides ─▶ RunSettings ─▶ checks ─▶ workers and reward servers
─▶ services/inference/evaluation/measure.py ─▶ a table, JSON, a file
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.inference.evaluation.bars import Bars
from services.inference.evaluation.configuration import settings_for
from services.inference.evaluation.harness import HarnessOptions, check_harness, evaluate_tasks
from services.inference.evaluation.measure import evaluate_model
from services.inference.evaluation.result import output_file, print_table, print_tasks
from services.inference.generation.run_model import find_model
from services.models.adapters import model_in_words
from services.runs.folder import RunFolder
from services.runs.json_lines import without_nan, write_atomically
from services.runs.nearby import run_at
from services.terminal.doing import doing
from services.terminal.options import at_least, names_in
from services.terminal.visible import visible_json

MODEL = "model.path="
EPILOG = """KEY=VALUE as in whetstone train. With a RUN they change its configuration; without one they change
the defaults.

  whetstone evaluate runs/NAME --split test
  whetstone evaluate runs/NAME evaluation.temperature=0 --output greedy.json
  whetstone evaluate runs/NAME model.path=gpt2 --output gpt2.json   another model, all else the same
  whetstone evaluate model.path=gpt2 task=imdb task.data_files=FOLDER reward=sentiment

  whetstone evaluate runs/NAME --tasks gsm8k,hellaswag       the tasks of lm-eval, where it is installed

With a RUN the result is also written to RUN/evaluation_SPLIT.json, or to --output. Overrides replace no
result of others: give --output. Without overrides the result replaces the one that is there."""


def run(argv: Sequence[str]) -> int:
    """Print the metrics. Return the exit code.

    Raises:
        InputError: there is no such run or model, an override is wrong, or a file can't be written; raised
            before anything starts.
        RunError: no text could be scored; an InputError if the environment says what to mend.
    """
    arguments = _parser().parse_intermixed_args(argv)
    if arguments.tasks is not None:
        return _run_tasks(arguments)
    folder, overrides = _run_and_overrides(arguments.words)
    with doing("reading the configuration"):
        settings = settings_for(folder, overrides)
    output = output_file(arguments.output, folder, arguments.split, overrides)
    with doing("checking settings, model and data"):
        from services.training.preflight import preflight
        from services.training.preflight.start_model import opened

        settings = opened(settings, training=False)
        checked = preflight.check(settings, training=False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = Bars()
    for cut in checked.prompts.cut:
        if cut.split == arguments.split and cut.num_cut:
            console.note(str(cut), "warning")
    for note in checked.notes:
        console.note(note)
    try:
        evaluation, num_unscored = evaluate_model(settings, arguments.split, console, checked.trial)
    finally:
        console.stop()
    result = {
        "model": model_in_words(settings.model),
        "split": arguments.split,
        "overrides": overrides,
        "num_texts": len(evaluation.rows),
        "num_unscored": num_unscored,
        "metrics": evaluation.metrics,
    }
    if output is not None:
        whole = {**result, "predictions": evaluation.rows}
        write_atomically(output, json.dumps(without_nan(whole), indent=1, ensure_ascii=False))
    if arguments.json:
        print(visible_json(json.dumps(without_nan(result), ensure_ascii=False)))
    else:
        print_table(result, output, evaluation.rows)
    return 0


def _run_tasks(arguments: argparse.Namespace) -> int:
    """Evaluate with lm-eval, without Ray and reward servers."""
    options = HarnessOptions(
        tuple(names_in(arguments.tasks)), arguments.shots, arguments.limit, arguments.chat, arguments.seed
    )
    check_harness(options)
    folder, overrides = _run_and_overrides(arguments.words)
    paths = [text.removeprefix(MODEL) for text in overrides if text.startswith(MODEL)]
    if len(paths) != len(overrides) or len(paths) + (folder is not None) != 1:
        raise InputError(
            f"--tasks: got {' '.join(arguments.words) or 'neither a run nor a model'}; expected a run's "
            f"folder or {MODEL}MODEL, and nothing else"
        )
    model = find_model(str(folder.path) if folder else paths[0])
    output = output_file(arguments.output, folder, "tasks")
    result = {"model": model.path, "tasks": list(options.tasks), **evaluate_tasks(model, options)}
    if output is not None:
        write_atomically(output, json.dumps(without_nan(result), indent=1))
    if arguments.json:
        print(json.dumps(without_nan(result)))
    else:
        print_tasks(result, output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone evaluate",
        description="Score a finished run's model, or any other, on held-out prompts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="RUN | KEY=VALUE", help="a run's folder; overrides")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", metavar="FILE", help="write the result, with texts and scores, as JSON")
    harness = parser.add_argument_group(
        "lm-eval", "tasks of EleutherAI's lm-eval, with RUN or model.path= alone"
    )
    harness.add_argument("--tasks", metavar="NAME,…", help="its tasks, or YAML files of your own")
    harness.add_argument("--shots", type=at_least(0), metavar="N", help="examples before each question")
    harness.add_argument(
        "--limit", type=at_least(1), metavar="N", help="only the first N questions of each task"
    )
    harness.add_argument("--chat", action="store_true", help="ask through the tokenizer's chat template")
    harness.add_argument("--seed", type=at_least(0), default=0, metavar="S", help="default 0")
    return parser


def _run_and_overrides(words: Sequence[str]) -> tuple[RunFolder | None, list[str]]:
    paths = [word for word in words if "=" not in word or Path(word).is_dir()]
    overrides = [word for word in words if word not in paths]
    if len(paths) > 1:
        raise InputError(f"expected one run, got {' and '.join(paths)}; overrides are written KEY=VALUE")
    if not paths:
        return None, overrides
    hint = f"A model is evaluated by whetstone evaluate model.path={paths[0]} task=… reward=…"
    return run_at(Path(paths[0]), hint), overrides
