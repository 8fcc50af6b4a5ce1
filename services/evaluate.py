"""`whetstone evaluate`: score a finished run's model, or any other, on held-out prompts, as training does.

run's config.yaml or conf/ ─▶ + overrides ─▶ RunSettings ─▶ checks ─▶ workers and reward servers
─▶ services/evaluation.py ─▶ a table, JSON, a file
"""

import argparse
import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from contracts.errors import InputError
from contracts.settings import build
from reward_servers.trial import Trial
from services.console import Console
from services.doing import doing
from services.evaluation import Evaluation
from services.json_lines import without_nan, write_atomically
from services.readable import number
from services.report import nearby_runs
from services.run_folder import RunFolder, is_run
from services.run_model import model_of
from services.settings import RunSettings
from services.tasks.base import Split

EPILOG = """KEY=VALUE as in whetstone train. With a RUN they change its configuration; without one they are
all there is.

  whetstone evaluate runs/NAME --split test
  whetstone evaluate runs/NAME evaluation.temperature=0 evaluation.num_prompts=null
  whetstone evaluate runs/NAME model.path=gpt2                 another model, everything else the same
  whetstone evaluate model.path=gpt2 task=imdb task.data_files=FOLDER reward=sentiment

With a RUN the result is also written to RUN/evaluation_SPLIT.json, or where --output says."""


def run(argv: Sequence[str]) -> int:
    """Print the metrics; the exit code.

    Raises:
        InputError: no run or model there, a wrong override, or a file that can't be written; before
            anything is started.
        RunError: not one text could be scored; an InputError if its environment says what to mend.
    """
    arguments = _parser().parse_intermixed_args(argv)
    folder, overrides = _run_and_overrides(arguments.words)
    with doing("reading the configuration"):
        settings = settings_for(folder, overrides)
    output = output_file(arguments.output, folder, arguments.split)
    with doing("checking settings, model and data"):
        from services import preflight

        checked = preflight.check(settings, training=False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = _Bars()
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


def settings_for(folder: RunFolder | None, overrides: list[str]) -> RunSettings:
    """The settings that `overrides` ask for: laid over a run's and its model, or over conf/.

    Raises:
        InputError: anything unknown, of the wrong type or range; or the run has no model yet.
    """
    from services.compose import run_settings

    if folder is None:
        return run_settings(overrides)
    return build(RunSettings, _laid_over(folder, overrides), where="")


def evaluate_model(
    settings: RunSettings, split: Split, console: Console, trial: Trial
) -> tuple[Evaluation, int]:
    """Start workers and reward servers, no learner; returns also how many texts could not be scored.

    The same prompts and seeds as the evaluations in training.
    """
    with doing("loading Ray and torch", console.note):
        from services import launch
        from services.baselines import baselines
        from services.collecting import Collector, FailureBudget
        from services.evaluation import evaluate
        from services.held_out import held_out_leases, policy_perplexity, prompt_reader
        from services.post_processing import find_post_processor
        from services.ray_cluster import cluster

    failures = FailureBudget(settings.reward_servers.max_failures, settings.environment.max_failures)
    post_process = find_post_processor(settings.evaluation.post_processor)
    with contextlib.ExitStack() as ends:
        with doing("starting Ray", console.note):
            ends.enter_context(cluster(console.warn))
        console.note("starting the rollout workers and the reward servers")
        fleet = launch.start_fleet(settings, settings.model.path, console.warn, console.note)
        ends.callback(fleet.stop)
        leases = held_out_leases(settings, split)
        patience_s = settings.reward_servers.patience_s(part.label for part in settings.reward)
        rewards = ends.enter_context(launch.served_rewards(settings, console.warn, console.note, trial))
        fleet.wait_until_ready()
        collector = Collector(fleet, rewards, failures, console, _go_on, patience_s, settings.judging)
        perplexity, as_read = policy_perplexity(settings), prompt_reader(settings)
        with console.doing(f"evaluating on {len(leases)} {split} prompts"):
            found = evaluate(split, leases, collector, post_process, perplexity, as_read)
        if settings.environment.has_baselines:
            found.metrics.update(baselines(split, leases, collector))
    if not found.rows:
        raise failures.nothing_left(f"none of {len(leases)} texts could be scored")
    return found, failures.num_unscored


def _go_on() -> None:
    """Nothing is saved here, so that a signal need not wait for anything."""


class _Bars(Console):
    """A bar for each phase on standard error, so that standard output holds the result alone."""

    def __init__(self) -> None:
        super().__init__(Terminal(stderr=True))
        self._bars = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.terminal,
            disable=not self.terminal.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    @property
    def shows_progress(self) -> bool:
        return self.terminal.is_terminal

    def phase(self, name: str, total: int | None = None) -> None:
        super().phase(name, total)
        self._bars.start()
        self._tasks[name] = self._bars.add_task(name, total=total)

    def advance(self, name: str, n: int = 1) -> None:
        super().advance(name, n)
        self._bars.advance(self._tasks[name], n)

    def stop(self) -> None:
        self._bars.stop()


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
    parser.add_argument("--output", metavar="FILE", help="the result with every text and its scores, as JSON")
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


def _laid_over(folder: RunFolder, overrides: list[str]) -> dict[str, Any]:
    """The run's configuration with its trained model and the overrides in it, as plain data."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from services.compose import COMPONENTS, REPLACED, parse, set_in_list

    config = folder.config()
    for key in REPLACED:  # of a single one the options can be set: reward.weight=2
        if isinstance(listed := config.get(key), list) and len(listed) == 1:
            config[key] = listed[0]
    parsed = [parse(text) for text in overrides]
    # Another model brings its own tokenizer: the run's belongs to the run's model.
    is_another = any(override.key_or_group == "model.path" for override in parsed)
    config["model"] = {} if is_another else {"path": str(model_of(folder))}
    tree = OmegaConf.create(config)
    for override in parsed:
        if override.is_sweep_override():
            raise InputError(f"{override.input_line}: expected one value; only whetstone train sweeps")
        if set_in_list(tree, override):
            continue
        key, value = override.key_or_group, override.value()
        if key in (*COMPONENTS, *REPLACED) and isinstance(value, str):
            value = {"name": value}  # so that its options can follow
        try:
            OmegaConf.update(tree, key, value, merge=key not in (*COMPONENTS, *REPLACED))
        except OmegaConfBaseException as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"{override.input_line}: {reason}") from None
    plain: dict[str, Any] = OmegaConf.to_container(tree)  # type: ignore[assignment]
    return plain


def output_file(asked: str | None, folder: RunFolder | None, split: str) -> Path | None:
    """Where the result is written, if anywhere.

    Raises:
        InputError: it can't be.
    """
    if asked is not None:
        path = Path(asked)
    elif folder is not None:
        path = folder.path / f"evaluation_{split}.json"
    else:
        return None
    if path.is_dir():
        raise InputError(f"--output {path}: is a folder; expected a file's name")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} can't be written: {path.parent} is missing or not writable; give --output")
    return path


def print_table(result: dict[str, Any], output: Path | None) -> None:
    from rich.table import Table

    from services.baselines import BASELINE, PLAYERS, of_player

    played = {player: own for player in PLAYERS if (own := of_player(player, result["metrics"]))}
    metrics = {key: value for key, value in result["metrics"].items() if not key.startswith(f"{BASELINE}/")}
    error = metrics.pop("reward/standard_error", None)
    unscored = f", {result['num_unscored']} could not be scored" if result["num_unscored"] else ""
    terminal = Terminal(highlight=False)
    terminal.print(
        f"{result['model']}, {result['split']}: {result['num_texts']} texts{unscored}", markup=False
    )
    table = Table("metric", "value", "± standard error", *played)
    for column in (table.columns[1], *table.columns[3:]):
        column.justify = "right"
    for key, value in metrics.items():
        others = [number(own[key]) if key in own else "" for own in played.values()]
        table.add_row(key, number(value), number(error) if key == "reward/mean" else "", *others)
    terminal.print(table)
    if output is not None:
        terminal.print(f"every text with its scores: {output}", markup=False, soft_wrap=True)
