"""`whetstone generate`: write texts for your prompts with training's engine, without Ray.

prompts ─▶ leases ─▶ RolloutWorker, in this process ─▶ texts, printed in the prompts' order
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.conversations.chat import Chat
from contracts.conversations.messages import text_of
from contracts.errors import InputError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.whole_texts import expect_whole, lines_of
from rollout_workers.engines import ENGINES
from rollout_workers.engines.traits import check_installed
from services.inference.generation.chat_options import add_chat_options, with_chosen_chat
from services.inference.generation.prompt_rows import rows_of_file
from services.inference.generation.run_model import (
    RunModel,
    add_model,
    add_sampling_options,
    check_lengths,
    chosen_sampling,
    find_model,
    refuse_long,
    room_for_prompt,
)
from services.inference.generation.writing import engine_for, in_order, write
from services.models.quiet import quiet_transformers
from services.terminal.doing import doing
from services.terminal.options import at_least
from services.terminal.visible import visible, visible_json


def run(argv: Sequence[str]) -> int:
    """Print the model's texts. Return the exit code.

    Raises:
        InputError: there is no model or prompt, or an option is out of range; raised before loading.
    """
    arguments = _parser().parse_args(argv)
    model = with_chosen_chat(find_model(arguments.model, arguments.base), arguments)
    sampling = chosen_sampling(model, arguments)
    check_installed(arguments.engine)
    rows, prompts = _rows(arguments)
    check_lengths(model, [prompt.text for prompt in prompts], sampling.max_tokens)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with doing("loading the tokenizer"):
        leases, as_read = _leases(model, prompts, sampling, arguments)
    for number, text in as_read.items():
        rows[number]["prompt_as_read"] = text
    if as_read:
        print(f"warning: {_said_of(as_read, rows, model)}", file=sys.stderr)
    show = _print_json if arguments.json else _print_readable
    with doing("loading torch"):
        engine = engine_for(arguments.engine, len(leases), model)
    for rollout in in_order(leases, write(model, engine, leases)):
        show(rows[rollout.group], rollout, rollout.lease_id - leases[0].id - rollout.group * arguments.n)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone generate", description="Let a trained model write, for prompts of your own."
    )
    add_model(parser)
    parser.add_argument(
        "--prompt",
        nargs="+",
        action="extend",
        metavar="TEXT",
        help="one or several; default: the lines of standard input",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE.jsonl",
        help='lines {"prompt": "…"}, or a list of messages; a last answer of the assistant is the reference, '
        "and other columns are passed on",
    )
    parser.add_argument("--n", type=at_least(1), default=1, metavar="K", help="texts for each prompt")
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto")
    parser.add_argument("--json", action="store_true", help="print a JSON object on each line")
    add_chat_options(parser)
    add_sampling_options(parser, seed=0)
    return parser


def _rows(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Prompt]]:
    """Return each prompt's row `{"prompt": …}` with the file's other columns, and the prompts.

    Raises:
        InputError: the file can't be used, or there is no prompt.
    """
    texts = list(arguments.prompt or ())
    expect_whole(texts, "--prompt")
    if not texts and arguments.prompts is None and not sys.stdin.isatty():
        texts = [line for line in lines_of(sys.stdin, "standard input") if line.strip()]
    rows, prompts = [{"prompt": text} for text in texts], [Prompt("", text) for text in texts]
    if arguments.prompts is not None:
        of_file = rows_of_file(Path(arguments.prompts))
        rows, prompts = rows + of_file[0], prompts + of_file[1]
    if not rows:
        raise InputError("no prompt: give --prompt TEXT, --prompts FILE.jsonl, or lines on standard input")
    return rows, [replace(prompt, id=str(number)) for number, prompt in enumerate(prompts)]


def _leases(
    model: RunModel, prompts: Sequence[Prompt], sampling: Sampling, arguments: argparse.Namespace
) -> tuple[list[Lease], dict[int, str]]:
    """Return the leases, and each cut prompt's remaining text by number."""
    from transformers import AutoTokenizer

    from services.data.tokens.prompt_tokens import PromptTokens
    from services.training.sources.leasing import evaluation_leases

    quiet_transformers()
    tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=False)
    chat = None if model.chat is None else Chat(tokenizer, model.chat)
    to_tokens = PromptTokens(tokenizer, model.limit, chat)
    leases = evaluation_leases(prompts, to_tokens, sampling, samples=arguments.n, seed=arguments.seed)
    if chat is not None and model.limit.max_tokens is None:
        room = room_for_prompt(model, sampling.max_tokens)
        for lease in leases:
            refuse_long(lease.group + 1, len(lease.tokens), room, sampling.max_tokens)
    as_read = {
        number: to_tokens.text(leases[number * arguments.n].tokens)
        for number, prompt in enumerate(prompts)
        if to_tokens.cuts(prompt)
    }
    return leases, as_read


def _said_of(as_read: Mapping[int, str], rows: Sequence[object], model: RunModel) -> str:
    from services.data.tokens.cut_prompts import said_of_cuts

    return said_of_cuts(len(as_read), len(rows), model.limit)


def _print_json(row: Mapping[str, Any], rollout: Rollout, sample: int) -> None:
    """Print a line for `whetstone score --predictions`."""
    written = {"prediction": rollout.text, "sample": sample, "finish_reason": str(rollout.finish_reason)}
    print(visible_json(json.dumps({**row, **written}, ensure_ascii=False)), flush=True)


def _print_readable(row: Mapping[str, Any], rollout: Rollout, sample: int) -> None:
    """Print the prompt as a quotation, dim if the terminal can, then the texts."""
    if sample == 0:
        dim, plain = ("\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "")
        text = row["prompt"] if isinstance(row["prompt"], str) else text_of(row["prompt"])
        quoted = "\n".join(f"> {line}" for line in visible(text).split("\n"))
        print(f"{dim}{quoted}{plain}")
    print(f"{visible(rollout.text)}\n", flush=True)
