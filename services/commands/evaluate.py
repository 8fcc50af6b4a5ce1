"""`whetstone evaluate`: score a run's model, or any other, on held-out prompts, as training does.

run's config.yaml or conf/ ─▶ + overrides ─▶ RunSettings ─▶ checks ─▶ workers and reward servers
─▶ services/evaluation/measure.py ─▶ a table, JSON, a file
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.evaluation.bars import Bars
from services.evaluation.configuration import settings_for
from services.evaluation.measure import evaluate_model
from services.evaluation.result import output_file, print_table
from services.runs.folder import RunFolder, is_run
from services.runs.json_lines import without_nan, write_atomically
from services.runs.nearby import nearby_runs
from services.terminal.doing import doing

EPILOG = """KEY=VALUE as in whetstone train. With a RUN they change its configuration; without one they change
the defaults.

  whetstone evaluate runs/NAME --split test
  whetstone evaluate runs/NAME evaluation.temperature=0 evaluation.num_prompts=null
  whetstone evaluate runs/NAME model.path=gpt2                 another model, everything else the same
  whetstone evaluate model.path=gpt2 task=imdb task.data_files=FOLDER reward=sentiment

With a RUN the result is also written to RUN/evaluation_SPLIT.json, or to --output."""


def run(argv: Sequence[str]) -> int:
    """Print the metrics. Return the exit code.

    Raises:
        InputError: there is no such run or model, an override is wrong, or a file can't be written; raised
            before anything starts.
        RunError: no text could be scored; an InputError if the environment says what to mend.
    """
    arguments = _parser().parse_intermixed_args(argv)
    folder, overrides = _run_and_overrides(arguments.words)
    with doing("reading the configuration"):
        settings = settings_for(folder, overrides)
    output = output_file(arguments.output, folder, arguments.split)
    with doing("checking settings, model and data"):
        from services.preflight import preflight

        checked = preflight.check(settings, training=False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = Bars()
    if arguments.split in checked.cut_prompts and checked.cut_prompts[arguments.split].num_cut:
        console.note(str(checked.cut_prompts[arguments.split]), "warning")
    try:
        found, num_unscored = evaluate_model(settings, arguments.split, console, checked.trial)
    finally:
        console.stop()
    result = {
        "model": settings.model.path,
        "split": arguments.split,
        "overrides": overrides,
        "num_texts": len(found.rows),
        "num_unscored": num_unscored,
        "metrics": found.metrics,
    }
    if output is not None:
        whole = {**result, "predictions": found.rows}
        write_atomically(output, json.dumps(without_nan(whole), indent=1, ensure_ascii=False))
    if arguments.json:
        print(json.dumps(without_nan(result), ensure_ascii=False))
    else:
        print_table(result, output)
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
    return parser


def _run_and_overrides(words: Sequence[str]) -> tuple[RunFolder | None, list[str]]:
    paths = [word for word in words if "=" not in word or Path(word).is_dir()]
    overrides = [word for word in words if word not in paths]
    if len(paths) > 1:
        raise InputError(f"expected one run, got {' and '.join(paths)}; overrides are written KEY=VALUE")
    if not paths:
        return None, overrides
    path = Path(paths[0])
    if not is_run(path):
        reason = f"{path}: {'it has no config.yaml' if path.exists() else 'there is no such folder'}"
        hint = f"A model is evaluated by whetstone evaluate model.path={path} task=… reward=…"
        listed = "".join(f"\n  {run}" for run in nearby_runs(path))
        raise InputError(
            f"{reason}, so it is no run. {hint}" + (listed and f"\nRuns nearby, newest first:{listed}")
        )
    return RunFolder(path), overrides
