"""`whetstone chat`: talk to a trained model in the terminal or in a browser.

line ─▶ Reader (the prompt, cut to the window) ─▶ Speaker ─▶ letters ─▶ the conversation
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.rollout import Sampling
from contracts.whole_texts import lines_of
from services.inference.chat.conversation import converse
from services.inference.chat.prompts import Reader, layout_of
from services.inference.generation.chat_options import add_chat_options, with_chosen_chat
from services.inference.generation.run_model import (
    RunModel,
    add_model,
    add_sampling_options,
    chosen_sampling,
    find_model,
    room_for_prompt,
)
from services.runs.folder import RunFolder
from services.terminal.doing import doing
from services.terminal.interrupts import Terminated, take_ctrl_c
from services.terminal.options import add_address, token_in

PORT = 8010
MAX_TOKENS = 256  # limit of an answer, for a model without a run
WELCOME = "Ctrl-C stops an answer; reset forgets the conversation; quit or Ctrl-D leaves."


def run(argv: Sequence[str]) -> int:
    """Converse until `quit` or the input's end, or serve the page until Ctrl-C. Return the exit code.

    Raises:
        InputError: there is no model, an option is out of range, the model takes no system message, or the
            address can't or must not be used.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    model = _with_longer_answers(_with_chat(find_model(arguments.model, arguments.base), arguments))
    sampling = _sampling(model, arguments)
    room = room_for_prompt(model, sampling.max_tokens)
    if not arguments.web:
        for name in ("port", "host", "token"):
            if getattr(arguments, name) != parser.get_default(name):
                raise InputError(f"--{name} is for the page in a browser: give --web with it")
        with doing("loading the model"):
            reader, speaker = _ready(model, sampling, room, arguments)
        take_ctrl_c()
        if speaker.never_ends:
            print(_endless(sampling), file=sys.stderr)
        converse(reader, speaker, _lines(), partial(print, end="", flush=True))
        return 0
    with doing("loading the web server"):
        from services.inference.chat.web_chat import chat_app, facts_of
        from services.terminal.web_pages import listen, serve_pages

    with listen(arguments.host, arguments.port, token_in(arguments)) as door:
        with doing("loading the model"):
            reader, speaker = _ready(model, sampling, room, arguments)
        note = _endless(sampling) if speaker.never_ends else ""
        name = Path(arguments.model).resolve().name if model.of_run else arguments.model
        facts = facts_of(name, sampling, arguments.system or None, note)
        serve_pages(door, chat_app(facts, reader, speaker, door.host, door.token))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone chat",
        description="Talk to a trained model, in the terminal or in a browser.",
        epilog=f"{WELCOME} Lines may be piped in as well.",
    )
    add_model(parser)
    add_chat_options(parser)
    add_sampling_options(parser, seed=None)
    parser.add_argument("--greedy", action="store_true", help="as --temperature 0")
    web = parser.add_argument_group("in a browser")
    web.add_argument("--web", action="store_true", help="serve a page instead, until Ctrl-C")
    add_address(web, PORT)
    return parser


def _sampling(model: RunModel, arguments: argparse.Namespace) -> Sampling:
    if arguments.greedy:
        if arguments.temperature:
            raise InputError(
                f"--greedy is --temperature 0, got --temperature {arguments.temperature:g} too: "
                "give one of them"
            )
        arguments.temperature = 0.0
    return chosen_sampling(model, arguments)


def _ready(model: RunModel, sampling: Sampling, room: int | None, arguments: argparse.Namespace) -> Any:
    """Load the Reader and the Speaker."""
    from services.inference.chat.speaker import Speaker, load_tokenizer

    config = RunFolder(Path(arguments.model)).config() if model.of_run else {}
    tokenizer = load_tokenizer(model)
    layout = layout_of(config, tokenizer, model.chat, arguments.system or None)
    if layout.most is not None:  # the run's prompts were cut to this length
        room = min((limit for limit in (room, model.limit.max_tokens) if limit), default=None)
    sampling = replace(sampling, stop=(*sampling.stop, *layout.stop))
    return Reader(layout, room), Speaker(model, tokenizer, sampling, arguments.seed)


def _with_chat(model: RunModel, arguments: argparse.Namespace) -> RunModel:
    """Return the model with the chosen chat template; plain lines take a system message."""
    is_plain = model.chat is None and arguments.template is None and arguments.template_options is None
    return model if is_plain else with_chosen_chat(model, arguments)


def _with_longer_answers(model: RunModel) -> RunModel:
    """Lengthen the answers of a model without a run; a run keeps the length of its training."""
    if model.of_run:
        return model
    most = MAX_TOKENS if model.files.window is None else min(MAX_TOKENS, model.files.window // 2)
    return replace(model, sampling=replace(model.sampling, max_tokens=most))


def _endless(sampling: Sampling) -> str:
    return f"This model has no end token: every answer has {sampling.max_tokens} tokens."


def _lines() -> Iterator[str]:
    """Yield a pipe's lines, or typed lines with history and a shell's editing keys."""
    if not sys.stdin.isatty():
        yield from lines_of(sys.stdin, "standard input")
        return
    import readline  # noqa: F401  (importing it gives input() a history and an editor)

    print(WELCOME)
    while True:
        try:
            yield input("\n› ")
        except EOFError:
            print()
            return
        except Terminated:
            raise
        except KeyboardInterrupt:  # no answer to stop at the prompt
            print(f"\n{WELCOME}")
