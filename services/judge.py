"""`whetstone judge A B`: a chat model says prompt by prompt which of two texts is better.

A, B ─▶ pairs ─▶ both orders ─▶ chat model ─▶ OUT/replies.jsonl ─▶ OUT/judgement.json, judgement.md
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal

from contracts.errors import InputError
from contracts.secret_values import remember, remember_in
from services import run_claim
from services.interrupts import on_interruption
from services.json_lines import without_nan
from services.pairwise.asking import Asked, ask, kept_replies, questions
from services.pairwise.chat_model import ChatModel
from services.pairwise.outcome import judged
from services.pairwise.question import question
from services.pairwise.report import summary, to_markdown, write
from services.pairwise.texts import REFERENCES, Pairs, read_pairs
from services.reward_results import Progress
from services.run_model import at_least

BODY: dict[str, Any] = {"max_tokens": 300, "temperature": 0}
EPILOG = f"""A and B are runs' folders (their last test predictions), files of predictions that a run or
whetstone evaluate has written, or lines {{"prompt": "…", "prediction": "…"}}; B may be the word
{REFERENCES}: the data set's own responses. Replies are kept: the same command goes on.

  whetstone judge runs/a_lol runs/nll --url http://127.0.0.1:8000/v1 --model NAME --num-prompts 200
  whetstone judge runs/a_lol {REFERENCES} --url https://HOST/v1 --model NAME --key-variable OPENAI_API_KEY

A key is read from the environment variable that is named, and written nowhere."""


def run(argv: Sequence[str]) -> int:
    """Ask what is not asked yet, and say who wins; the exit code, 1 where a question got no reply.

    Raises:
        InputError: a side, the template, the address or an option is wrong; or the server refuses.
        RunError: nobody answers.
    """
    arguments = _parser().parse_args(list(argv))
    about = question(_names(arguments.criteria), arguments.template)
    model = _model(arguments)
    found = read_pairs(arguments.a, arguments.b, arguments.num_prompts)
    out = Path(arguments.out)
    _claim(out)
    on_interruption(lambda: f"the replies so far are kept in {out}; the same command goes on")
    asked = questions(found.pairs, about, model)
    replies = _ask(asked, model, out / "replies.jsonl", arguments.in_flight, found)
    rows = judged(found.pairs, asked, replies, about)
    result = summary(arguments.a, arguments.b, rows, about, model)
    written = write(result, rows, out)
    if arguments.json:
        print(json.dumps(without_nan(result), ensure_ascii=False))
    else:
        print(to_markdown(result), *written, sep="\n")
    if result["num_without_reply"]:
        print("The same command asks again what got no reply.", file=sys.stderr)
    return 1 if result["num_without_reply"] else 0


def _ask(
    asked: Sequence[Asked], model: ChatModel, file: Path, num_in_flight: int, found: Pairs
) -> dict[str, str]:
    """All replies; what goes on is told on standard error, so that standard output has the result alone."""
    num_kept = sum(each.key in kept for each in asked) if (kept := kept_replies(file)) else 0
    told = f"{len(found.pairs)} pairs, {len(asked)} questions, of which {num_kept} have their reply already"
    if found.only_a or found.only_b:
        told += f"; left out: {found.only_a} texts that A alone has, {found.only_b} that B alone has"
    progress = Progress(Terminal(stderr=True))
    progress.note(told)
    progress.phase("questions", len(asked) - num_kept)
    try:
        return ask(asked, model, file, num_in_flight, lambda: progress.advance("questions"))
    finally:
        progress.stop()


def _claim(out: Path) -> None:
    """One command at a time asks in a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        run_claim.lock(out)
    except InputError:
        raise InputError(f"--out {out}: another `whetstone judge` works in there; wait") from None
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None


def _model(arguments: argparse.Namespace) -> ChatModel:
    try:
        body = json.loads(arguments.body)
    except ValueError as error:
        raise InputError(f"--body {arguments.body}: is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise InputError(f"--body {arguments.body}: expected an object")
    key = os.environ.get(arguments.key_variable or "", "").strip() or None  # a file's last line has an end
    if arguments.key_variable and not key:
        raise InputError(f"--key-variable {arguments.key_variable}: this environment variable is not set")
    remember(key)
    remember_in(body)
    model = ChatModel(
        arguments.url,
        arguments.model,
        key,
        BODY | body,
        timeout_s=arguments.timeout,
        attempts=arguments.attempts,
    )
    model.check()
    return model


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone judge",
        description="Let a chat model say which of two texts is better, in both orders; count and test.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="whose wins are counted")
    parser.add_argument("b", metavar="B", help=f"whom they are won against; or {REFERENCES}")
    parser.add_argument("--url", required=True, help="of an OpenAI-style service, up to /v1")
    parser.add_argument("--model", required=True, metavar="NAME", help="as that service calls it")
    parser.add_argument("--key-variable", metavar="NAME", help="the environment variable with the key")
    parser.add_argument("--criteria", default="helpful,safe", metavar="A,B", help="default helpful,safe")
    parser.add_argument("--template", metavar="FILE", help="the question, in words of your own")
    parser.add_argument(
        "--num-prompts", type=at_least(1), metavar="N", help="drawn by chance, always the same"
    )
    parser.add_argument("--out", default="judged", metavar="FOLDER", help="default judged")
    parser.add_argument(
        "--body", default="{}", metavar="JSON", help=f"of each request, over {json.dumps(BODY)}"
    )
    parser.add_argument(
        "--in-flight", type=at_least(1), default=8, metavar="N", help="questions at a time (8)"
    )
    parser.add_argument("--timeout", type=at_least(1), default=120, metavar="S", help="for a reply (120)")
    parser.add_argument("--attempts", type=at_least(1), default=4, metavar="N", help="for each question (4)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser
