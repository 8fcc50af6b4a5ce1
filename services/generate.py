"""`whetstone generate`: texts for prompts of one's own, by the engine that training uses, without Ray.

prompts ─▶ leases ─▶ RolloutWorker, in this process ─▶ texts, printed in the prompts' order
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import DeadlineExceeded, InputError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.whole_texts import expect_whole, lines_of
from services.doing import doing
from services.run_model import (
    ARGUMENT,
    RunModel,
    add_sampling_options,
    at_least,
    check_lengths,
    chosen_sampling,
    find_model,
    quiet_transformers,
)
from services.tasks.rows import read_checked

FEW = 64  # texts up to which vLLM on a CPU takes longer to start than transformers takes to write them
POLL_S = 1.0


def run(argv: Sequence[str]) -> int:
    """Print what the model writes; the exit code.

    Raises:
        InputError: no model there, no prompts, an option out of range; before anything is loaded.
    """
    arguments = _parser().parse_args(argv)
    model = find_model(arguments.model)
    sampling = chosen_sampling(model, arguments)
    _check_engine(arguments.engine)
    rows = _rows(arguments)
    check_lengths(model, [row["prompt"] for row in rows], sampling.max_tokens)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with doing("loading the tokenizer"):
        leases, as_read = _leases(model, rows, sampling, arguments)
    for number, text in as_read.items():
        rows[number]["prompt_as_read"] = text
    if as_read:
        print(f"warning: {_said_of(as_read, rows, model)}", file=sys.stderr)
    show = _print_json if arguments.json else _print_readable
    with doing("loading torch"):
        engine = choose_engine(arguments.engine, len(leases), model.path)
    for rollout in in_order(leases, write(model, engine, leases)):
        show(rows[rollout.group], rollout, rollout.lease_id - leases[0].id - rollout.group * arguments.n)
    return 0


def write(model: RunModel, engine: str, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
    """The rollouts of all leases, each as soon as it is finished.

    Raises:
        WorkerError: the engine can't start, or failed.
        DeadlineExceeded: it made no token for `rollout.stall_timeout_s`.
    """
    with doing(f"starting {engine}"):
        from rollout_workers.worker import RolloutWorker

        worker = RolloutWorker(model.path, model.path, model.files.window, engine, model.rollout)
        worker.ready()
    worker.submit(leases)
    missing, generated, progress_at = len(leases), 0, time.monotonic()
    while missing:
        report = worker.poll(POLL_S)
        if report.num_generated != generated:
            generated, progress_at = report.num_generated, time.monotonic()
        elif time.monotonic() - progress_at > model.rollout.stall_timeout_s:
            raise DeadlineExceeded(
                f"waited {model.rollout.stall_timeout_s:.0f} s for a token of {engine}; "
                f"{missing} of {len(leases)} texts are missing"
            )
        missing -= len(report.rollouts)
        yield list(report.rollouts)


def in_order(leases: Sequence[Lease], finished: Iterator[list[Rollout]]) -> Iterator[Rollout]:
    """The rollouts in the order of their leases, each as soon as all before it are there."""
    early: dict[int, Rollout] = {}
    following = iter(leases)
    awaited = next(following, None)
    for rollouts in finished:
        early |= {rollout.lease_id: rollout for rollout in rollouts}
        while awaited is not None and awaited.id in early:
            yield early.pop(awaited.id)
            awaited = next(following, None)


def choose_engine(asked: str, num_texts: int, model: str) -> str:
    """What `auto` is: transformers is up in seconds, vLLM several times faster once it runs.

    So vLLM (where it is installed) writes many texts, and whatever is to be written on a GPU, where
    a model is mostly too large for transformers to be quick.
    """
    if asked != "auto":
        return asked
    import torch

    if num_texts <= FEW and not torch.cuda.is_available():
        return "transformers"
    from rollout_workers.worker import engine_for

    return engine_for(model, "auto")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone generate", description="Let a trained model write, for prompts of your own."
    )
    parser.add_argument("model", **ARGUMENT)  # type: ignore[arg-type]
    parser.add_argument(
        "--prompt",
        nargs="+",
        action="extend",
        metavar="TEXT",
        help="one or several; without any, each line of standard input is one",
    )
    parser.add_argument(
        "--prompts", metavar="FILE.jsonl", help='lines {"prompt": "…"}; other columns are passed on'
    )
    parser.add_argument("--n", type=at_least(1), default=1, metavar="K", help="texts for each prompt")
    parser.add_argument("--engine", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    add_sampling_options(parser, seed=0)
    return parser


def _check_engine(asked: str) -> None:
    if asked == "vllm" and importlib.util.find_spec("vllm") is None:
        raise InputError("--engine vllm: vLLM is not installed; whetstone doctor says how to get it")


def _rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """`{"prompt": …}` each, with the other columns of its row in the file.

    Raises:
        InputError: the file can't be used, or there is no prompt at all.
    """
    rows = [{"prompt": text} for text in arguments.prompt or ()]
    expect_whole([row["prompt"] for row in rows], "--prompt")
    if arguments.prompts is not None:
        rows += _rows_of_file(Path(arguments.prompts))
    elif not rows and not sys.stdin.isatty():
        rows = [{"prompt": line} for line in lines_of(sys.stdin, "standard input") if line.strip()]
    if not rows:
        raise InputError("no prompt: give --prompt TEXT, --prompts FILE.jsonl, or lines on standard input")
    return rows


def _rows_of_file(path: Path) -> list[dict[str, Any]]:
    try:
        rows = read_checked(path, ["prompt"])
    except InputError as error:
        raise InputError(f"--prompts: {str(error).removeprefix('task.data_files: ')}") from None
    if not rows:
        raise InputError(f'--prompts: {path}: expected lines {{"prompt": …}} in a .jsonl file')
    return rows


def _leases(
    model: RunModel, rows: Sequence[Mapping[str, Any]], sampling: Sampling, arguments: argparse.Namespace
) -> tuple[list[Lease], dict[int, str]]:
    """The leases, and what the model reads of each prompt that is cut, by its number."""
    from transformers import AutoTokenizer

    from services.leasing import evaluation_leases
    from services.prompt_tokens import PromptTokens

    quiet_transformers()
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    to_tokens = PromptTokens(tokenizer, model.limit)
    prompts = [Prompt(str(number), row["prompt"]) for number, row in enumerate(rows)]
    leases = evaluation_leases(prompts, to_tokens, sampling, samples=arguments.n, seed=arguments.seed)
    as_read = {
        number: to_tokens.text(leases[number * arguments.n].tokens)
        for number, prompt in enumerate(prompts)
        if to_tokens.cuts(prompt.text)
    }
    return leases, as_read


def _said_of(as_read: Mapping[int, str], rows: Sequence[object], model: RunModel) -> str:
    from services.cut_prompts import said_of_cuts

    return said_of_cuts(len(as_read), len(rows), model.limit)


def _print_json(row: Mapping[str, Any], rollout: Rollout, sample: int) -> None:
    """A line that `whetstone score --predictions` reads."""
    written = {"prediction": rollout.text, "sample": sample, "finish_reason": str(rollout.finish_reason)}
    print(json.dumps({**row, **written}, ensure_ascii=False), flush=True)


def _print_readable(row: Mapping[str, Any], rollout: Rollout, sample: int) -> None:
    """The prompt as a letter's quotation, dim where the terminal can, then the texts."""
    if sample == 0:
        dim, plain = ("\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "")
        quoted = "\n".join(f"> {line}" for line in row["prompt"].split("\n"))
        print(f"{dim}{quoted}{plain}")
    print(f"{rollout.text}\n", flush=True)
